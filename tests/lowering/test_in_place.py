"""Operators whose gradient MXNet computes wrongly in place get that of imperative mode."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.graph import to_json
from gluon_amp.lowering import lower
from tests.lowering import back_through

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import nn

POLICIES = ["float16", "bfloat16", "compute=float8_e4m3,gradients=float8_e5m2"]
DATA = np.array([[-1, 2, -3, 4], [2, -1, 0, 1]], np.float32)
SLOPE = 0.25


class Twice(nn.HybridSequential):
    """Its last block is PReLU or not; the result of PReLU has one reader or two."""

    def __init__(self, readers, channels, last):
        super().__init__()
        self.readers = readers
        self.add(nn.Dense(4, in_units=4, use_bias=False))
        self.add(nn.PReLU(mx.init.Constant(SLOPE), in_channels=channels))
        if not last:
            self.add(nn.Dense(1, in_units=4, use_bias=False))

    def hybrid_forward(self, F, x):
        hidden = self[1](self[0](x))
        for _ in range(self.readers - 1):
            hidden = hidden + F.relu(hidden) * 0
        return self[2](hidden) if len(self) > 2 else hidden


def network(readers=1, channels=1, last=False):
    net = Twice(readers, channels, last)
    net.initialize(mx.init.One())
    net[0].weight.set_data(nd.array(np.eye(4)))
    return net


def gradients(net, passes=1, train_mode=True):
    data = nd.array(DATA)
    data.attach_grad()
    for _ in range(passes):
        with autograd.record(train_mode=train_mode):
            loss = (net(data) * 2).sum()
        loss.backward()
    return data.grad.asnumpy().tolist(), net[1].alpha.grad().asnumpy().tolist()


IN_DATA = [[0.5, 2, 0.5, 2], [2, 0.5, 0.5, 2]]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "static, last, channels, slopes",
    [
        (False, False, 1, [-10]),
        (True, False, 4, [-2, -2, -6, 0]),
        (False, True, 4, [-2, -2, -6, 0]),
        (True, True, 1, [-10]),
    ],
)
def test_prelu(policy, static, last, channels, slopes):
    for readers in (1, 2):
        net = amp.cast(network(readers, channels, last), policy)
        net.hybridize(static_alloc=static, static_shape=static)
        assert gradients(net) == (IN_DATA, slopes)
        net[1].alpha.grad_req = "add"
        net[1].alpha.zero_grad()
        assert gradients(net, passes=2) == (IN_DATA, [2 * slope for slope in slopes])


def test_prelu_without_native_operators(monkeypatch):
    monkeypatch.setattr("gluon_amp.kernels.available", lambda: False)
    assert gradients(amp.cast(network(), "float16")) == (IN_DATA, [-10])


def test_prelu_in_a_pass_that_is_recorded_but_not_in_training_mode():
    assert gradients(amp.cast(network(), "float16"), train_mode=False) == (IN_DATA, [-10])


def test_prelu_in_a_loop():
    class Loop(nn.HybridBlock):
        def __init__(self):
            super().__init__()
            self.prelu = nn.PReLU()

        def hybrid_forward(self, F, x):
            step = lambda row, state: (self.prelu(row * 1) * 2, state)  # noqa: E731
            return F.contrib.foreach(step, x, [])[0]

    net = Loop()
    net.initialize()
    amp.cast(net, "float16")
    data = nd.array(DATA)
    data.attach_grad()  # without it, nothing is written over the gradient of the result
    back_through(net, data)
    assert net.prelu.alpha.grad().asnumpy().tolist() == [-10]


def test_values_of_prelu_do_not_change():
    data = [[-np.inf, -1e-40, -0.1, 0], [np.inf, 3.3e38, np.nan, 0.1]]
    for slope in ([0.25], [1, -2, 0.3, 0]):
        expected = nd.LeakyReLU(nd.array(data), nd.array(slope), act_type="prelu").asnumpy()
        symbol = mx.sym.LeakyReLU(mx.sym.var("x"), mx.sym.var("slope"), act_type="prelu")
        lowered = lower(symbol, {}, "cpu")
        out = nd.CachedOp(lowered)(nd.array(data), nd.array(slope)).asnumpy()
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("first", [True, False])
def test_hard_sigmoid_leaves_the_gradient_of_its_result_to_others(policy, first):
    """Its sum with x has 1 + 0.2 as derivative within |x| < 2.5; stock MXNet computes 0.2 + 0.2."""

    class Gate(nn.HybridBlock):
        def hybrid_forward(self, F, x):
            hidden = x * 1
            gate = F.hard_sigmoid(hidden)
            return (gate + hidden if first else hidden + gate) * 2

    net = amp.cast(Gate(), policy)
    x = nd.array([[-4.0, -2, 0, 3]])
    x.attach_grad()
    out = back_through(net, x)
    assert out.asnumpy().ravel().tolist() == pytest.approx([-8, -3.8, 1, 8], abs=2e-2)
    assert x.grad.asnumpy().ravel().tolist() == pytest.approx([2, 2.4, 2.4, 2], abs=2e-2)


def test_without_a_gradient_the_operator_stays(monkeypatch):
    symbol = mx.sym.LeakyReLU(mx.sym.var("x"), mx.sym.var("slope"), act_type="prelu")
    assert lower(symbol, {}, "cpu", frozenset(["slope"])) is symbol
    gate = mx.sym.hard_sigmoid(mx.sym.dot(mx.sym.var("x"), mx.sym.var("y")))
    assert lower(gate, {}, "cpu", frozenset(["x", "y"])) is gate
    assert lower(gate, {}, "cpu", frozenset(["x"])) is not gate
    lowered = []

    def recorded(*args):
        lowered.append(lower(*args))
        return lowered[-1]

    monkeypatch.setattr("gluon_amp.casting.binding.lower", recorded)
    net = amp.cast(network(), "float16")
    net(nd.array(DATA))
    with autograd.record():
        net(nd.array(DATA))
    minus_ones = [[n["op"] for n in to_json(s)["nodes"]].count("_npi_full_like") for s in lowered]
    assert minus_ones == [0, 1]
