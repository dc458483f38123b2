"""Deconvolutions by MXNet's own kernels: their definition, rounded once."""

import numpy as np
import pytest

from gluon_amp.lowering import lower
from gluon_amp.policy import Policy, cast_pass

import mxnet as mx
from mxnet import autograd, nd


def halves(*shape, seed=0):
    """Random float16 values in a float32 array."""
    return np.random.RandomState(seed).normal(size=shape).astype(np.float16).astype(np.float32)


def emulated(symbol, **dtypes):
    return lower(cast_pass.apply(symbol, Policy.parse("float16"), dtypes), dtypes, "cpu")


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


@pytest.mark.parametrize("case", DECONVOLUTIONS)
def test_deconvolutions_are_their_definition_rounded_once(case):
    size, channels, filters, groups, attrs = case
    weights = "float16" if groups == 1 else "float32"
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
        # a sum in another order may be rounded differently
        assert np.mean(actual != expected) <= 0.01
        np.testing.assert_allclose(actual, expected, rtol=2e-3, atol=1e-3)


def test_a_3d_deconvolution_with_a_target_shape_is_refused_in_one_sentence():
    attrs = {"kernel": (2, 2, 2), "num_filter": 2, "target_shape": (4, 4, 4)}
    symbol = mx.sym.Deconvolution(mx.sym.var("x"), mx.sym.var("w"), name="up", **attrs)
    with pytest.raises(ValueError) as error:
        emulated(symbol, x="float32", w="float16")
    assert str(error.value) == (
        "up is a 3-D Deconvolution with target_shape, which cannot be emulated in float16 on a "
        "CPU: give it pad and adj instead, or pin it to float32."
    )


def test_weights_that_are_not_the_users_array_avoid_onednn():
    """In float32, where a weight has several readers or is computed, oneDNN's gradient fails."""
    attrs = {"kernel": (2, 2), "stride": (2, 2), "num_filter": 2, "no_bias": True}
    x, w = mx.sym.var("x"), mx.sym.var("w")
    direct = mx.sym.Deconvolution(x, w, **attrs)
    shared = mx.sym.Group([direct, mx.sym.Deconvolution(x * 2, w, **attrs)])
    computed = mx.sym.Deconvolution(x, w * 1, **attrs)
    assert lower(direct, {}, "cpu") is direct
    for symbol in (shared, computed):
        run = nd.CachedOp(lower(symbol, {}, "cpu"))
        data, weight = nd.array(halves(1, 3, 2, 2)), nd.array(halves(3, 2, 2, 2, seed=1))
        weight.attach_grad()
        with autograd.record():
            out = run(data, weight)
            total = sum(out) if isinstance(out, list) else out
        total.backward()
        arrays = (data.asnumpy(), weight.asnumpy(), np.zeros(2))
        expected = deconvolution(*arrays, attrs, 1, np.ones((1, 2, 4, 4), "f4"))[2]
        times = 3 if symbol is shared else 1  # one of two readers has twice the data
        np.testing.assert_allclose(weight.grad.asnumpy(), times * expected, rtol=1e-5)
