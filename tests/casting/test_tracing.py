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


class Encoder(nn.HybridBlock):
    """Self-attention written with `F.np`: products of arrays of four dimensions, sums, a mask."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.position = self.params.get("position", shape=(1, 6, 8))
        self.query, self.key, self.value = (nn.Dense(8, flatten=False) for _ in range(3))
        self.norm, self.out = nn.LayerNorm(), nn.Dense(3)

    def hybrid_forward(self, F, tokens, position):
        x = self.embedding(tokens) + position
        heads = [
            F.np.transpose(F.npx.reshape(part(x), (-2, -2, 2, -1)), (0, 2, 1, 3))
            for part in (self.query, self.key, self.value)
        ]
        scores = F.np.matmul(heads[0], F.np.swapaxes(heads[1], 2, 3)) / 2.0
        mask = F.np.expand_dims(F.np.expand_dims(tokens < 9, 1), 1)
        scores = F.np.where(mask, scores, -1e9 * F.np.ones_like(scores))
        mixed = F.np.einsum("bhqk,bhkd->bqhd", F.npx.softmax(scores), heads[2])
        y = self.norm(x + F.npx.reshape(mixed, (-2, -2, -1)))
        statistics = [F.np.mean(y, axis=1), F.np.std(y, axis=1), F.np.sum(y, axis=1)]
        return self.out(F.np.concatenate(statistics, axis=1))


@pytest.mark.parametrize("later", [True, False])
def test_a_net_of_mx_np_that_is_traced_again_after_the_mode_has_ended(later, tmp_path):
    with mx.util.np_shape(True), mx.util.np_array(True):
        net, tokens = Encoder(), mx.np.array(np.random.RandomState(0).randint(0, 11, (3, 6)))
        net.initialize(mx.init.Uniform(0.5))
        expected = net(tokens).asnumpy()
        amp.cast(net, "float16")
        if not later:
            net(tokens)
    out = net(tokens)
    assert type(out) is mx.np.ndarray and out.dtype == np.float32
    assert 0 < np.linalg.norm(out.asnumpy() - expected) < 2.0**-7 * np.linalg.norm(expected)
    backward(net, tokens)
    net.export(str(tmp_path / "net"))
    files = str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params")
    found = gluon.SymbolBlock.imports(*files)(tokens)
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("layer", [rnn.LSTM, rnn.GRU])
def test_a_recurrent_layer_of_mx_np_creates_states_for_any_batch(layer):
    """Its zeros have a batch of size 0, which is unknown in mx.nd, and a size in mx.np."""
    net = nn.HybridSequential()
    net.add(nn.Dense(4, flatten=False), layer(3))
    with mx.util.np_shape(True), mx.util.np_array(True):
        net.initialize()
        x = mx.np.array(np.random.RandomState(0).normal(size=(3, 2, 4)), dtype="float32")
        expected = net(x).asnumpy()
        amp.cast(net, "float16")
        for batch in (2, 1):
            found = net(x[:, :batch]).asnumpy()
            np.testing.assert_allclose(found, expected[:, :batch], rtol=0.01, atol=0.01)
