"""A cast net is pickled and copied like a stock one; the copy is cast and shares nothing."""

import copy
import pickle

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.casting.parameters import dtype_of
from tests import kinds
from tests.casting.nets import AsksForTheMode

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn


class Parent(gluon.HybridBlock):
    """Its child refers to it, as some detectors' heads do."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.child = nn.Dense(3, in_units=4)
        object.__setattr__(self.child, "parent", self)

    def hybrid_forward(self, F, x):
        return self.child(x)


class OwnState(gluon.HybridBlock):
    """Leaves something out of its pickles and makes it anew."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.dense = nn.Dense(3, in_units=4)
        self.log = lambda: None

    def __getstate__(self):
        return {key: value for key, value in vars(self).items() if key != "log"}

    def __setstate__(self, state):
        vars(self).update(state)
        self.log = lambda: None

    def hybrid_forward(self, F, x):
        self.log()
        return self.dense(x)


def convolutions():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.Dense(3))
    return net


def symbol_block():
    out = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")
    return gluon.SymbolBlock(out, [mx.sym.var("data")])


NETS = {
    "Dense": lambda: nn.Dense(3, in_units=4),
    "convolutions": convolutions,
    "SymbolBlock": symbol_block,
    "Parent": Parent,
    "OwnState": OwnState,
}


COPIERS = {
    "pickle 2": lambda net: pickle.loads(pickle.dumps(net, 2)),
    "pickle 5": lambda net: pickle.loads(pickle.dumps(net, 5)),
    "deepcopy": copy.deepcopy,
}


def data(kind="Dense"):
    shape = (2, 4, 6, 6) if kind == "convolutions" else (2, 4)
    return kinds.array(np.random.RandomState(0).normal(size=shape))


def outputs_and_gradients(net, x):
    out = net(x).asnumpy()
    with autograd.record():
        loss = (net(x) ** 2 * 64).sum()
    loss.backward()
    params = net.collect_params().values()
    return [out, *(p.grad().asnumpy().copy() for p in params if p.grad_req != "null")]


def assert_same(got, expected):
    assert len(got) == len(expected)
    for one, other in zip(got, expected):
        np.testing.assert_array_equal(one, other)


def trained(kind, policy="float16"):
    net = NETS[kind]()
    net.initialize(mx.init.Uniform(0.5))
    amp.cast(net, policy)
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01}, loss_scale=64)
    step(net, trainer, data(kind))
    net(data(kind))
    return net, trainer


def step(net, trainer, x):
    with autograd.record():
        loss = (net(x) ** 2).mean()
    trainer.backward(loss)
    assert trainer.step(1).applied


def arrays_of(net):
    return [array for p in net.collect_params().values() for array in p.list_data()]


@pytest.mark.parametrize(
    "arrays, kind, policy, copier",
    [
        ("nd", "Dense", "float16", "pickle 2"),
        ("np", "convolutions", "float16", "pickle 5"),
        ("nd", "convolutions", "bfloat16", "deepcopy"),
        ("np", "convolutions", "float16", "deepcopy"),
        ("nd", "SymbolBlock", "float16", "pickle 5"),
        ("nd", "Parent", "float16", "pickle 5"),
        ("nd", "OwnState", "float16", "pickle 5"),
    ],
    indirect=["arrays"],
)
def test_a_copy_of_a_trained_net(arrays, kind, policy, copier):
    net, trainer = trained(kind, policy)
    twin = COPIERS[copier](net)
    assert type(twin) is type(net)
    own, theirs = net.collect_params(), twin.collect_params()
    assert [dtype_of(p) for p in theirs.values()] == [dtype_of(p) for p in own.values()]
    assert not {id(p) for p in own.values()} & {id(p) for p in theirs.values()}
    assert all(p._trainer is None for p in theirs.values())
    assert all(p._trainer is trainer for p in own.values() if p.grad_req != "null")
    assert_same(outputs_and_gradients(twin, data(kind)), outputs_and_gradients(net, data(kind)))
    assert str(amp.describe(twin)) == str(amp.describe(net))
    # it trains, and the original stays as it is
    before = [array.asnumpy() for array in arrays_of(net)]
    step(twin, amp.Trainer(theirs, "adam", loss_scale=64), data(kind))
    assert_same([array.asnumpy() for array in arrays_of(net)], before)
    assert any((a.asnumpy() != b).any() for a, b in zip(arrays_of(twin), before))
    amp.cast(twin, "float32")
    assert {dtype_of(p) for p in theirs.values()} == {"float32"}
    trained_ones = [p for p in theirs.values() if p.grad_req != "null"]
    held = [array for p in trained_ones for array in (p.data(), *p.list_grad())]
    assert {type(array) for array in held} == {type(arrays.ones((1,)))}
    assert_same([array.asnumpy() for array in arrays_of(net)], before)


def test_a_shallow_copy_shares_parameters_and_no_traces():
    net, _ = trained("convolutions")
    assert list(copy.copy(net).collect_params().values()) == list(net.collect_params().values())
    net, one = amp.cast(AsksForTheMode(), "float16"), nd.ones((1,))
    assert net(one).asscalar() == 3
    twin = copy.copy(net)
    with autograd.record():
        assert net(one).asscalar() == 2
    assert twin(one).asscalar() == 3
    assert net(one).asscalar() == 3


@pytest.mark.parametrize("initialize", [True, False])
def test_a_copy_of_a_net_whose_shapes_are_not_known(initialize):
    net = amp.cast(convolutions(), "float16")
    if initialize:
        net.initialize()
    twin = pickle.loads(pickle.dumps(net))
    if not initialize:
        twin.initialize()
    twin(data("convolutions"))
    assert twin[0].weight.data().dtype == twin[3].weight.data().dtype == np.float16


@pytest.mark.parametrize("copier", ["pickle 5", "deepcopy"])
def test_gradients_and_their_modes_are_copied(copier):
    net, _ = trained("Dense")
    net.collect_params().setattr("grad_req", "add")
    outputs_and_gradients(net, data())
    twin, once = COPIERS[copier](net), net.weight.grad().asnumpy()
    np.testing.assert_array_equal(twin.weight.grad().asnumpy(), once)
    outputs_and_gradients(twin, data())
    np.testing.assert_array_equal(twin.weight.grad().asnumpy(), 2 * once)
