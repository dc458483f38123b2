"""Every operator that may compute in bfloat16, over its attributes and odd shapes, on a CPU.

MXNet reports a missing kernel ("Unknown type enum 12") only when a result is read, so each case
waits for its output and for its gradients. What has no kernel must run in float32.
"""

import itertools
import json

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp import graph
from gluon_amp.lowering import lower
from gluon_amp.policy import Policy, bfloat16_kernels, cast_pass
from gluon_amp.policy.bfloat16_kernels import has_kernel
from tests.closeness import ROUNDING
from tests.marks import needs_bfloat16

import mxnet as mx
from mxnet import autograd, gluon, nd

pytestmark = pytest.mark.cpu_kind

POLICY = Policy.parse("bfloat16")

# Of 1 to 6 dimensions, with 1 to 17 channels
SHAPES = [(5,), (2, 3), (1, 1), (4, 17), (2, 3, 5), (2, 3, 4, 4), (1, 17, 1, 1)]
SHAPES += [(2, 3, 2, 2, 2), (1, 2, 2, 2, 2, 2)]

# Kernel, stride and padding of a pooling
WINDOWS = [(1, 1, 0), (2, 1, 0), (2, 2, 0), (3, 2, 1), (1, 2, 0), (2, 2, 1), (2, 3, 1)]


def symbol_of(op, attrs, inputs, low):
    """A symbol of one operator; `low` are the positions of its bfloat16 inputs."""
    nodes = [{"op": "null", "name": f"x{i}", "inputs": []} for i in range(inputs)]
    entries = [[i, 0, 0] for i in range(inputs)]
    for i in low:
        cast = {"op": "amp_cast", "name": f"low{i}", "attrs": {"dtype": "bfloat16"}}
        nodes.append({**cast, "inputs": [entries[i]]})
        entries[i] = [len(nodes) - 1, 0, 0]
    attrs = {key: str(value) for key, value in attrs.items()}
    nodes.append({"op": op, "name": "node", "attrs": attrs, "inputs": entries})
    heads = [[len(nodes) - 1, 0, 0]]
    return mx.sym.load_json(
        json.dumps(
            {
                "nodes": nodes,
                "arg_nodes": list(range(inputs)),
                "heads": heads,
                "attrs": graph.VERSION,
            }
        )
    )


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


def check(op, attrs, shapes, low=None):
    """Compare a node with bfloat16 inputs `low` with float32; False if float32 does not run it."""
    low = range(len(shapes)) if low is None else low
    arrays = {f"x{i}": values(shape) for i, shape in enumerate(shapes)}
    if op == "BatchNorm":
        arrays["x1"], arrays["x4"] = (abs(arrays[name]) + 0.5 for name in ("x1", "x4"))
    plain = symbol_of(op, attrs, len(shapes), ())
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
            assert np.abs(actual - reference).max(initial=0) <= 8 * ROUNDING["bfloat16"] * size, (
                where
            )
    return True


def activations():
    for act, shape in itertools.product(
        ("relu", "sigmoid", "tanh", "softrelu", "softsign"), SHAPES
    ):
        yield "Activation", {"act_type": act}, [shape]


def norms():
    shapes = [(4, 3), (4, 8), (2, 17), (4, 3, 5), (2, 16, 5)]
    shapes += [(4, 3, 4, 4), (1, 17, 3, 1), (4, 8, 4, 4), (4, 3, 2, 2, 2)]
    for shape, axis, fix, fixed in itertools.product(shapes, (1, -1), (True, False), (True, False)):
        attrs = {"axis": axis, "fix_gamma": fix, "use_global_stats": fixed}
        yield "BatchNorm", attrs, [shape, *[(shape[axis],)] * 4], [0]


def concatenations():
    for shape in SHAPES:
        for dim in range(-1, len(shape)):
            other = list(shape)
            other[dim] += 2
            for count in (1, 2, 5):
                attrs = {"dim": dim, "num_args": count}
                yield "Concat", attrs, [shape, *[tuple(other)] * (count - 1)]


