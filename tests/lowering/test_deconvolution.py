"""Deconvolutions by MXNet's own kernels: the gradients of convolutions, rounded once."""

import numpy as np
import pytest

from gluon_amp import kernels
from gluon_amp.lowering import lower
from gluon_amp.policy import Policy, cast_pass
from tests.kernels.images import normal, rounded
from tests.kernels.products import Deconvolution
from tests.lowering import back_through, emulated
from tests.marks import needs_bfloat16

import mxnet as mx
from mxnet import autograd, nd


def up(size, channels, filters, groups, **sizes):
    return Deconvolution((2, channels, *size), filters, num_group=groups, **sizes)


def results(run, inputs, head):
    """Return the result and the gradients of the second of two passes, by name in float32."""
    for array in inputs.values():
        array.attach_grad()
    for _ in range(2):
        out = back_through(run, *inputs.values(), head=nd.array(head))
    found = {"result": out, **{name: array.grad for name, array in inputs.items()}}
    return {name: array.asnumpy().astype("float32") for name, array in found.items()}


TWOS = {"stride": (2, 2, 2), "pad": (1, 1, 1), "adj": (1, 1, 1)}
DECONVOLUTIONS = [
    up((4, 5, 3), 3, 2, 1, kernel=(2, 3, 1)),
    up((3, 3, 4), 4, 6, 2, kernel=(3, 2, 3), stride=(2, 1, 3), pad=(1, 0, 2)),
    up((3, 2, 3), 2, 3, 1, kernel=(2, 2, 3), stride=(3, 2, 2), adj=(2, 1, 0)),
    up((3, 3, 3), 4, 4, 4, kernel=(3, 3, 2), dilate=(2, 1, 3), pad=(2, 1, 0)),
    up((2, 1, 2), 3, 4, 1, kernel=(1, 1, 1), stride=(2, 2, 2), adj=(1, 0, 1)),
    up((3, 3, 3), 1, 2, 1, kernel=(4, 3, 3), dilate=(1, 2, 1), **TWOS),
    up((3, 4), 4, 2, 2, kernel=(3, 2), stride=(2, 3), pad=(1, 0), adj=(1, 2)),
    up((5,), 2, 4, 2, kernel=(3,), stride=(2,), dilate=(2,), adj=(1,)),
]


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("case", DECONVOLUTIONS, ids=lambda case: str(case.sizes))
def test_deconvolutions_are_gradients_of_convolutions_rounded_once(case, native, monkeypatch):
    if not native:
        monkeypatch.setattr(kernels, "available", lambda: False)
    parameters = "float16" if case.sizes["num_group"] == 1 else "float32"
    symbol = mx.sym.Deconvolution(*map(mx.sym.var, case.names()), **case.options())
    dtypes = {"data": "float32", "weight": parameters, "bias": parameters}
    run = nd.CachedOp(emulated(symbol, **dtypes))
    arrays = case.arrays("float16")
    expected, head = case.expected(arrays, lambda shape: normal(shape, "float16", 3))
    inputs = {name: nd.array(arrays[name], dtype=dtypes[name]) for name in case.names()}
    for name, actual in results(run, inputs, head).items():
        wanted = rounded(expected[name], "float16")
        assert actual.shape == wanted.shape
        # a sum in another order may be rounded differently
        assert np.mean(actual != wanted) <= 0.01
        np.testing.assert_allclose(actual, wanted, rtol=2e-3, atol=1e-3)


@pytest.mark.cpu_kind
@needs_bfloat16
@pytest.mark.parametrize("without", ["the library", "the blocked layout"])
def test_a_deconvolution_in_bfloat16_that_is_not_blocked(without, monkeypatch):
    """There MXNet computes it in float32, which is rounded once; in a loop, for example."""
    case = up((3, 4), 4, 2, 2, kernel=(3, 2), stride=(2, 3), pad=(1, 0), adj=(1, 2), dilate=(2, 2))
    symbol = mx.sym.Deconvolution(*map(mx.sym.var, case.names()), **case.options())
    if without == "the library":
        monkeypatch.setattr(kernels, "available", lambda: False)
    else:
        images = mx.sym.expand_dims(mx.sym.var("data"), 0)
        body = symbol
        variables = [mx.sym.var(name) for name in case.names()[1:]]
        symbol = mx.sym.contrib.foreach(
            lambda x, _: (mx.sym.Deconvolution(x, *variables, **case.options()), []), images, []
        )[0][0]
        symbol = mx.sym.reshape(symbol, shape=(-3, -2))
        assert body.list_arguments() == symbol.list_arguments()
    cast = cast_pass.apply(symbol, Policy.parse("bfloat16"), {})
    dtypes = dict.fromkeys(case.names(), "float32")
    run, arrays = nd.CachedOp(lower(cast, dtypes, "cpu")), case.arrays("bfloat16")
    expected, head = case.expected(arrays, lambda shape: normal(shape, "bfloat16", 3))
    inputs = {name: nd.array(arrays[name]) for name in symbol.list_inputs()}
    for name, actual in results(run, inputs, head).items():
        wanted = rounded(expected[name], "bfloat16")
        np.testing.assert_allclose(actual, wanted, rtol=2.0**-7, atol=1e-5, err_msg=name)


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
    case = Deconvolution((1, 3, 2, 2), 2, bias=False, kernel=(2, 2), stride=(2, 2))
    x, w = mx.sym.var("x"), mx.sym.var("w")
    direct = mx.sym.Deconvolution(x, w, **case.options())
    shared = mx.sym.Group([direct, mx.sym.Deconvolution(x * 2, w, **case.options())])
    computed = mx.sym.Deconvolution(x, w * 1, **case.options())
    assert lower(direct, {}, "cpu") is direct
    arrays = case.arrays("float16")
    expected, _ = case.expected(arrays, lambda shape: np.ones(shape, np.float32))
    for symbol, times in ((shared, 3), (computed, 1)):  # one of two readers has twice the data
        run = nd.CachedOp(lower(symbol, {}, "cpu"))
        data, weight = (nd.array(arrays[name]) for name in ("data", "weight"))
        weight.attach_grad()
        with autograd.record():
            out = run(data, weight)
            total = sum(out) if isinstance(out, list) else out
        total.backward()
        np.testing.assert_allclose(weight.grad.asnumpy(), times * expected["weight"], rtol=1e-5)
