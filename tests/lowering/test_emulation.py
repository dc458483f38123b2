"""Law 7: the emulation is IEEE float16, rounded once after each operator, forward and backward."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp import graph
from gluon_amp.lowering import blocked, lower
from gluon_amp.lowering.emulation import ROUND, is_exact
from gluon_amp.policy import Policy, cast_pass

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import nn


def halves(*shape, scale=1.0, seed=0):
    """Random float16 values in a float32 array."""
    values = np.random.RandomState(seed).normal(0, scale, shape)
    return values.astype(np.float16).astype(np.float32)


def emulated(symbol, **dtypes):
    return lower(cast_pass.apply(symbol, Policy.parse("float16"), dtypes), dtypes, "cpu")


def run(symbol, **arrays):
    arrays = {name: nd.array(value, dtype=value.dtype) for name, value in arrays.items()}
    return symbol.eval(ctx=mx.cpu(), **arrays)[0]


def interesting_values():
    """All float16 values, all midpoints between neighbours, and the float32 values next to them."""
    bits = np.arange(2**16, dtype=np.uint16)
    values = bits.view(np.float16).astype(np.float32)
    finite = np.unique(values[np.isfinite(values)])
    largest = np.float32(65504)
    midpoints = (finite[1:].astype(np.float64) + finite[:-1]) / 2
    midpoints = np.concatenate([midpoints, [65520.0, -65520.0]]).astype(np.float32)
    beside = [np.nextafter(midpoints, np.float32(side)) for side in (-np.inf, np.inf)]
    far = np.array([1e5, -1e5, 1e-9, -1e-9, 3.4e38, np.inf, -np.inf], np.float32)
    return np.concatenate([values, midpoints, *beside, [largest], far])


def test_rounding_is_numpys_for_every_value_midpoint_and_neighbour():
    values = interesting_values()
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16)
    # an operator that runs in float16 and returns its input: x * 1
    x = mx.sym.var("x")
    symbol = emulated(mx.sym.amp_cast(x, dtype="float16") * 1.0, x="float32")
    actual = run(symbol, x=values).asnumpy()
    assert actual.dtype == np.float32  # the policy's output
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(actual), nan)
    with np.errstate(over="ignore"):
        assert np.array_equal(actual[~nan].view(np.uint32), expected[~nan].astype("f4").view("u4"))


def test_convolution_equals_the_float32_result_rounded_once():
    x, w = halves(2, 3, 8, 8), halves(5, 3, 3, 3, seed=1)
    symbol = mx.sym.Convolution(
        mx.sym.var("x"), mx.sym.var("w"), kernel=(3, 3), num_filter=5, no_bias=True
    )
    plain = run(symbol, x=x, w=w).asnumpy()
    actual = run(emulated(symbol, x="float32", w="float16"), x=x, w=w.astype("float16")).asnumpy()
    assert np.array_equal(actual, plain.astype("float16").astype("float32"))
    assert not np.array_equal(actual, plain)


def test_dense_accumulates_in_float32_not_in_float16():
    # 4096 products of 1/64 * 1: a float16 sum would stop growing at 32
    x, w = np.full((1, 4096), 1 / 64, "f4"), np.ones((1, 4096), "f4")
    symbol = mx.sym.FullyConnected(mx.sym.var("x"), mx.sym.var("w"), num_hidden=1, no_bias=True)
    actual = run(emulated(symbol, x="float32", w="float16"), x=x, w=w.astype("float16"))
    assert actual.asscalar() == 64.0


def test_a_result_past_65504_is_infinite_and_a_tiny_one_zero():
    x = np.array([[300.0], [255.0], [2.0**-13]], "f4")
    w = np.array([[300.0], [255.0], [2.0**-13]], "f4")
    symbol = mx.sym.FullyConnected(mx.sym.var("x"), mx.sym.var("w"), num_hidden=3, no_bias=True)
    actual = run(emulated(symbol, x="float32", w="float16"), x=x, w=w.astype("float16")).asnumpy()
    assert actual[0, 0] == np.inf  # 90000
    assert actual[1, 1] == 65024.0
    assert actual[2, 2] == 0.0  # 2**-26


def dense_gradient(head_gradient):
    net = nn.Dense(1, use_bias=False, in_units=1)
    net.initialize(mx.init.One())
    amp.cast(net, "float16")
    with autograd.record():
        out = net(nd.ones((1, 1)))
    out.backward(nd.array([[head_gradient]]))
    return net.weight.grad()


def test_gradients_round_underflow_and_overflow_as_float16():
    assert dense_gradient(1 + 2.0**-11).asscalar() == 1.0  # ties to even
    assert dense_gradient(2.0**-24).asscalar() == 2.0**-24  # the smallest subnormal
    assert dense_gradient(2.0**-26).asscalar() == 0.0
    assert dense_gradient(65520.0).asscalar() == np.inf
    assert dense_gradient(1.0).dtype == np.float16


def test_a_float16_graph_runs_where_mxnet_has_no_float16_kernel():
    net = nn.Dense(2, in_units=2)
    net.initialize()
    net.cast("float16")
    with pytest.raises(mx.base.MXNetError):
        net(nd.ones((1, 2), dtype="float16")).asnumpy()
    net.cast("float32")
    assert amp.cast(net, "float16")(nd.ones((1, 2))).asnumpy().dtype == np.float32


def test_values_that_only_move_are_not_rounded_again():
    x, w = mx.sym.var("x"), mx.sym.var("w")
    conv = mx.sym.Convolution(x, w, kernel=(1, 1), num_filter=2, no_bias=True, name="conv")
    moved = mx.sym.Pooling(mx.sym.relu(conv.reshape((0, -1, 2, 2))), kernel=(2, 2), stride=(2, 2))
    symbol = emulated(moved, x="float32", w="float16")
    nodes = graph.to_json(symbol)["nodes"]
    rounds = [n for n in nodes if n["op"] == ROUND or n.get("attrs", {}).get("dtype") == "float16"]
    read = [nodes[n["inputs"][0][0]]["name"] for n in rounds if n["inputs"]]
    # A blocked result is rounded again where it becomes plain, for the sake of its gradient.
    assert read == ["x", "conv_plain" if blocked.available() else "conv"]


def test_max_pooling_is_exact_and_average_pooling_is_not():
    assert is_exact("Pooling", {"pool_type": "max"})
    assert is_exact("Pooling", {})
    assert not is_exact("Pooling", {"pool_type": "avg"})
    assert is_exact("Activation", {"act_type": "relu"})
    assert not is_exact("Activation", {"act_type": "tanh"})
    assert not is_exact("Convolution", {})


def test_a_gpu_graph_is_left_alone_and_holds_no_emulation():
    symbol = mx.sym.FullyConnected(mx.sym.var("x"), mx.sym.var("w"), num_hidden=3, no_bias=True)
    dtypes = {"w": "float16"}
    cast = cast_pass.apply(symbol, Policy.parse("float16"), dtypes)
    assert lower(cast, {"x": "float32", **dtypes}, "gpu") is cast
    assert {n["op"] for n in graph.to_json(cast)["nodes"]} == {"null", "amp_cast", "FullyConnected"}


def test_a_graph_without_float16_is_left_alone():
    symbol = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=3)
    assert lower(symbol, {"x": "float32"}, "cpu") is symbol


def test_integers_are_never_rounded():
    ids, w = mx.sym.var("ids"), mx.sym.var("w")
    rows = mx.sym.Embedding(ids, w, input_dim=5000, output_dim=2)
    symbol = emulated(rows, ids="int32", w="float32")
    table = np.arange(10000, dtype="f4").reshape(5000, 2)
    actual = run(symbol, ids=np.array([4099], "i4"), w=table).asnumpy()
    assert actual.tolist() == [[8198.0, 8199.0]]


def test_float16_outputs_and_inputs_stay_float16():
    policy = Policy.parse("compute=float16,output=float16")
    x = mx.sym.var("x")
    dense = mx.sym.FullyConnected(x, mx.sym.var("w"), num_hidden=2, no_bias=True)
    symbol = cast_pass.apply(dense, policy, {"w": "float32"})
    symbol = lower(symbol, {"x": "float16", "w": "float32"}, "cpu")
    out = run(symbol, x=np.ones((1, 2), "float16"), w=np.ones((2, 2), "float32"))
    assert out.dtype == np.float16
    assert out.asnumpy().tolist() == [[2.0, 2.0]]


# ------------------------------------------------------------------------------- deconvolutions

TWOS = {"stride": (2, 2, 2), "pad": (1, 1, 1), "adj": (1, 1, 1)}
DECONVOLUTIONS = [
    # spatial size of the data, channels, filters, groups, attributes
    ((4, 5, 3), 3, 2, 1, {"kernel": (2, 3, 1)}),
    ((3, 3, 4), 4, 6, 2, {"kernel": (3, 2, 3), "stride": (2, 1, 3), "pad": (1, 0, 2)}),
    ((3, 2, 3), 2, 3, 1, {"kernel": (2, 2, 3), "stride": (3, 2, 2), "adj": (2, 1, 0)}),
    ((3, 3, 3), 4, 4, 4, {"kernel": (3, 3, 2), "dilate": (2, 1, 3), "pad": (2, 1, 0)}),
    ((2, 1, 2), 3, 4, 1, {"kernel": (1, 1, 1), "stride": (2, 2, 2), "adj": (1, 0, 1)}),
    ((3, 3, 3), 1, 2, 1, {"kernel": (4, 3, 3), "dilate": (1, 2, 1), "num_group": 1, **TWOS}),
    ((3, 4), 4, 2, 2, {"kernel": (3, 2), "stride": (2, 3), "pad": (1, 0), "adj": (1, 2)}),
    ((5,), 2, 4, 2, {"kernel": (3,), "stride": (2,), "dilate": (2,), "adj": (1,)}),
]


def deconvolution(x, w, b, attrs, groups, head):
    """Result and gradients of a deconvolution in float64, by its definition."""
    dims = x.ndim - 2
    stride, dilate = (np.array(attrs.get(k, (1,) * dims)) for k in ("stride", "dilate"))
    pad, adj = (np.array(attrs.get(k, (0,) * dims)) for k in ("pad", "adj"))
    kernel = np.array(attrs["kernel"])
    full = stride * (np.array(x.shape[2:]) - 1) + dilate * (kernel - 1) + 1
    inner = tuple(slice(p, p + n) for p, n in zip(pad, full - 2 * pad + adj))
    filters = w.shape[1] * groups
    sums = (0, *range(2, x.ndim))
    parts = np.split(x, groups, axis=1), np.split(w, groups, axis=0)
    out = np.zeros((len(x), filters, *(full + adj)))
    head_full = np.zeros_like(out)
    head_full[(slice(None), slice(None), *inner)] = head
    dx, dw = [np.zeros_like(p) for p in parts[0]], [np.zeros_like(p) for p in parts[1]]
    for at in np.ndindex(*kernel):
        where = tuple(
            slice(k * d, k * d + s * (n - 1) + 1, s)
            for k, d, s, n in zip(at, dilate, stride, x.shape[2:])
        )
        for g, (data, weight) in enumerate(zip(*parts)):
            channels = slice(g * w.shape[1], (g + 1) * w.shape[1])
            tap = (slice(None), slice(None), *at)
            spot = (slice(None), channels, *where)
            out[spot] += np.einsum("nc...,cf->nf...", data, weight[tap])
            dx[g] += np.einsum("nf...,cf->nc...", head_full[spot], weight[tap])
            dw[g][tap] += np.tensordot(data, head_full[spot], (sums, sums))
    out = out[(slice(None), slice(None), *inner)] + b.reshape(-1, *[1] * dims)
    return out, np.concatenate(dx, axis=1), np.concatenate(dw, axis=0), head.sum(sums)


@pytest.mark.parametrize("weights", ["float16", "float32"])
@pytest.mark.parametrize("case", range(len(DECONVOLUTIONS)))
def test_deconvolutions_are_their_definition_rounded_once(case, weights):
    size, channels, filters, groups, attrs = DECONVOLUTIONS[case]
    x = halves(2, channels, *size)
    w, b = halves(channels, filters // groups, *attrs["kernel"], seed=1), halves(filters, seed=2)
    options = {**attrs, "num_filter": filters, "num_group": groups, "no_bias": False}
    symbol = mx.sym.Deconvolution(*map(mx.sym.var, "xwb"), **options)
    dtypes = {"x": "float32", "w": weights, "b": weights}
    run = nd.CachedOp(emulated(symbol, **dtypes))
    arrays = [nd.array(v, dtype=dtypes[n]) for n, v in zip("xwb", (x, w, b))]
    for array in arrays:
        array.attach_grad()
    for _ in range(2):
        with autograd.record():
            out = run(*arrays)
        head = halves(*out.shape, seed=3)
        out.backward(nd.array(head))
    references = deconvolution(
        *(v.astype("f8") for v in (x, w, b)), attrs, groups, head.astype("f8")
    )
    for actual, expected in zip([out, *(a.grad for a in arrays)], references):
        expected = expected.astype("float16").astype("float32")
        actual = actual.asnumpy().astype("float32")
        assert actual.shape == expected.shape
        assert (
            np.mean(actual != expected) <= 0.01
        )  # a sum in another order may be rounded differently
        np.testing.assert_allclose(actual, expected, rtol=2e-3, atol=1e-3)


def test_conv3d_transpose_trains_under_every_float16_policy():
    for policy in ("float16", "mixed_float16"):
        net = nn.HybridSequential()
        net.add(nn.Conv3DTranspose(4, 3, strides=2, in_channels=2), nn.Activation("relu"))
        net.add(nn.Conv3DTranspose(2, (1, 2, 3), groups=2, in_channels=4, output_padding=0))
        net.initialize(mx.init.Normal(0.3))
        amp.cast(net, policy)
        trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.2}, loss_scale=128)
        x = nd.array(halves(2, 2, 2, 3, 2))
        losses = []
        for _ in range(4):
            with autograd.record():
                loss = ((net(x) - 1) ** 2).mean()
            trainer.backward(loss)
            assert trainer.step(1).applied
            losses.append(loss.asscalar())
        assert losses[-1] < 0.9 * losses[0]


def test_a_3d_deconvolution_with_a_target_shape_is_refused_in_one_sentence():
    attrs = {"kernel": (2, 2, 2), "num_filter": 2, "target_shape": (4, 4, 4)}
    symbol = mx.sym.Deconvolution(mx.sym.var("x"), mx.sym.var("w"), name="up", **attrs)
    with pytest.raises(ValueError) as error:
        emulated(symbol, x="float32", w="float16")
    assert str(error.value) == (
        "up is a 3-D Deconvolution with target_shape, which cannot be emulated in float16 on a "
        "CPU: give it pad and adj instead, or pin it to float32."
    )
