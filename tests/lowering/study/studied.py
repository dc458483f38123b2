"""Nets whose products are rounded to formats for study, and what they have to compute."""

import numpy as np

import gluon_amp as amp
from gluon_amp.base.formats import FORMATS, exponent_for, rounded_array
from tests.lowering import back_through

import mxnet as mx
from mxnet import nd
from mxnet.gluon import nn

HYBRID = "params=float32,compute=float8_e4m3,gradients=float8_e5m2"
E4M3, E5M2 = FORMATS["float8_e4m3"], FORMATS["float8_e5m2"]
DIRECTIONS = ("forward", "data_gradient", "weight_gradient")


def inside(net):
    """Put a net between two products, so that its own are not the ends."""
    whole = nn.HybridSequential()
    whole.add(nn.Dense(4, in_units=4, use_bias=False), net, nn.Dense(2, use_bias=False))
    return whole


def rounded(values, format_, largest=None):
    """Round with the scale that belongs to the largest magnitude, by default the array's own."""
    largest = float(np.abs(values).max()) if largest is None else largest
    scale = 2.0 ** exponent_for(format_, largest)
    scaled = (values * scale).astype(np.float32)
    return rounded_array(scaled, format_, saturates=True) / scale


def one_product(policy):
    """Return a cast net of one Dense layer without the defaults for the ends."""
    net = nn.Dense(3, in_units=4, use_bias=False)
    if amp.Policy(policy).study.keeps_ends_wide:
        policy = amp.Policy(policy).pin(ops=["FullyConnected"], dtype="float8_e4m3")
    net = amp.cast(net, policy)
    net.initialize(mx.init.Normal(1))
    return net


def run(net, x, head):
    """Return the output, the gradient of the data and that of the weight."""
    x = nd.array(x)
    x.attach_grad()
    y = back_through(net, x, head=nd.array(head))
    return y.asnumpy(), x.grad.asnumpy(), net.weight.grad().asnumpy()


def arrays():
    """Return the data and the gradient of the result of `one_product`."""
    random = np.random.RandomState(1)
    return random.normal(size=(5, 4)).astype("f"), random.normal(size=(5, 3)).astype("f")
