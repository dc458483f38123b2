"""Which dtypes a network really uses: seen on a batch, not taken from what was asked for."""

from typing import Callable, Dict, Iterable

import numpy as np

from gluon_amp.command_line import UsageError
from gluon_amp.inspection.describe import describe

from mxnet.gluon import Block
from mxnet.ndarray import NDArray

PRODUCTS = ("Convolution", "FullyConnected")


def join_dtypes(dtypes: Iterable[str]) -> str:
    """Name all dtypes there are: 'float16+float32'."""
    return "+".join(sorted(set(dtypes))) or "none"


def _name(array: NDArray) -> str:
    return np.dtype(array.dtype).name


def observed_dtypes(
    net: Block,
    loss_fn: Callable[[NDArray, NDArray], NDArray],
    images: NDArray,
    labels: NDArray,
    classes: int,
) -> Dict[str, str]:
    """Run a batch through a network and its loss, and report the dtypes met on the way.

    Parameters
    ----------
    net : Block
        Initialized; called in prediction mode, so that its running statistics stay as they are.
    loss_fn : callable
        ``loss_fn(outputs, labels)``.
    images, labels : NDArray
        A batch, on one of the network's devices.
    classes : int
        Outputs expected.

    Returns
    -------
    dict
        ``conv_weight``: dtype of the weights of convolutions and dense layers; ``conv_compute``:
        what they compute in; ``batchnorm``: dtype of BatchNorm's parameters; ``logits``; ``loss``.
        Where layers differ, every dtype is named: 'float16+float32'.

    Raises
    ------
    UsageError
        The network is no classifier of such images.
    """
    rows = describe(net, images).rows
    outputs = net(images)
    shape = getattr(outputs, "shape", None)
    if shape != (len(images), classes):
        raise UsageError(
            f"the network gives {shape or 'several outputs'} for {len(images)} images of {classes} "
            "classes, so it is not one that train_imagenet.py can train."
        )
    products = [row for row in rows if row.op in PRODUCTS]
    norms = [row for row in rows if row.op == "BatchNorm"]
    return {
        "conv_weight": join_dtypes(
            dtype for row in products for dtype in row.param_dtypes.values()
        ),
        "conv_compute": join_dtypes(row.compute_dtype for row in products),
        "batchnorm": join_dtypes(dtype for row in norms for dtype in row.param_dtypes.values()),
        "logits": _name(outputs),
        "loss": _name(loss_fn(outputs, labels)),
    }
