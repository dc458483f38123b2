"""Law 17: where a graph of MXNet's is wrong, a cast net gives the imperative result."""

import numpy as np
import pytest

import gluon_amp as amp
from tests.laws.training import LOW_PRECISION

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import nn

# MXNet's graph multiplies the slope's gradient by the slope; its transposed convolutions fail
LAYERS = {
    "prelu": lambda: nn.PReLU(),
    "deconvolution": lambda: nn.Conv2DTranspose(4, 4, strides=2, padding=1, in_channels=4),
    "deconvolution 1d": lambda: nn.Conv1DTranspose(4, 4, strides=2, padding=1, in_channels=4),
}


def gradients(net, x):
    with autograd.record():
        out = net(x)
    out.backward(nd.array(np.random.RandomState(1).normal(size=out.shape)))
    return {name: p.grad().asnumpy().copy() for name, p in net.collect_params().items()}


@pytest.mark.parametrize("grad_req", ["write", "add"])
@pytest.mark.parametrize("policy", LOW_PRECISION)
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_a_cast_net_are_the_imperative_ones(name, policy, grad_req):
    shape = (2, 4, 6) if name.endswith("1d") else (2, 4, 6, 6)
    first = nn.Conv1D if name.endswith("1d") else nn.Conv2D
    net = nn.HybridSequential()
    net.add(first(4, 1, in_channels=4), LAYERS[name](), nn.Activation("tanh"))
    net.initialize(mx.init.Uniform(0.5))
    x = nd.array(np.random.RandomState(0).normal(size=shape))
    expected = gradients(net, x)
    amp.cast(net, policy)
    times = 1
    if grad_req == "add":
        times = 2
        for p in net.collect_params().values():
            p.grad_req = "add"
            p.zero_grad()
        gradients(net, x)
    for key, gradient in gradients(net, x).items():
        rounding = 2**-8 if policy == "bfloat16" else 2**-11
        size = np.abs(expected[key]).max()
        assert np.abs(gradient / times - expected[key]).max() < 16 * rounding * size, key
