"""Small nets and data whose gradients are known, of the kind of arrays at hand."""

import numpy as np

import gluon_amp as amp
from tests import kinds

import mxnet as mx
from mxnet.gluon import nn

L2 = mx.gluon.loss.L2Loss()


def images():
    return kinds.array(np.random.RandomState(0).uniform(0, 1, (2, 3, 6, 6)))


def labels():
    return kinds.ones((2, 3))


def total(out, _):
    """Return a loss whose gradient with respect to each output is 1."""
    return out.sum()


def make_net(policy="float16"):
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(4, 3, in_channels=3),
        nn.BatchNorm(in_channels=4),
        nn.Activation("relu"),
        nn.Dense(8, in_units=64),
        nn.Dense(3, in_units=8),
    )
    net.initialize(mx.init.Xavier())
    return amp.cast(net, policy) if policy else net


def chain(*weights, policy="float16"):
    """Return Dense layers of one unit with these weights: y = w3 * w2 * w1 * x."""
    net = nn.HybridSequential()
    for weight in weights:
        net.add(
            nn.Dense(1, in_units=1, use_bias=False, weight_initializer=mx.init.Constant(weight))
        )
    net.initialize()
    return amp.cast(net, policy)


def one(value):
    return kinds.array([[value]])
