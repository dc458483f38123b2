"""lowering/sequences.py: what the C++ library computes for sequences, with the same values."""

import numpy as np
import pytest

from gluon_amp.graph.own_operators import (
    BATCH_DOT,
    GELU,
    LAYER_NORM,
    LOG_SOFTMAX,
    PICKED_LOG_SOFTMAX,
    SOFTMAX,
    SPLIT,
)
from gluon_amp.lowering import sequences
from tests.lowering import on_symbols, ops
from tests.marks import needs_library

import mxnet as mx
from mxnet import nd
from mxnet.contrib.amp.amp import bfloat16

pytestmark = [needs_library, pytest.mark.cpu_kind]

use_row_kernels = on_symbols(sequences.use_row_kernels)


def norm(x, **attrs):
    return mx.sym.LayerNorm(x, mx.sym.var("gamma"), mx.sym.var("beta"), **attrs)


def cast(x, dtype):
    return mx.sym.amp_cast(x, dtype=dtype)


X, LABEL = mx.sym.var("x"), mx.sym.var("label")
LOGS, SCALED = mx.sym.log_softmax(X), X * 2


@pytest.mark.parametrize(
    "symbol, expected",
    [
        (norm(X), [LAYER_NORM]),
        (norm(X, eps=0.25), [LAYER_NORM]),
        (norm(X, axis=1), ["LayerNorm"]),
        (norm(X, output_mean_var=True)[0], ["LayerNorm"]),
        (mx.sym.batch_dot(X, mx.sym.square(X), transpose_b=True), ["square", BATCH_DOT]),
        (mx.sym.batch_dot(X, X, transpose_a=True), [BATCH_DOT]),
        (mx.sym.softmax(X), [SOFTMAX]),
        (mx.sym.log_softmax(X), [LOG_SOFTMAX]),
        (mx.sym.LeakyReLU(X, act_type="gelu"), [GELU]),
        (mx.sym.LeakyReLU(X, act_type="elu"), ["LeakyReLU"]),
        (mx.sym.pick(LOGS, LABEL), [PICKED_LOG_SOFTMAX]),
        (mx.sym.pick(LOGS, LABEL, keepdims=True), [PICKED_LOG_SOFTMAX]),
        (mx.sym.pick(LOGS, LABEL, axis=1), [LOG_SOFTMAX, "pick"]),
        (mx.sym.pick(LOGS, LABEL, mode="wrap"), [LOG_SOFTMAX, "pick"]),
        (mx.sym.pick(LOGS, mx.sym.var("n")), [LOG_SOFTMAX, "pick"]),
        (
            mx.sym.pick(LOGS, LABEL) + mx.sym.mean(LOGS, axis=-1),
            [LOG_SOFTMAX, "pick", "mean", "elemwise_add"],
        ),
        (mx.sym.softmax(X, axis=1), ["softmax"]),
        (mx.sym.softmax(X, temperature=2.0), [SOFTMAX]),
        (mx.sym.softmax(X, temperature=-2.0), ["softmax"]),
        (mx.sym.softmax(X, temperature=0.0), ["softmax"]),
        (mx.sym.pick(mx.sym.log_softmax(X, temperature=2.0), LABEL), [LOG_SOFTMAX, "pick"]),
        (mx.sym.softmax(X * 0.125), [SOFTMAX]),
        (mx.sym.log_softmax(X / 8), [LOG_SOFTMAX]),
        (mx.sym.softmax(X * -1), ["_mul_scalar", SOFTMAX]),
        (mx.sym.softmax(X / 0), ["_div_scalar", SOFTMAX]),
        (mx.sym.softmax(X * 1e-40), ["_mul_scalar", SOFTMAX]),
        (mx.sym.softmax(SCALED) + SCALED, ["_mul_scalar", SOFTMAX, "elemwise_add"]),
        (mx.sym.softmax(X, length=mx.sym.var("n"), use_length=True), ["softmax"]),
        (mx.sym.softmax(X, dtype="float64"), ["softmax"]),
        (mx.sym.split(X, 3), [SPLIT]),
        (mx.sym.split(X, 3, squeeze_axis=True), ["SliceChannel"]),
        (mx.sym.split_v2(X, (2, 3)), ["_split_v2"]),
        (mx.sym.split_v2(X, 3, axis=1), [SPLIT]),
        (mx.sym.np.split(X.as_np_ndarray(), 2, axis=-1)[1], [SPLIT]),
    ],
)
def test_what_is_replaced(symbol, expected):
    result = use_row_kernels(symbol, {"x": "float32", "n": "int32"})
    assert ops(result) == expected
    assert (result is symbol) == (not any(op.startswith("_gluon_amp") for op in expected))
    assert result.list_outputs() == symbol.list_outputs()
    if result is not symbol:
        arrays = arrays_of(symbol)
        ours, theirs = (one.eval(ctx=mx.cpu(), **arrays) for one in (result, symbol))
        for one, other in zip(ours, theirs):
            values = other.asnumpy()
            if np.isfinite(values).all():  # no numbers divided by 0
                np.testing.assert_allclose(one.asnumpy(), values, rtol=1e-5, atol=1e-6)


def arrays_of(symbol):
    """Return random data and labels for a symbol, by name."""
    shapes, _, _ = symbol.infer_shape(x=(6, 3, 6))
    random, arrays = np.random.RandomState(0), {}
    for name, shape in zip(symbol.list_arguments(), shapes):
        labels = name in ("label", "n")
        values = random.randint(0, 3, shape) if labels else random.normal(size=shape)
        arrays[name] = nd.array(values, dtype="int32" if name == "n" else "float32")
    return arrays


def test_other_dtypes_stay():
    for symbol in (mx.sym.softmax(X), mx.sym.split(X, 3)):
        for dtype in ("float64", "float16", "int32"):
            assert use_row_kernels(symbol, {"x": dtype}) is symbol


def test_a_layer_norm_between_casts_has_none():
    low = mx.sym.Activation(cast(X, bfloat16), act_type="relu")
    y = cast(norm(cast(low, "float32")), bfloat16)
    alone = use_row_kernels(mx.sym.Activation(y, act_type="relu"), {})
    assert ops(alone) == ["amp_cast", "Activation", LAYER_NORM, "Activation"]
    assert alone.infer_type(x="float32")[1] == y.infer_type(x="float32")[1]
    # What another operator reads in float32 is not rounded
    wide = norm(cast(low, "float32"))
    both = use_row_kernels(mx.sym.Group([cast(wide, bfloat16), mx.sym.exp(wide)]), {})
    assert sorted(ops(both)) == sorted(["amp_cast", "Activation", LAYER_NORM, "amp_cast", "exp"])


def test_without_the_library_nothing_changes(monkeypatch):
    monkeypatch.setattr(sequences.blocked, "available", lambda: False)
    symbol = norm(X)
    assert use_row_kernels(symbol, {}) is symbol
