"""Layers, recurrent cells, losses and custom operators in a cast net."""

import sys

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.base.dtypes import dtype_name
from tests import kinds
from tests.casting.nets import Net, backward

import mxnet as mx
from mxnet import nd
from mxnet.gluon import nn, rnn


class Double(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        assert in_data[0].dtype == np.float32
        self.assign(out_data[0], req[0], in_data[0] * 2)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * 2)


@mx.operator.register("gluon_amp_test_double")
class DoubleProp(mx.operator.CustomOpProp):
    def __init__(self):  # takes no arguments, so it must not be given any
        super().__init__(need_top_grad=True)

    def create_operator(self, ctx, shapes, dtypes):
        return Double()


@pytest.mark.parametrize("hook", ["free", "taken"])
def test_custom_operators_run_in_float32(hook, monkeypatch):
    if hook == "taken":  # by a profiler in C that cannot pause: nothing is watched then
        monkeypatch.setattr(sys, "getprofile", object)
    net = nn.HybridSequential()
    net.add(nn.Dense(3), nn.HybridLambda(lambda F, x: F.Custom(x, op_type="gluon_amp_test_double")))
    net.add(nn.Dense(2))
    net.initialize()
    x = nd.ones((2, 3))
    expected = net(x).asnumpy()
    amp.cast(net, "float16")
    assert np.abs(backward(net, x).asnumpy() - expected).max() < 0.01
    assert {r.op: r.compute_dtype for r in amp.describe(net).rows}["Custom"] == "float32"


def test_weights_tied_to_an_embedding_stay_float32_and_are_cast_in_the_graph():
    embed = nn.Embedding(9, 4)
    decode = nn.Dense(9, flatten=False, params=embed.params)
    net = Net(lambda net, F, ids: decode(embed(ids)), embed=embed, decode=decode)
    net.initialize()
    amp.cast(net, "float16")
    assert dtype_name(net.embed.weight.dtype) == "float32"
    ran = {row.op: row.compute_dtype for row in amp.describe(net, nd.array([[1, 2]])).rows}
    assert ran["FullyConnected"] == "float16"
    assert backward(net, nd.array([[1, 2]], dtype="int32")).shape == (1, 2, 9)


@pytest.mark.parametrize(
    "arrays, layer, states, policy",
    [
        ("nd", rnn.LSTM, True, "float16"),
        ("np", rnn.LSTM, True, "mixed_float16"),
        ("nd", rnn.GRU, False, "float16"),
        ("np", rnn.RNN, False, "bfloat16"),
    ],
    indirect=["arrays"],
)
def test_recurrent_layers(arrays, layer, states, policy):
    net = layer(5, num_layers=2, bidirectional=True, layout="NTC")
    net.initialize()
    x = kinds.array(np.random.normal(size=(2, 3, 4)))
    expected = net(x).asnumpy()
    amp.cast(net, policy)
    low = amp.Policy.parse(policy).param_dtype
    assert {dtype_name(p.dtype) for p in net.collect_params().values()} == {low}
    if states:
        got, last = net(x, net.begin_state(2))
        assert all(s.dtype == np.float32 for s in last)
    else:
        got = net(x)
        half = net(x[:1]).asnumpy()  # another batch size
        np.testing.assert_allclose(half, got[:1].asnumpy(), atol=1e-3)
    assert got.dtype == np.float32
    assert np.abs(got.asnumpy() - expected).max() < 0.01
    backward(net, x)
    rows = amp.describe(net).rows
    compute = amp.Policy.parse(policy).compute_dtype
    assert [r.compute_dtype for r in rows if r.op == "RNN"] == [compute]
