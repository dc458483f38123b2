"""Traces of a net: modes, hooks, structures of inputs, and forwards that cannot be traced."""

import warnings

import numpy as np
import pytest

import gluon_amp as amp
from tests.casting.nets import Net, backward

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn, rnn


def test_a_forward_that_depends_on_autograds_mode():
    def detect(net, F, x):
        scores = net.dense(x)
        if autograd.is_recording():
            scores = scores * 2
        return scores if autograd.is_training() else (F.argmax(scores, axis=1), scores)

    net, x = Net(detect, dense=nn.Dense(4, in_units=3)), nd.ones((2, 3))
    net.initialize()
    amp.cast(net, "float16")
    for _ in range(2):
        ids, scores = net(x)
        assert ids.shape == (2,) and scores.dtype == np.float32
        with autograd.train_mode():
            assert np.array_equal(net(x).asnumpy(), scores.asnumpy())
        with autograd.record(train_mode=False):
            assert np.array_equal(net(x)[1].asnumpy(), 2 * scores.asnumpy())
        assert backward(net, x).shape == (2, 4)


def test_hooks_of_a_net_get_arrays_and_not_the_symbols_of_a_trace():
    net = nn.Dense(2, in_units=3)
    net.initialize()
    seen = []
    net.register_forward_pre_hook(lambda block, x: seen.append(x[0].asnumpy().shape))
    net.register_forward_hook(lambda block, x, out: seen.append(out.asnumpy().shape))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MXNet's, of hooks in a hybridized net
        amp.cast(net, "float16")
    net(nd.ones((1, 3)))
    assert seen == [(1, 3), (1, 2)]


def attention(net, F, x):
    """Self-attention written with `F.np`, a mask in it."""
    scores = F.np.matmul(net.query(x), F.np.swapaxes(net.key(x), 1, 2)) / 2.0
    scores = F.np.where(scores < 9, scores, -1e9 * F.np.ones_like(scores))
    mixed = F.np.einsum("bqk,bkd->bqd", F.npx.softmax(scores), net.value(x))
    return net.out(F.np.concatenate([F.np.mean(mixed, axis=1), F.np.std(mixed, axis=1)], axis=1))


@pytest.mark.parametrize("later", [True, False])
def test_a_net_of_mx_np_that_is_traced_again_after_the_mode_has_ended(later, tmp_path):
    with mx.util.np_shape(True), mx.util.np_array(True):
        parts = {name: nn.Dense(8, flatten=False) for name in ("query", "key", "value")}
        net = Net(attention, out=nn.Dense(3), **parts)
        x = mx.np.array(np.random.RandomState(0).normal(size=(3, 6, 8)), dtype="float32")
        net.initialize(mx.init.Uniform(0.5))
        expected = net(x).asnumpy()
        amp.cast(net, "float16")
        if not later:
            net(x)
    out = net(x)
    assert type(out) is mx.np.ndarray and out.dtype == np.float32
    assert 0 < np.linalg.norm(out.asnumpy() - expected) < 2.0**-7 * np.linalg.norm(expected)
    backward(net, x)
    net.export(str(tmp_path / "net"))
    files = str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params")
    found = gluon.SymbolBlock.imports(*files)(x)
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("layer", [rnn.LSTM, rnn.GRU])
def test_a_recurrent_layer_of_mx_np_creates_states_for_any_batch(layer):
    """Its zeros have a batch of size 0, which is unknown in mx.nd, and a size in mx.np."""
    net, deferred = nn.HybridSequential(), nn.HybridSequential()
    for one in net, deferred:
        one.add(nn.Dense(4, flatten=False), layer(3))
    with mx.util.np_shape(True), mx.util.np_array(True):
        net.initialize()
        deferred.initialize()
        x = mx.np.array(np.random.RandomState(0).normal(size=(3, 2, 4)), dtype="float32")
        expected = net(x).asnumpy()
        amp.cast(net, "float16")
        for batch in (2, 1):
            found = net(x[:, :batch]).asnumpy()
            np.testing.assert_allclose(found, expected[:, :batch], rtol=0.01, atol=0.01)
        assert amp.cast(deferred, "float16")(x).shape == (3, 2, 3)  # of unknown shapes before
