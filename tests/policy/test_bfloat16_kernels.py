"""Which operators compute in bfloat16, by their attributes, and that they do on a CPU.

MXNet reports a missing kernel ("Unknown type enum 12") only when a result is read, so each case
waits for its output and for its gradients. What has no kernel must run in float32.
"""

import numpy as np
import pytest

from gluon_amp.lowering import lower
from gluon_amp.policy import Policy, bfloat16_kernels, cast_pass
from gluon_amp.policy.bfloat16_kernels import has_kernel
from tests.closeness import ROUNDING
from tests.marks import needs_bfloat16

import mxnet as mx
from mxnet import autograd, nd
from mxnet.contrib.amp.amp import bfloat16

pytestmark = pytest.mark.cpu_kind

POLICY = Policy.parse("bfloat16")


def results(symbol, feed, training):
    """Return the output and, of a training pass, the gradients, once all are computed."""
    op = nd.CachedOp(symbol)
    arrays = {name: nd.array(values) for name, values in feed.items()}
    inputs = [arrays[name] for name in symbol.list_inputs()]
    floats = [arrays[name] for name in symbol.list_arguments()]
    for x in floats:
        x.attach_grad()
    with autograd.record(train_mode=training):
        out = op(*inputs)
    tensors = [out.asnumpy()]
    if training:
        out.backward(nd.array(values(out.shape, 0.5, 1, seed=4)))
        tensors += [x.grad.asnumpy() for x in floats]
    nd.waitall()
    return tensors


def values(shape, low=-1.0, high=1.0, seed=3):
    """Random bfloat16 values, in float32."""
    drawn = np.random.RandomState(seed).uniform(low, high, shape).astype("float32")
    return (drawn.view(np.uint32) & 0xFFFF0000).view(np.float32)


def symbol_of(op, attrs, count, low):
    """A symbol of one operator whose first inputs, `low` of them, are cast to bfloat16."""
    inputs = [mx.sym.var(f"x{i}") for i in range(count)]
    inputs[:low] = [mx.sym.amp_cast(x, dtype=bfloat16) for x in inputs[:low]]
    return getattr(mx.sym, op)(*inputs, **attrs, name="node")


def check(op, attrs, shapes):
    """Compare a node with bfloat16 inputs with float32."""
    low = 1 if op == "BatchNorm" else len(shapes)
    arrays = {f"x{i}": values(shape) for i, shape in enumerate(shapes)}
    if op == "BatchNorm":
        arrays["x1"], arrays["x4"] = (abs(arrays[name]) + 0.5 for name in ("x1", "x4"))
    plain = symbol_of(op, attrs, len(shapes), 0)
    cast = cast_pass.apply(symbol_of(op, attrs, len(shapes), low), POLICY, {})
    dtypes = dict.fromkeys(arrays, "float32")
    lowered = lower(cast, dtypes, "cpu")
    poison = {name: np.full_like(values, np.nan) for name, values in arrays.items()}
    for training in (True, False):
        expected = results(plain, arrays, training)
        if training:  # so that uninitialized memory that a kernel reads contains NaN
            results(lowered, poison, training)
        for actual, reference in zip(results(lowered, arrays, training), expected):
            size = np.abs(reference).max(initial=1e-6)
            where = f"{op} {attrs} of {shapes}, training={training}"
            assert np.isfinite(actual).all(), where
            far = np.abs(actual - reference).max(initial=0) / size
            assert far <= 8 * ROUNDING["bfloat16"], where