def convolutions():
    channels = [(1, 1, 1), (3, 5, 1), (17, 2, 1), (15, 16, 1), (16, 17, 1)]
    channels += [(4, 4, 4), (8, 16, 8), (6, 3, 3), (32, 16, 2)]
    cases = itertools.product(
        (1, 2, 3), (1, 2, 3, 5), (1, 2, 3), (0, 1, 2), (1, 2), channels, (1, 2, 5), (1, 2)
    )
    for dims, kernel, stride, pad, dilate, (read, filters, groups), size, batch in cases:
        if size + 2 * pad >= dilate * (kernel - 1) + 1:
            window = {"kernel": kernel, "stride": stride, "pad": pad, "dilate": dilate}
            attrs = {name: (value,) * dims for name, value in window.items()}
            attrs.update(num_filter=filters, num_group=groups)
            shapes = [(batch, read, *[size] * dims), (filters, read // groups, *[kernel] * dims)]
            yield "Convolution", attrs, [*shapes, (filters,)]


def flattenings():
    for shape in SHAPES:
        yield "Flatten", {}, [shape]


def dense_layers():
    for shape, units, flatten, bare in itertools.product(
        SHAPES[1:], (1, 4, 17), (True, False), (True, False)
    ):
        read = int(np.prod(shape[1:])) if flatten else shape[-1]
        attrs = {"num_hidden": units, "flatten": flatten, "no_bias": bare}
        yield "FullyConnected", attrs, [shape, (units, read), *[(units,)] * (not bare)]


def poolings():
    for dims, kind, convention, counted in itertools.product(
        (1, 2, 3), ("max", "avg", "sum", "lp"), ("valid", "full"), (True, False)
    ):
        attrs = {"pool_type": kind, "pooling_convention": convention, "p_value": 2}
        if kind == "avg":
            attrs["count_include_pad"] = counted
        elif counted:
            continue
        shapes = [(2, 3, *[4] * dims), (1, 17, *[5] * dims), (1, 1, *[1] * dims)]
        for shape in shapes:
            for kernel in ((), (1,) * dims, (3,) * dims):
                optional = {"kernel": kernel} if kernel else {}
                yield "Pooling", {**attrs, **optional, "global_pool": True}, [shape]
            for kernel, stride, pad in WINDOWS:
                window = {
                    "kernel": (kernel,) * dims,
                    "stride": (stride,) * dims,
                    "pad": (pad,) * dims,
                }
                yield "Pooling", {**attrs, **window}, [shape]
    for layout in ("NHWC", "NCHW"):
        yield "Pooling", {"kernel": (2, 2), "layout": layout}, [(2, 4, 4, 3)]


def reshapes():
    yield "Reshape", {"shape": (-1,)}, [(2, 3)]
    yield "Reshape", {"shape": (0, -1, 1, 1)}, [(2, 3)]
    yield "Reshape", {"shape": (0, -4, 2, 2, 0, 0)}, [(2, 4, 3, 1)]
    yield "Reshape", {"shape": (-1, 0), "reverse": True}, [(2, 3, 1)]
    yield "Reshape", {"shape": (-2, 1)}, [(2, 3)]
    yield "Reshape", {"shape": (2, -1, 1, 3, 1, 1)}, [(2, 3)]


def sums():
    for shape in SHAPES:
        yield "elemwise_add", {}, [shape, shape]


def squeezings():
    for shape in SHAPES[:-1]:
        yield "squeeze", {}, [(1, *shape)]
        yield "squeeze", {"axis": -1}, [(*shape, 1)]


MOST = 150  # cases per operator, a fixed sample of the 8000 convolutions

CASES = {
    "Activation": activations,
    "BatchNorm": norms,
    "Concat": concatenations,
    "Convolution": convolutions,
    "Flatten": flattenings,
    "FullyConnected": dense_layers,
    "Pooling": poolings,
    "Reshape": reshapes,
    "elemwise_add": sums,
    "squeeze": squeezings,
}


def test_every_operator_has_cases():
    assert set(CASES) == set(bfloat16_kernels.KERNELS)


@needs_bfloat16
@pytest.mark.parametrize("op", CASES)
def test_every_case_runs_as_in_float32(op):
    cases = list(CASES[op]())
    cases = [cases[i] for i in np.random.RandomState(0).permutation(len(cases))[:MOST]]
    ran = [check(*case) for case in cases]
    assert sum(ran) > 0.7 * len(ran)


def small_convolutions(draws):
    """Odd shapes, half of them with numbers of channels that oneDNN blocks, and narrow images."""
    random = np.random.RandomState(5)
    for _ in range(draws):
        dims = random.choice([1, 2, 2, 3])
        kernel, dilate, stride, pad = (
            tuple(int(n) for n in random.randint(low, high, dims))
            for low, high in ((1, 6), (1, 3), (1, 5), (0, 4))
        )
        size = tuple(int(n) for n in random.randint(1, 8, dims))
        groups, read, filters = (int(n) for n in random.randint(1, (3, 18, 18)))
        if random.rand() < 0.5:
            groups, read, filters, dilate = 1, 16, 16, (1,) * dims
            size = (*size[:-1], random.randint(1, 4))
        reach = [d * (k - 1) + 1 for d, k in zip(dilate, kernel)]
        if all(n + 2 * p >= r and p < max(r, 2) for n, p, r in zip(size, pad, reach)):
            attrs = {"kernel": kernel, "dilate": dilate, "stride": stride, "pad": pad}
            attrs.update(num_filter=filters * groups, num_group=groups)
            shapes = [
                (2, read * groups, *size),
                (filters * groups, read, *kernel),
                (filters * groups,),
            ]
            yield "Convolution", attrs, shapes


@needs_bfloat16
def test_convolutions_of_small_images():
    """Some are narrower than the stride, for which oneDNN reads uninitialized memory."""
    cases = list(small_convolutions(200))
    narrow = sum(shapes[0][-1] < attrs["stride"][-1] for _, attrs, shapes in cases)
    assert narrow > 20
    for case in cases:
        assert check(*case)


@needs_bfloat16
def test_pixels_shuffled_in_three_dimensions():
    """oneDNN's casts do not support eight dimensions, so these operators stay in float32."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv3D(8, 1), gluon.contrib.nn.PixelShuffle3D(2))
    net.initialize()
    net.hybridize()
    x = nd.array(values((1, 3, 2, 2, 2)))
    expected = net(x).asnumpy()
    amp.cast(net, "bfloat16")
    np.testing.assert_allclose(net(x).asnumpy(), expected, atol=2.0**-8, rtol=2.0**-6)


@pytest.mark.parametrize(
    "op, attrs, expected",
    [
        ("Activation", {"act_type": "softrelu"}, True),
        ("Convolution", {"kernel": "(3, 3)", "stride": "(2, 2)", "pad": "(1, 1)"}, True),
        ("Convolution", {"kernel": "(3, 3, 3)", "stride": "(2, 1, 1)"}, True),
        ("Convolution", {"kernel": "[3,3,3]", "stride": "[2,1,1]", "pad": "[1,1,1]"}, False),
        ("Activation", {"act_type": "softsign"}, False),
        ("Pooling", {"kernel": "(2, 2)"}, True),
        ("Pooling", {"kernel": "(1, 1)", "global_pool": "True", "pool_type": "avg"}, True),
        ("Pooling", {"global_pool": "True"}, False),
        ("Pooling", {"kernel": "()", "global_pool": "1"}, False),
        ("Pooling", {"kernel": "(2, 2)", "pool_type": "sum"}, False),
        ("Pooling", {"kernel": "(2, 2)", "layout": "NHWC"}, False),
        ("Pooling", {"kernel": "(3, 3)", "stride": "(2, 2)", "pooling_convention": "full"}, True),
        ("Pooling", {"kernel": "(1, 1)", "stride": "(2, 2)", "pooling_convention": "full"}, False),
        ("Reshape", {"shape": "(0, -4, -1, 2, 0, 0)"}, True),
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
    assert not has_kernel("Deconvolution")
