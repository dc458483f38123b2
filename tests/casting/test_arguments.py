"""Arguments of a call that are not arrays: flags, numbers, strings, dicts and others."""

from collections import namedtuple

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.casting.arguments import constants_of, for_gluon, map_arrays
from gluon_amp.casting.binding import binding_of
from tests.casting.nets import Net, backward

import mxnet as mx
from mxnet import nd
from mxnet.gluon import nn

Pair = namedtuple("Pair", "x, scale")


def net_of(use):
    """Return a net that has one argument after the data, of any type."""
    dense, other = nn.Dense(3, in_units=3), nn.Dense(3, in_units=3)
    return Net(lambda net, F, x, *args: use(net, F, dense(x), *args), dense=dense, other=other)


def ones(shape=(2, 3), module=nd):
    return module.ones(shape)


FLAGS = {
    "bool": (lambda net, F, x, flag: net.other(x) if flag else x, True, False),
    "none": (lambda net, F, x, arg: x if arg is None else net.other(x) + arg, None, ones()),
    "string": (lambda net, F, x, name: getattr(F, name)(x), "relu", "tanh"),
    "number": (lambda net, F, x, number: x * number, 2, 0.5),
    "default": (lambda net, F, x, flag=True: x if flag else -x, False, True),
    "list": (lambda net, F, x, args: x * args[1] + args[0][0], [[ones()], 3], [[ones()], 4]),
    "tuple": (lambda net, F, x, pair: pair.x * pair.scale + x, Pair(ones(), 2), Pair(ones(), 3)),
    "dict": (lambda net, F, x, d: d["a"] + x * d.get("b", 1), {"a": ones(), "b": 3}, {"a": ones()}),
    "numpy": (lambda net, F, x, n: x * float(n[0]), np.array([2.0]), np.array([3.0])),
    "object": (lambda net, F, x, f: f(F, x), lambda F, x: F.relu(x), lambda F, x: F.tanh(x)),
}


@pytest.mark.filterwarnings("ignore:Block")
@pytest.mark.parametrize("kind", FLAGS)
def test_each_argument_gives_what_the_net_gave_before_the_cast(kind):
    use, *arguments = FLAGS[kind]
    net, x = net_of(use), nd.random.normal(shape=(2, 3))
    net.initialize(mx.init.Xavier())
    expected = [net(x, argument).asnumpy() for argument in arguments]
    assert not np.allclose(*expected)
    amp.cast(net, "float16")
    for _ in range(2):
        for argument, want in zip(arguments, expected):
            out = net(x, argument)
            assert out.dtype == np.float32
            np.testing.assert_allclose(out.asnumpy(), want, rtol=0.03, atol=0.03)
            backward(net, x, argument)


def test_parameters_with_deferred_shapes_and_flags():
    net = Net(
        lambda net, F, x, flag: net.second(net.first(x)) if flag else net.first(x),
        first=nn.Dense(3),
        second=nn.Dense(3),
    )
    net.initialize()
    amp.cast(net, "float16")
    assert net(ones(), False).shape == (2, 3)
    assert (net.first.weight.shape, net.second.weight.shape) == ((3, 3), (3, 0))
    backward(net, ones(), True)
    assert net.second.weight.shape == (3, 3)


@pytest.mark.filterwarnings("ignore:Block")
def test_many_values_are_not_traced_each():
    net = net_of(lambda net, F, x, step: x * step)
    net.initialize()
    amp.cast(net, "float16")
    first = net(ones(), 1).asnumpy()
    for step in range(1, 40):
        np.testing.assert_allclose(net(ones(), step).asnumpy(), first * step, rtol=0.01)
    assert len(binding_of(net).traces) <= 10
    assert np.array_equal(net(ones(), 1).asnumpy(), first)
    assert [row.op for row in amp.describe(net, ones(), 3).rows][-1] == "_mul_scalar"
    assert amp.describe(net, ones(), 39).rows[0].op == "(Python code)"


def test_what_distinguishes_constants():
    assert constants_of((ones(), True)) != constants_of((ones(), 1))
    assert constants_of(np.float32(2)) != constants_of(2.0)
    assert constants_of((ones(), 0.0)) != constants_of((ones(), -0.0))
    assert constants_of((ones(), "a")) == constants_of((nd.zeros(5), "a"))
    assert constants_of((ones(), {"a": 1})) != constants_of((ones(), {"b": 1}))
    assert constants_of([ones()]) != constants_of((ones(),))
    assert constants_of((ones(), [object()])) is None
    x = ones()
    assert for_gluon((x, True, {"a": [x, None]})) == [x, None, [[x, None]]]
    assert map_arrays({"a": (1, Pair(x, 2))}, lambda _: "x") == {"a": (1, Pair("x", 2))}
