"""Gradients by the input, and backward passes through them."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.graph.derivative_rules import RULES, STOPS
from tests.casting.nets import POLICIES

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn


def function(body):
    """Return a block without parameters."""

    class Function(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return body(F.np if mx.util.is_np_array() else F, x)

    return Function()


def product(F, x):
    return x * F.sigmoid(x) - x / (x * x + 2)


# Layers for data of the shape (2, 4, 6, 6)
LAYERS = {
    "relu": lambda: nn.Activation("relu"),
    "sigmoid": lambda: nn.Activation("sigmoid"),
    "tanh": lambda: nn.Activation("tanh"),
    "softrelu": lambda: nn.Activation("softrelu"),
    "softsign": lambda: nn.Activation("softsign"),
    "leaky": lambda: nn.LeakyReLU(0.2),
    "prelu": nn.PReLU,
    "elu": lambda: nn.ELU(0.7),
    "gelu": nn.GELU,
    "swish": nn.Swish,
    "layer norm": lambda: nn.LayerNorm(axis=1),
    "average pooling": lambda: nn.AvgPool2D(2),
    "global pooling": nn.GlobalAvgPool2D,
    "convolution": lambda: nn.Conv2D(6, 3, padding=1),
    "strided": lambda: nn.Conv2D(6, 4, strides=3, padding=1),
    "dilated groups": lambda: nn.Conv2D(8, (3, 2), strides=(2, 1), dilation=2, groups=2),
    "dense of each pixel": lambda: nn.Dense(3, flatten=False),
}
LEGACY_FUNCTIONS = {
    "operators": lambda F, x: F.relu(x) + F.tanh(x) * F.square(x) + F.exp(0.1 * x) + F.softsign(x),
    "broadcast": lambda F, x: F.broadcast_mul(x, F.mean(x, axis=(1, 2), keepdims=True)),
    "broadcast to": lambda F, x: F.broadcast_add(x, F.sum(x, axis=1, keepdims=True)) / 3 - 2,
    "product": product,
    "root": lambda F, x: (x * x + 1) ** 0.5 + F.sqrt(x * x + 2) - 3 / (x * x + 1),
    "maximum": lambda F, x: F.maximum(x, 0.1) * x,
    "matrix product": lambda F, x: F.dot(F.flatten(x), F.transpose(F.flatten(F.tanh(x)))),
    "log": lambda F, x: F.log(F.abs(x) + 1) - (1 - x),
    "shapes": lambda F, x: F.transpose(F.reshape(x, (0, -3, 0)), (2, 0, 1)) * 2,
    "concat": lambda F, x: F.concat(x, -2 * x, F.negative(x), dim=2),
    "stopped": lambda F, x: F.BlockGrad(x) + x * (x > 0) * F.sign(x) + F.ones_like(x),
    "excluded": lambda F, x: F.square(F.sum(x, axis=1, exclude=True)),
}
NUMPY_FUNCTIONS = {
    "operators": lambda np, x: np.tanh(x) * np.square(x) + np.exp(0.1 * x) - np.negative(x),
    "broadcast": lambda np, x: x * np.mean(x, axis=(1, 2), keepdims=True) / 3 - 2,
    "rest": lambda np, x: np.sqrt(x * x + 1) ** 3 - 2 / (x * x + 1),
    "products": lambda np, x: np.dot(np.reshape(x, (4, -1)), np.reshape(x, (-1, 4))),
    "concatenated": lambda np, x: np.concatenate([x, -2 * x], axis=2) - (1 - 3 * x).sum(),
    "shapes": lambda np, x: np.transpose(np.reshape(x, (2, -1)), (1, 0)) * 2 + 1,
}


def gradient_of_mxnet(net, x):
    x = x.copy()
    x.attach_grad()
    with autograd.record():
        out = net(x)
    out.backward()
    return x.grad.asnumpy()


def network(middle):
    """Return layers with a layer in the middle that is to be tested."""
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, padding=1, in_channels=2), middle, nn.Dense(3), nn.Dense(1))
    net.initialize(mx.init.Xavier(magnitude=6))
    return net


def data(arrays):
    return arrays.array(np.random.RandomState(0).normal(size=(2, 2, 6, 6)).astype("float32"))


def penalty_of(net, x):
    slopes = amp.input_gradient(net, x)
    return (((slopes * slopes).sum(axis=(1, 2, 3)) + 1e-8) ** 0.5 * 0.1 - 1) ** 2


def check(net):
    """In float64, compare with MXNet's gradient, and with differences of the penalty."""
    x = data(mx.nd)
    net(x)
    net.cast("float64")
    x = x.astype("float64")
    np.testing.assert_allclose(
        amp.input_gradient(net, x).asnumpy(), gradient_of_mxnet(net, x), rtol=1e-5, atol=1e-8
    )
    with autograd.record():
        penalty = penalty_of(net, x)
    penalty.backward()
    random = np.random.RandomState(1)
    for param in net.collect_params().values():
        value, step = param.data().asnumpy(), 1e-6 * random.normal(size=param.shape)
        sums = []
        for sign in (1, -1):
            param.set_data(mx.nd.array(value + sign * step, dtype="float64"))
            sums.append(penalty_of(net, x).asnumpy().sum())
        param.set_data(mx.nd.array(value, dtype="float64"))
        found = (param.grad().asnumpy() * step).sum()
        assert abs(found - (sums[0] - sums[1]) / 2) <= 1e-4 * abs(found) + 1e-13, param.name


