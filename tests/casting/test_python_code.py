"""Blocks that cannot be traced: they run as Python code, and their children are cast."""

import warnings

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.base.dtypes import dtype_name
from gluon_amp.casting.classes import stock_class
from tests.casting.nets import Net, backward

import mxnet as mx
from mxnet import nd
from mxnet.gluon import nn


class Odd(Net):
    """A weight and two layers around code that needs more than operators."""

    def __init__(self, forward):
        layers = {"first": nn.Dense(8, flatten=False, in_units=3), "last": nn.Dense(2, in_units=8)}
        super().__init__(forward, **layers)
        self.weight = self.params.get("weight", shape=(8, 8), init="ones")

    def hybrid_forward(self, F, x, weight):
        return self.last(F.dot(self.code(F, self.first(x)), weight))


CODES = {
    "shape": lambda F, x: x.reshape((x.shape[0], -1)),
    "values": lambda F, x: x if x.sum() > 1e9 else -x,
    "asnumpy": lambda F, x: F.array(np.abs(x.asnumpy())) + x,
}


def odd(code="shape"):
    net = Odd(CODES[code])
    net.initialize(mx.init.Xavier())
    return net


def data(n=4):
    return nd.array(np.random.RandomState(0).normal(size=(n, 3)))


@pytest.mark.parametrize(
    "code, policy", [("shape", "float16"), ("values", "mixed_float16"), ("asnumpy", "bfloat16")]
)
def test_a_root_that_cannot_be_traced(code, policy):
    net = odd(code)
    expected = backward(net, data()).asnumpy()
    gradients = {name: p.grad().asnumpy() for name, p in net.collect_params().items()}
    amp.cast(net, policy)
    assert stock_class(net) is Odd
    assert dtype_name(net.weight.dtype) == "float32"  # its own code reads it
    assert dtype_name(net.first.weight.dtype) == amp.Policy.parse(policy).param_dtype
    with pytest.warns(UserWarning, match="Block net cannot be traced .* run as Python code"):
        out = backward(net, data())
    assert out.dtype == np.float32
    np.testing.assert_allclose(out.asnumpy(), expected, rtol=0.03, atol=0.03)
    for name, param in net.collect_params().items():
        found = param.grad().asnumpy()
        np.testing.assert_allclose(found, gradients[name], rtol=0.05, atol=0.05)

    rows = amp.describe(net).rows
    assert [(row.block, row.op) for row in rows] == [
        ("", "(Python code)"),
        ("first", "FullyConnected"),
        ("last", "FullyConnected"),
    ]
    assert rows[0].compute_dtype == "float32"
    assert {row.compute_dtype for row in rows[1:]} == {amp.Policy.parse(policy).compute_dtype}
    assert "cannot be traced" in rows[0].reason


@pytest.mark.filterwarnings("ignore:Block")
def test_the_largest_parts_that_can_be_traced_are_cast():
    net = nn.HybridSequential()
    inner, middle = nn.HybridSequential(), nn.HybridSequential()
    inner.add(nn.Dense(3, in_units=3), nn.Activation("relu"))
    middle.add(nn.Dense(3, in_units=3), Odd(CODES["shape"]))
    net.add(inner, middle)
    net.initialize(mx.init.Xavier())
    expected = net(data()).asnumpy()
    amp.cast(net, "float16")
    description = amp.describe(net, data())
    assert [(row.block, row.op) for row in description.rows] == [
        ("", "(Python code)"),
        ("0.0", "FullyConnected"),  # one graph
        ("0.1", "Activation"),
        ("1", "(Python code)"),
        ("1.0", "FullyConnected"),
        ("1.1", "(Python code)"),
        ("1.1.first", "FullyConnected"),
        ("1.1.last", "FullyConnected"),
    ]
    reasons = {row.block: row.reason for row in description.rows}
    assert "inside it" not in reasons["1.1"]
    assert reasons[""].startswith("block '1.1' inside it cannot be traced")
    assert "(Python code)" in str(description)
    np.testing.assert_allclose(net(data()).asnumpy(), expected, rtol=0.02, atol=0.02)
    assert "(Python code)" not in str(amp.check(net))


def test_one_warning_for_nested_blocks_and_all_modes():
    net = nn.HybridSequential()
    net.add(nn.HybridSequential())
    net[0].add(odd())
    amp.cast(net, "float16")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        warnings.simplefilter("ignore", DeprecationWarning)  # of scipy, in MXNet
        for _ in range(2):
            net(data())
            backward(net, data())
    assert len({str(w.message) for w in caught}) == 1
    assert "Block 0.0 cannot be traced" in str(caught[0].message)


@pytest.mark.filterwarnings("ignore:Block")
def test_before_shapes_are_known(arrays):
    def forward(net, F, x):
        return net.last(net.first(x).reshape((x.shape[0], 2, 4)))

    net = Net(forward, first=nn.Dense(8), last=nn.Dense(2, flatten=False))
    net.initialize()
    amp.cast(net, "float16")
    net.hybridize(static_alloc=True)
    out = net(arrays.ones((4, 3)))
    assert out.shape == (4, 2, 2) and out.dtype == np.float32
    assert type(out) is type(arrays.ones(1))
    assert dtype_name(net.first.weight.data().dtype) == "float16"


@pytest.mark.filterwarnings("ignore:Block")
def test_outputs_that_gluon_does_not_trace():
    for wrap, key in (
        (lambda y: (y, None), 0),
        (lambda y: {"scores": y}, "scores"),
        (lambda y: (y, 4), 0),
    ):
        net = Net(lambda net, F, x, wrap=wrap: wrap(net.dense(x)), dense=nn.Dense(4, in_units=3))
        net.initialize()
        expected = net(data())[key].asnumpy()
        amp.cast(net, "float16")
        np.testing.assert_allclose(net(data())[key].asnumpy(), expected, rtol=0.01, atol=0.01)


@pytest.mark.filterwarnings("ignore:Block")
def test_an_error_of_the_users_code_is_raised_and_not_remembered():
    net = odd()
    net.code = lambda F, x: x.no_such_method()
    amp.cast(net, "float16")
    with pytest.raises(AttributeError, match="no_such_method"):
        net(data())
    net.code = lambda F, x: F.relu(x)
    net(data())  # which can be traced
    assert "(Python code)" not in [row.op for row in amp.describe(net).rows]


@pytest.mark.filterwarnings("ignore:Block")
def test_it_has_no_graph_to_export(tmp_path):
    net = amp.cast(odd(), "float16")
    net(data())
    with pytest.raises(ValueError, match="Block net cannot be traced"):
        net.export(str(tmp_path / "net"))
