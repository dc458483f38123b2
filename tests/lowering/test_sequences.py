"""lowering/sequences.py: what the C++ library computes for sequences, with the same values."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.graph import to_json
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
from tests.lowering import on_symbols
from tests.marks import needs_library

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import nn

pytestmark = [needs_library, pytest.mark.cpu_kind]

use_row_kernels = on_symbols(sequences.use_row_kernels)
WIDTH = 12


class Attention(nn.HybridBlock):
    """A layer of a transformer, with one head."""

    def __init__(self, prefix):
        super().__init__(prefix=prefix)
        with self.name_scope():
            self.norm = nn.LayerNorm(in_channels=WIDTH)
            self.qkv = nn.Dense(3 * WIDTH, flatten=False, in_units=WIDTH)

    def hybrid_forward(self, F, x):
        q, k, v = F.split(self.qkv(self.norm(x)), 3, axis=2)
        return x + F.batch_dot(F.softmax(F.batch_dot(q, k, transpose_b=True) / 4), v)


class NumpyAttention(Attention):
    def hybrid_forward(self, F, x):
        q, k, v = F.np.split(self.qkv(self.norm(x)), 3, axis=-1)
        scores = F.npx.batch_dot(q, k, transpose_b=True) / 4
        return x + F.npx.batch_dot(F.npx.softmax(scores), v)


def trained(block, policy):
    """Return the result of a cast net, and its gradients."""
    mx.random.seed(3)
    net = nn.HybridSequential(prefix="net_")
    net.add(nn.Dense(WIDTH, flatten=False, in_units=WIDTH, prefix="in_"), block("a_"), block("b_"))
    net.initialize(mx.init.Normal(0.3))
    amp.cast(net, policy)
    net.hybridize(static_alloc=True)
    x = nd.array(np.random.RandomState(0).normal(size=(3, 5, WIDTH)))
    x = x.as_np_ndarray() if block is NumpyAttention else x
    for parameter in net.collect_params().values():
        parameter.grad_req = "add"
    for _ in range(2):
        with autograd.record():
            out = net(x)
        out.backward()
    return [a.asnumpy() for a in (out, *(p.grad() for p in net.collect_params().values()))]


@pytest.mark.parametrize("policy", ["float16", "mixed_float16", "bfloat16"])
def test_a_transformer(arrays, policy, monkeypatch):
    """Values differ by rounding in float32, so a few are rounded to the neighbour."""
    block = NumpyAttention if arrays is mx.np else Attention
    ours = trained(block, policy)
    monkeypatch.setattr(sequences, "use_row_kernels", lambda graph: graph)
    theirs = trained(block, policy)
    unit = 2.0**-8 if policy == "bfloat16" else 2.0**-11
    for one, other in zip(ours, theirs):
        np.testing.assert_allclose(one, other, rtol=0, atol=2 * unit * np.abs(other).max())
        assert np.linalg.norm(one - other) <= unit * np.linalg.norm(other)


def ops(symbol):
    return [node["op"] for node in to_json(symbol)["nodes"] if node["op"] != "null"]


def norm(x, **attrs):
    return mx.sym.LayerNorm(x, mx.sym.var("gamma"), mx.sym.var("beta"), **attrs)


def cast(x, dtype):
    low = np.dtype([("bfloat16", np.uint16)])
    return mx.sym.amp_cast(x, dtype=low if dtype == "bfloat16" else dtype)


X, LABEL = mx.sym.var("x"), mx.sym.var("label")
LOGS, SCALED = mx.sym.log_softmax(X), X * 2


@pytest.mark.parametrize(
    "symbol, expected",
    [
        (norm(X), [LAYER_NORM]),
        (norm(X, axis=1), ["LayerNorm"]),
        (norm(X, output_mean_var=True)[0], ["LayerNorm"]),
        (mx.sym.batch_dot(X, X, transpose_b=True), [BATCH_DOT]),
        (mx.sym.softmax(X), [SOFTMAX]),
        (mx.sym.log_softmax(X), [LOG_SOFTMAX]),
        (mx.sym.LeakyReLU(X, act_type="gelu"), [GELU]),
        (mx.sym.LeakyReLU(X, act_type="elu"), ["LeakyReLU"]),
        (mx.sym.pick(LOGS, LABEL), [PICKED_LOG_SOFTMAX]),
        (mx.sym.pick(LOGS, LABEL, axis=1), [LOG_SOFTMAX, "pick"]),
        (mx.sym.pick(LOGS, LABEL, mode="wrap"), [LOG_SOFTMAX, "pick"]),
        (mx.sym.pick(LOGS, mx.sym.var("n")), [LOG_SOFTMAX, "pick"]),
        (
            mx.sym.pick(LOGS, LABEL) + mx.sym.mean(LOGS),
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
    ],
)
def test_what_is_replaced(symbol, expected):
    result = use_row_kernels(symbol, {"x": "float32", "n": "int32"})
    assert ops(result) == expected
    assert (result is symbol) == (not any(op.startswith("_gluon_amp") for op in expected))
    assert result.list_outputs() == symbol.list_outputs()


def test_other_dtypes_stay():
    for symbol in (mx.sym.softmax(X), mx.sym.split(X, 3)):
        for dtype in ("float64", "float16", "int32"):
            assert use_row_kernels(symbol, {"x": dtype}) is symbol


def test_a_layer_norm_between_casts_has_none():
    low = mx.sym.Activation(cast(X, "bfloat16"), act_type="relu")
    y = cast(norm(cast(low, "float32")), "bfloat16")
    alone = use_row_kernels(mx.sym.Activation(y, act_type="relu"), {})
    assert ops(alone) == ["amp_cast", "Activation", LAYER_NORM, "Activation"]
    # What another operator reads in float32 is not rounded
    wide = norm(cast(low, "float32"))
    both = use_row_kernels(mx.sym.Group([cast(wide, "bfloat16"), mx.sym.exp(wide)]), {})
    assert sorted(ops(both)) == sorted(["amp_cast", "Activation", LAYER_NORM, "amp_cast", "exp"])


def test_without_the_library_nothing_changes(monkeypatch):
    monkeypatch.setattr(sequences.blocked, "available", lambda: False)
    symbol = norm(X)
    assert use_row_kernels(symbol, {}) is symbol