@pytest.mark.parametrize("layer", LAYERS)
def test_layers(layer):
    check(network(LAYERS[layer]()))


@pytest.mark.parametrize("body", LEGACY_FUNCTIONS)
def test_functions(body):
    check(network(function(LEGACY_FUNCTIONS[body])))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("layer", ["leaky", "tanh", "layer norm", "strided"])
def test_policies(layer, policy, arrays):
    net, x = network(LAYERS[layer]()), data(arrays)
    net(x)

    def results():
        slopes = amp.input_gradient(net, x)
        with autograd.record():
            penalty = penalty_of(net, x)
        penalty.backward()
        grads = [p.grad().asnumpy().astype("float32") for p in net.collect_params().values()]
        assert type(slopes) is type(x) and slopes.dtype == np.float32
        return [slopes.asnumpy(), *grads]

    expected = results()
    amp.cast(net, policy)
    tolerance = 0.1 if policy == "bfloat16" else 0.01
    for found, want in zip(results(), expected):
        assert abs(found - want).max() <= tolerance * abs(want).max()


@pytest.mark.parametrize("policy", POLICIES)
def test_training_with_a_scale_is_training_without(policy):
    x, weights = data(mx.nd), []
    for scale in (1.0, 64.0):
        mx.random.seed(0)
        np.random.seed(0)
        net = network(nn.LeakyReLU(0.2))
        net(x)
        amp.cast(net, policy)
        trainer = amp.Trainer(
            net.collect_params(), "sgd", {"learning_rate": 0.01}, loss_scale=scale
        )
        for _ in range(3):
            with autograd.record():
                loss = net(x).mean() + penalty_of(net, x).mean()
            trainer.backward(loss)
            assert trainer.step(1).applied
        weights.append([p.data().asnumpy() for p in net.collect_params().values()])
    for one, other in zip(*weights):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=1e-5)


def test_other_shapes_modes_flags_and_policies():
    class Net(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.dense = nn.Dense(1, in_units=3, weight_initializer="ones")

        def hybrid_forward(self, F, x, factor, double=False):
            y = F.broadcast_mul(self.dense(x), factor)
            return y * 2 if double else y

    net = Net()
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


def test_pinned_layers_are_differentiated_in_float32():
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=3, use_bias=False), nn.Dense(1, in_units=4, use_bias=False))
    net.initialize(mx.init.Normal(1.0))
    x = mx.nd.ones((1, 3))
    last, first = (net[k].weight.data().asnumpy() for k in (1, 0))
    exact = last @ first
    # The error of a sum of 4 products in any order, which may cancel
    bound = 4 * np.finfo(np.float32).eps * (abs(last) @ abs(first)).max()
    amp.cast(net, amp.Policy.parse("mixed_float16").pin(blocks=["^0$", "^1$"]))
    np.testing.assert_allclose(amp.input_gradient(net, x).asnumpy(), exact, rtol=0, atol=bound)
    amp.cast(net, "mixed_float16")
    assert abs(amp.input_gradient(net, x).asnumpy() - exact).max() > 1e-5


def test_what_has_no_gradient():
    x = mx.nd.ones((2, 2, 6, 6))
    net = amp.cast(network(nn.BatchNorm()), "float16")
    with pytest.raises(ValueError, match="no rule for BatchNorm") as caught:
        amp.input_gradient(net, x)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="no rule for Pooling"):
        amp.input_gradient(network(nn.MaxPool2D(2)), x)
    for k in (0, 1):
        split = function(lambda F, x, k=k: F.split(x, 2, axis=1)[k] * 2)
        with pytest.raises(ValueError, match="no rule for SliceChannel"):
            amp.input_gradient(split, x)
    with pytest.raises(ValueError, match="No output of the net depends on data"):
        amp.input_gradient(function(lambda F, x: F.ones((1,))), x)
    with pytest.raises(TypeError, match="got a Sequential, expected a HybridBlock"):
        amp.input_gradient(nn.Sequential(), x)
    with pytest.raises(ValueError, match="cannot be traced"):
        amp.input_gradient(function(lambda F, x: x.reshape((x.shape[0], -1))), x)


def test_numpy_functions():
    mx.npx.set_np()
    try:
        for body in NUMPY_FUNCTIONS.values():
            net, x = function(body), data(mx.np)
            np.testing.assert_allclose(
                amp.input_gradient(net, x).asnumpy(),
                gradient_of_mxnet(net, x),
                rtol=1e-4,
                atol=1e-5,
            )
    finally:
        mx.npx.reset_np()


def test_rules_are_for_operators_of_mxnet():
    assert {*RULES, *STOPS} <= set(mx.operator.get_all_registered_operators())
