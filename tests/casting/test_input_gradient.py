"""Gradients of a net by its input; the rules of operators are tested in `tests/graph`."""

import numpy as np
import pytest

import gluon_amp as amp
from tests.casting.nets import POLICIES, Net
from tests.lowering import back_through

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn


def function(body):
    """Return a block without parameters."""
    return nn.HybridLambda(lambda F, x: body(F.np if mx.util.is_np_array() else F, x))


NUMPY_FUNCTIONS = {
    "operators": lambda np, x: np.tanh(x) * np.square(x) + np.exp(0.1 * x) - np.negative(x),
    "broadcast": lambda np, x: x * np.mean(x, axis=(1, 2), keepdims=True) / 3 - 2,
    "rest": lambda np, x: np.sqrt(x * x + 1) ** 3 - 2 / (x * x + 1),
    "products": lambda np, x: np.dot(np.reshape(x, (4, -1)), np.reshape(x, (-1, 4))),
    "concatenated": lambda np, x: np.concatenate([x, -2 * x], axis=2) - (1 - 3 * x).sum(),
    "shapes": lambda np, x: np.transpose(np.reshape(x, (2, -1)), (1, 0)) * 2 + 1,
    "of fewer dimensions": lambda np, x: x * np.sum(x, axis=(0, 1, 2)),
}


def gradient_of_mxnet(net, x):
    x = x.copy()
    x.attach_grad()
    back_through(net, x)
    return x.grad.asnumpy()


def data(arrays):
    return arrays.array(np.random.RandomState(0).normal(size=(2, 2, 6, 6)).astype("float32"))


def penalty_of(net, x):
    slopes = amp.input_gradient(net, x)
    return (((slopes * slopes).sum(axis=(1, 2, 3)) + 1e-8) ** 0.5 * 0.1 - 1) ** 2


@pytest.mark.parametrize("policy", POLICIES)
def test_gradient_and_penalty_are_near_those_of_float32(policy, arrays):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, strides=2), nn.LayerNorm(axis=1), nn.LeakyReLU(0.2), nn.Dense(1))
    net.initialize(mx.init.Xavier(magnitude=6))
    x = data(arrays)
    net(x)

    def results():
        slopes = amp.input_gradient(net, x)
        back_through(penalty_of, net, x)
        grads = [p.grad().asnumpy().astype("float32") for p in net.collect_params().values()]
        assert type(slopes) is type(x) and slopes.dtype == np.float32
        return [slopes.asnumpy(), *grads]

    expected = results()
    assert any(np.any(gradient) for gradient in expected[1:])
    amp.cast(net, policy)
    tolerance = 0.1 if policy == "bfloat16" else 0.01
    for found, want in zip(results(), expected):
        assert abs(found - want).max() <= tolerance * abs(want).max()


def test_other_shapes_modes_flags_and_policies():
    def scaled(net, F, x, factor, double=False):
        y = F.broadcast_mul(net.dense(x), factor)
        return y * 2 if double else y

    net = Net(scaled, dense=nn.Dense(1, in_units=3, weight_initializer="ones"))
    net.initialize()
    for policy in ("float32", "float16", "bfloat16", "float32"):
        amp.cast(net, policy)
        for rows in (1, 4):
            x, factor = mx.nd.ones((rows, 3)), mx.nd.array([[3.0]])
            slopes = amp.input_gradient(net, x, factor)
            assert np.array_equal(slopes.asnumpy(), np.full((rows, 3), 3.0))
            assert np.array_equal(
                amp.input_gradient(net, x, factor, True).asnumpy(), 2 * slopes.asnumpy()
            )
    assert type(net.dense.weight) is gluon.Parameter  # undoing the cast is not hindered


def test_what_is_no_traceable_net_is_refused():
    x = mx.nd.ones((2, 2, 6, 6))
    with pytest.raises(TypeError, match="got a Sequential, expected a HybridBlock"):
        amp.input_gradient(nn.Sequential(), x)
    with pytest.raises(ValueError, match="cannot be traced"):
        amp.input_gradient(function(lambda F, x: x.reshape((x.shape[0], -1))), x)
    with pytest.raises(ValueError, match="it draws random numbers in Python"):
        amp.input_gradient(function(lambda F, x: x * np.random.rand()), x)


@pytest.mark.parametrize("arrays", ["np"], indirect=True)
@pytest.mark.parametrize("name", NUMPY_FUNCTIONS)
def test_numpy_functions(name, arrays):
    net, x = function(NUMPY_FUNCTIONS[name]), data(arrays)
    found, expected = amp.input_gradient(net, x).asnumpy(), gradient_of_mxnet(net, x)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
