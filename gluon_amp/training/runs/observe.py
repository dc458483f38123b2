"""Which dtypes a network really uses: observed on a batch, whatever was requested."""

from typing import Dict, Iterable

from gluon_amp.base.dtypes import dtype_name
from gluon_amp.base.messages import UsageError, reason_of
from gluon_amp.inspection.describe import describe
from gluon_amp.policy import Policy
from gluon_amp.training.data import Source, ValidationBatches
from gluon_amp.training.runs.loop import TrainingError

import mxnet as mx
from mxnet.gluon import Block
from mxnet.gluon.loss import SoftmaxCrossEntropyLoss

LAYERS = ("Convolution", "FullyConnected")


def join_dtypes(dtypes: Iterable[str]) -> str:
    """Return the names of all different dtypes: 'float16+float32'."""
    return "+".join(sorted(set(dtypes))) or "none"


def check_compute_dtype(policy: Policy, observed: str, model: str) -> None:
    """Raise `TrainingError` if a network computes in another dtype than requested."""
    expected = [policy.compute_dtype if policy.studies else policy.product_dtype]
    if policy.study.keeps_ends_wide:
        expected.append("float32")
    if observed != join_dtypes(expected):
        raise TrainingError(
            f"{policy.compute_dtype} was requested, but {model} computes in {observed}."
        )


def observe(
    net: Block, data: Source, device: mx.Context, model: str, policy: Policy
) -> Dict[str, str]:
    """Run two images of the data through a network and its loss, and return the dtypes observed.

    ``conv_weight`` and ``conv_compute`` are of convolutions and dense layers, ``batchnorm`` of its
    parameters. Where layers differ, every dtype is named: 'float16+float32'. The network predicts,
    so that its running statistics stay as they are.
    """
    batch = next(iter(ValidationBatches(data.val, 2, num_workers=0)))
    images, labels = (array.as_in_context(device) for array in batch)
    try:
        rows = describe(net, images).rows
        outputs = net(images)
    except (RuntimeError, ValueError) as error:  # of describe, and of a failed shape inference
        size = "×".join(map(str, data.image_shape))
        raise UsageError(f"{model} does not accept images of {size}: {reason_of(error)}.") from None
    shape = getattr(outputs, "shape", None)
    if shape != (len(images), data.classes):
        raise UsageError(
            f"the network returns {shape or 'several outputs'} for {len(images)} images of "
            f"{data.classes} classes, so it cannot be trained on them."
        )
    layers = [row for row in rows if row.op in LAYERS]
    norms = [row for row in rows if row.op == "BatchNorm"]
    observed = {
        "conv_weight": join_dtypes(dtype for row in layers for dtype in row.param_dtypes.values()),
        "conv_compute": join_dtypes(row.compute_dtype for row in layers),
        "batchnorm": join_dtypes(dtype for row in norms for dtype in row.param_dtypes.values()),
        "logits": dtype_name(outputs.dtype),
        "loss": dtype_name(SoftmaxCrossEntropyLoss()(outputs, labels).dtype),
    }
    check_compute_dtype(policy, observed["conv_compute"], model)
    return observed
