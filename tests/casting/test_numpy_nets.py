"""Nets written for `npx.set_np()`, as those of the book Dive into Deep Learning (D2L)."""

import numpy as np
import pytest

import gluon_amp as amp
from tests import kinds

import mxnet as mx
from mxnet import autograd, gluon, npx
from mxnet.gluon import nn


@pytest.fixture(autouse=True)
def numpy_arrays():
    npx.set_np()
    yield
    npx.reset_np()


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


def tokens():
    return [kinds.array(np.random.RandomState(0).randint(0, 11, (3, 6)), dtype="int32")]


def run(net, data):
    """Return outputs and gradients in one row each, for a loss of Gluon."""
    loss_function = gluon.loss.SoftmaxCrossEntropyLoss()
    with autograd.record():
        out = net(*data)
        loss = loss_function(out, mx.np.zeros(out.shape[:-1])).sum() * 64
    loss.backward()
    params = [p for p in net.collect_params().values() if p.grad_req != "null"]
    arrays = [out, loss, *(p.data() for p in params), *(p.grad() for p in params)]
    assert {type(array) for array in arrays} == {mx.np.ndarray}
    grads = [p.grad().asnumpy().astype(np.float32).ravel() for p in params]
    return out.asnumpy().ravel(), np.concatenate(grads)


@pytest.mark.parametrize("when", ["before initialize", "after a pass"])
def test_outputs_and_gradients_are_near_those_of_float32(when):
    def new(policy):
        mx.random.seed(3)
        net = Encoder()
        if policy and when == "before initialize":
            amp.cast(net, policy)
        net.initialize(mx.init.Uniform(0.5))
        if policy and when == "after a pass":
            net(*tokens())
            amp.cast(net, policy)
        return net

    expected = run(new(None), tokens())
    net = new("float16")
    for found, wide in zip(run(net, tokens()), expected):
        assert 0 < np.linalg.norm(found - wide) < 2.0**-7 * np.linalg.norm(wide)
    amp.cast(net, "float32")
    run(net, tokens())


def test_an_export_runs_in_stock_mxnet(tmp_path):
    net = Encoder()
    net.initialize(mx.init.Uniform(0.5))
    amp.cast(net, "float16")
    expected = net(*tokens()).asnumpy()
    path = str(tmp_path / "net")
    net.export(path)
    stock = gluon.SymbolBlock.imports(f"{path}-symbol.json", ["data"], f"{path}-0000.params")
    found = stock(*tokens())
    assert type(found) is mx.np.ndarray
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=0.01, atol=0.01)
    # and a cast one trains again
    amp.cast(stock, "float16")
    trainer = amp.Trainer(stock.collect_params(), "adam", loss_scale=8)
    with autograd.record():
        loss = stock(*tokens()).sum()
    trainer.backward(loss)
    assert trainer.step(1).applied
