"""Every operator that may compute in bfloat16, over its attributes and odd shapes, on a CPU.

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

# Of 1 to 6 dimensions, with 1 to 17 channels
SHAPES = [(5,), (2, 3), (1, 1), (4, 17), (2, 3, 5), (2, 3, 4, 4), (1, 17, 1, 1)]
SHAPES += [(2, 3, 2, 2, 2), (1, 2, 2, 2, 2, 2)]


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
    """Compare a node with bfloat16 inputs with float32; False if float32 does not run it."""
    low = 1 if op == "BatchNorm" else len(shapes)
    arrays = {f"x{i}": values(shape) for i, shape in enumerate(shapes)}
    if op == "BatchNorm":
        arrays["x1"], arrays["x4"] = (abs(arrays[name]) + 0.5 for name in ("x1", "x4"))
    if op == "RNN":
        arrays["x1"] /= 4  # larger weights amplify a rounding at each step
    plain = symbol_of(op, attrs, len(shapes), 0)
    cast = cast_pass.apply(symbol_of(op, attrs, len(shapes), low), POLICY, {})
    dtypes = dict.fromkeys(arrays, "float32")
    lowered = lower(cast, dtypes, "cpu")
    poison = {name: np.full_like(values, np.nan) for name, values in arrays.items()}
    for training in (True, False):
        try:
            expected = results(plain, arrays, training)
        except mx.MXNetError:
            return False  # float32 does not support these attributes either
        if not np.isfinite(expected[0]).all():
            return False  # an average over an empty window
        if training:  # so that uninitialized memory that a kernel reads contains NaN
            results(lowered, poison, training)
        for actual, reference in zip(results(lowered, arrays, training), expected):
            size = np.abs(reference).max(initial=1e-6)
            where = f"{op} {attrs} of {shapes}, training={training}"
            assert np.isfinite(actual).all(), where
            far = np.abs(actual - reference).max(initial=0) / size
            assert far <= 8 * ROUNDING["bfloat16"], where
    return True


class Draw:
    """Random choices for the attributes and shapes of one case."""

    def __init__(self, seed):
        self.random = np.random.RandomState(seed)

    def one_of(self, *choices):
        return choices[self.random.randint(len(choices))]

    def each(self, dims, *choices):
        return tuple(self.one_of(*choices) for _ in range(dims))


def norm(draw):
    shape = draw.one_of((4, 3), (4, 8), (2, 17), (2, 16, 5), (4, 3, 4, 4), (1, 17, 3, 1))
    axis = draw.one_of(1, -1)
    attrs = {"fix_gamma": draw.one_of(True, False), "use_global_stats": draw.one_of(True, False)}
    return {"axis": axis, **attrs}, [shape, *[(shape[axis],)] * 4]


def concatenation(draw):
    shape = draw.one_of(*SHAPES)
    dim, count = draw.one_of(*range(-1, len(shape))), draw.one_of(1, 2, 5)
    other = list(shape)
    other[dim] += 2
    return {"dim": dim, "num_args": count}, [shape, *[tuple(other)] * (count - 1)]


def convolution(draw):
    """Half of them with channels that oneDNN blocks, and some images narrower than the stride."""
    dims = draw.one_of(1, 2, 2, 3)
    groups, read, filters = draw.one_of(
        (1, 1, 1), (1, 3, 5), (1, 16, 16), (1, 16, 17), (4, 1, 1), (8, 1, 2), (2, 16, 8), (3, 2, 1)
    )
    kernel, stride = draw.each(dims, 1, 2, 3, 5), draw.each(dims, 1, 2, 3, 4)
    pad = tuple(draw.one_of(*range(min(k, 3))) for k in kernel)
    dilate = draw.each(dims, 1, 1, 2)
    reach = [d * (k - 1) + 1 - 2 * p for d, k, p in zip(dilate, kernel, pad)]
    size = [max(r, draw.one_of(1, 2, 5, 7)) for r in reach]
    attrs = {"kernel": kernel, "stride": stride, "pad": pad, "dilate": dilate}
    attrs.update(num_filter=filters * groups, num_group=groups)
    batch = draw.one_of(1, 2)
    shapes = [(batch, read * groups, *size), (filters * groups, read, *kernel)]
    return attrs, [*shapes, (filters * groups,)]


def deconvolution(draw):
    groups, read, filters = draw.one_of(
        (1, 1, 1), (1, 3, 5), (1, 16, 16), (1, 16, 17), (4, 1, 1), (2, 16, 8), (3, 2, 1)
    )
    attrs = {
        "kernel": draw.each(2, 2, 3, 5),
        "stride": draw.each(2, 1, 2, 3),
        "dilate": draw.each(2, 1, 1, 2),
        "pad": draw.each(2, 0, 1),
        "num_filter": filters * groups,
        "num_group": groups,
        "no_bias": draw.one_of(True, False),
    }
    attrs["adj"] = tuple(draw.one_of(*range(s)) for s in attrs["stride"])
    shapes = [(draw.one_of(1, 2), read * groups, draw.one_of(2, 4), draw.one_of(2, 5))]
    shapes.append((read * groups, filters, *attrs["kernel"]))
    return attrs, [*shapes, *[(filters * groups,)] * (not attrs["no_bias"])]


def dense_layer(draw):
    shape, units = draw.one_of(*SHAPES[1:]), draw.one_of(1, 4, 17)
    flatten, bare = draw.one_of(True, False), draw.one_of(True, False)
    read = int(np.prod(shape[1:])) if flatten else shape[-1]
    attrs = {"num_hidden": units, "flatten": flatten, "no_bias": bare}
    return attrs, [shape, (units, read), *[(units,)] * (not bare)]


def pooling(draw):
    dims = draw.one_of(1, 2, 3)
    attrs = {
        "pool_type": draw.one_of("max", "avg", "avg", "sum", "lp"),
        "pooling_convention": draw.one_of("valid", "full"),
        "count_include_pad": draw.one_of(True, False),
        "p_value": 2,
    }
    # kernel, stride and padding; or none, for the whole image
    window = draw.one_of((1, 1, 0), (2, 2, 0), (3, 2, 1), (1, 2, 0), (2, 2, 1), (2, 3, 1), ())
    attrs.update((name, (k,) * dims) for name, k in zip(("kernel", "stride", "pad"), window))
    attrs.update({} if window else {"global_pool": True, "kernel": (draw.one_of(1, 3),) * dims})
    return attrs, [draw.one_of((2, 3, *[4] * dims), (1, 17, *[5] * dims), (1, 1, *[1] * dims))]


def recurrent(draw):
    """All modes but rnn_relu, whose gradient jumps where a rounding moves a state across 0."""
    mode, gates = draw.one_of(("lstm", 4), ("gru", 3), ("rnn_tanh", 1))
    layers, directions = draw.one_of(1, 2), draw.one_of(1, 2)
    length, batch, read, units = (draw.one_of(1, 2, 5, 17) for _ in range(4))
    read = max(read, 2)  # the sum for a single one cancels
    attrs = {"mode": mode, "num_layers": layers, "state_size": units}
    attrs["bidirectional"] = directions == 2
    inputs = read + (layers - 1) * directions * units
    size = directions * gates * units * (inputs + layers * (units + 2))
    states = [(layers * directions, batch, units)] * (2 if mode == "lstm" else 1)
    return attrs, [(min(length, 5), batch, read), (size,), *states]


def reshape(draw):
    shape, new = draw.one_of(
        ((2, 3), (-1,)),
        ((2, 3), (0, -1, 1, 1)),
        ((2, 4, 3, 1), (0, -4, 2, 2, 0, 0)),
        ((2, 3), (-2, 1)),
        ((2, 3), (2, -1, 1, 3, 1, 1)),
    )
    return {"shape": new}, [shape]


CASES = {
    "Activation": lambda draw: (
        {"act_type": draw.one_of("relu", "sigmoid", "tanh", "softrelu", "softsign")},
        [draw.one_of(*SHAPES)],
    ),
    "BatchNorm": norm,
    "Concat": concatenation,
    "Convolution": convolution,
    "Deconvolution": deconvolution,
    "Flatten": lambda draw: ({}, [draw.one_of(*SHAPES)]),
    "FullyConnected": dense_layer,
    "Pooling": pooling,
    "RNN": recurrent,
    "Reshape": reshape,
    "elemwise_add": lambda draw: ({}, [draw.one_of(*SHAPES)] * 2),
    "squeeze": lambda draw: draw.one_of(
        ({}, [(1, *draw.one_of(*SHAPES[:-1]))]), ({"axis": -1}, [(*draw.one_of(*SHAPES[:-1]), 1)])
    ),
}


@needs_bfloat16
@pytest.mark.parametrize("cases", [12, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("op", bfloat16_kernels.KERNELS)
def test_every_case_runs_as_in_float32(op, cases):
    ran = [check(op, *CASES[op](Draw(seed))) for seed in range(cases)]
    assert sum(ran) > 0.7 * len(ran)


@pytest.mark.parametrize(
    "op, attrs, expected",
    [
        ("Activation", {"act_type": "softrelu"}, True),
        ("Convolution", {"kernel": "(3, 3)", "stride": "(2, 2)", "pad": "(1, 1)"}, True),
        ("Convolution", {"kernel": "(3, 3, 3)", "stride": "(2, 1, 1)"}, True),
        ("Convolution", {"kernel": "[3,3,3]", "stride": "[2,1,1]", "pad": "[1,1,1]"}, False),
        ("Activation", {"act_type": "softsign"}, False),
        ("Deconvolution", {"kernel": "(3, 3)", "stride": "(2, 2)", "dilate": "(2, 2)"}, True),
        ("Deconvolution", {"kernel": "(3, 3)", "target_shape": "(8, 8)"}, False),
        ("Deconvolution", {"kernel": "(3, 3)", "layout": "NHWC"}, False),
        ("Deconvolution", {"kernel": "(3,)"}, False),
        ("Pooling", {"kernel": "(2, 2)"}, True),
        ("Pooling", {"kernel": "(1, 1)", "global_pool": "True", "pool_type": "avg"}, True),
        ("Pooling", {"global_pool": "True"}, False),
        ("Pooling", {"kernel": "()", "global_pool": "1"}, False),
        ("Pooling", {"kernel": "(2, 2)", "pool_type": "sum"}, False),
        ("Pooling", {"kernel": "(2, 2)", "layout": "NHWC"}, False),
        ("Pooling", {"kernel": "(3, 3)", "stride": "(2, 2)", "pooling_convention": "full"}, True),
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
        ("Reshape", {"shape": "(0, -4, -1, 2, 0, 0, 0)"}, True),
        ("Reshape", {"shape": "(-2, 1)"}, False),
        ("Reshape", {"shape": "(0, 0, 2, 2, 2, 2, 2)"}, False),
        ("_npx_pooling", {"kernel": "(2, 2)"}, True),
        ("transpose", {}, False),
    ],
)
def test_kernels_by_attributes(op, attrs, expected):
    assert has_kernel(op, attrs) is expected


def test_without_attributes_an_operator_has_a_kernel_if_any_of_its_cases_has():
    assert has_kernel("Pooling")
    assert not has_kernel("LRN")
