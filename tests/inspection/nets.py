"""Small nets and data whose gradients are known."""

import numpy as np

import gluon_amp as amp

import mxnet as mx
from mxnet import nd
from mxnet.gluon import nn

L2 = mx.gluon.loss.L2Loss()


def images():
    return nd.array(np.random.RandomState(0).uniform(0, 1, (2, 3, 6, 6)))


def labels():
    return nd.ones((2, 3))


def total(out, _):
    """Return a loss whose gradient with respect to each output is 1."""
    return out.sum()


def built(*layers, policy="float16"):
    """Return these layers in a net with Xavier's weights."""
    net = nn.HybridSequential()
    net.add(*layers)
    net.initialize(mx.init.Xavier())
    return amp.cast(net, policy) if policy else net


def make_net(policy="float16"):
    return built(
        nn.Conv2D(4, 3, in_channels=3),
        nn.BatchNorm(in_channels=4),
        nn.Activation("relu"),
        nn.Dense(8, in_units=64),
        nn.Dense(3, in_units=8),
        policy=policy,
    )


class Recipe(nn.HybridSequential):
    """A net by MXNet's own recipe for float16, whose products no CPU computes."""

    def __init__(self):
        super().__init__()
        self.add(nn.Conv2D(4, 3, in_channels=3), nn.BatchNorm(in_channels=4))
        self.add(nn.Dense(3, in_units=64))
        self.initialize()
        self.cast("float16")

    def hybrid_forward(self, F, x):
        return F.cast(super().hybrid_forward(F, F.cast(x, "float16")), "float32")


def unit(weight):
    """Return a Dense layer of one unit: y = weight * x."""
    init = mx.init.Constant(weight)
    return nn.Dense(1, in_units=1, use_bias=False, weight_initializer=init)


def chain(*weights, policy="float16"):
    """Return Dense layers of one unit with these weights: y = w3 * w2 * w1 * x."""
    return built(*map(unit, weights), policy=policy)


def one(value):
    return nd.array([[value]])