def convolution(data, filters, kernel, groups=1, **attrs):
    """Return a case of a convolution with a bias."""
    attrs = {"kernel": kernel, "num_filter": filters, "num_group": groups, **attrs}
    return "Convolution", attrs, [data, (filters, data[1] // groups, *kernel), (filters,)]


# Operator, attributes, and shapes of inputs
CASES = [
    *(("Activation", {"act_type": act}, [(2, 3, 5)]) for act in ("relu", "sigmoid", "tanh")),
    *(("Activation", {"act_type": "softrelu"}, [s]) for s in ((5,), (1, 2, 2, 2, 2, 2))),
    *(("BatchNorm", {"axis": axis}, [(4, 17), *[(17,)] * 4]) for axis in (1, -1)),
    ("BatchNorm", {"fix_gamma": False}, [(4, 3, 4, 4), *[(3,)] * 4]),
    ("BatchNorm", {"use_global_stats": True}, [(2, 16, 5), *[(16,)] * 4]),
    ("Concat", {"dim": 1, "num_args": 2}, [(2, 3, 5), (2, 5, 5)]),
    ("Concat", {"dim": -1, "num_args": 5}, [(4, 17)] * 5),
    convolution((2, 16, 6, 6), 17, (1, 1)),
    convolution((2, 3, 7, 5), 5, (3, 3), stride=(2, 2), pad=(1, 1)),
    convolution((2, 16, 1, 1), 16, (3, 3), stride=(2, 2), pad=(1, 1)),  # narrower than the stride
    convolution((2, 16, 1, 6), 16, (3, 3), stride=(3, 2), pad=(1, 1), groups=2),
    convolution((1, 3, 9), 16, (5,)),
    convolution((2, 16, 2), 16, (3,), stride=(4,), pad=(1,)),
    convolution((2, 4, 7), 4, (3,), stride=(2,), groups=4),
    convolution((1, 2, 5, 3, 4), 2, (3, 3, 3), stride=(2, 1, 1)),
    convolution((2, 32, 5, 3, 1), 16, (3, 2, 1), groups=2, pad=(1, 1, 0), dilate=(2, 1, 1)),
    *(("Flatten", {}, [shape]) for shape in ((5,), (2, 3, 2, 2, 2))),
    ("FullyConnected", {"num_hidden": 17}, [(2, 3, 4), (17, 12), (17,)]),
    ("Pooling", {"kernel": (2, 2)}, [(2, 3, 4, 4)]),
    ("Pooling", {"kernel": (3,), "stride": (2,), "pad": (1,)}, [(1, 17, 5)]),
    ("Pooling", {"kernel": (2, 2, 2), "stride": (2, 2, 2), "pool_type": "avg"}, [(2, 3, 4, 4, 4)]),
    ("Pooling", {"kernel": (1, 1), "global_pool": True, "pool_type": "avg"}, [(1, 17, 5, 5)]),
    ("Pooling", {"kernel": (3, 3), "stride": (2, 2), "pooling_convention": "full"}, [(2, 3, 4, 4)]),
    ("Reshape", {"shape": (0, -4, -1, 2, 0, 0, 0)}, [(2, 4, 3, 1, 1)]),
    ("Reshape", {"shape": (2, -1, 1, 3, 1, 1)}, [(2, 3)]),
    ("elemwise_add", {}, [(4, 17)] * 2),
    ("squeeze", {}, [(1, 2, 3, 4, 4)]),
    ("squeeze", {"axis": -1}, [(1, 17, 1, 1, 1)]),
]


@needs_bfloat16
@pytest.mark.parametrize("op, attrs, shapes", CASES, ids=str)
def test_what_has_a_kernel_computes_what_float32_does(op, attrs, shapes):
    assert has_kernel(op, {name: str(value) for name, value in attrs.items()})
    check(op, attrs, shapes)


def test_every_operator_with_a_kernel_of_onednn_is_tried():
    assert {op for op, *_ in CASES} == {*bfloat16_kernels.KERNELS} - {*bfloat16_kernels.OURS}


@pytest.mark.parametrize(
    "op, attrs, expected",
    [
        ("Convolution", {"kernel": "[3,3,3]", "stride": "[2,1,1]", "pad": "[1,1,1]"}, False),
        ("Activation", {"act_type": "softsign"}, False),
        ("Deconvolution", {"kernel": "(3, 3)", "stride": "(2, 2)", "dilate": "(2, 2)"}, True),
        ("Deconvolution", {"kernel": "(3, 3)", "target_shape": "(8, 8)"}, False),
        ("Deconvolution", {"kernel": "(3, 3)", "layout": "NHWC"}, False),
        ("Deconvolution", {"kernel": "(3,)"}, False),
        ("Pooling", {"global_pool": "True"}, False),
        ("Pooling", {"kernel": "()", "global_pool": "1"}, False),
        ("Pooling", {"kernel": "(2, 2)", "pool_type": "sum"}, False),
        ("Pooling", {"kernel": "(2, 2)", "layout": "NHWC"}, False),
        ("Pooling", {"kernel": "(1, 1)", "stride": "(2, 2)", "pooling_convention": "full"}, False),
        (
            "Pooling",  # its last window may contain only padding
            {"kernel": "[2,2]", "stride": "[2,2]", "pad": "[1,1]", "pooling_convention": "full"},
            False,
        ),
        ("RNN", {"p": "0.0", "projection_size": "None", "use_sequence_length": "False"}, True),
        ("RNN", {"p": "0.5"}, True),
        ("RNN", {"projection_size": "3"}, False),
        ("RNN", {"lstm_state_clip_max": "1.0"}, False),
        ("RNN", {"use_sequence_length": "1"}, False),
        ("Reshape", {"shape": "(-2, 1)"}, False),
        ("Reshape", {"shape": "(0, 0, 2, 2, 2, 2, 2)"}, False),
        ("_npx_pooling", {"kernel": "(2, 2)"}, True),
        ("transpose", {}, False),
    ],
)
def test_other_kernels_by_attributes(op, attrs, expected):
    assert has_kernel(op, attrs) is expected


def test_without_attributes_an_operator_has_a_kernel_if_any_of_its_cases_has():
    assert has_kernel("Pooling")
    assert not has_kernel("LRN")
