"""Traces of a net: modes, hooks, structures of inputs, and forwards that cannot be traced."""

import warnings

import numpy as np

import gluon_amp as amp
from tests.casting.nets import backward, images

from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision


def test_a_forward_that_depends_on_autograds_mode():
    class Detector(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.dense = nn.Dense(4, in_units=3)

        def hybrid_forward(self, F, x):
            scores = self.dense(x)
            return scores if autograd.is_training() else (F.argmax(scores, axis=1), scores)

    net = Detector()
    net.initialize()
    amp.cast(net, "float16")
    for _ in range(2):
        ids, scores = net(nd.ones((2, 3)))
        assert ids.shape == (2,) and scores.dtype == np.float32
        assert backward(net, nd.ones((2, 3))).shape == (2, 4)


def test_a_block_called_by_itself_is_cast_too():
    net = amp.cast(vision.resnet18_v1(classes=3), "float16")
    net.initialize()
    x = images(size=32)
    features = net.features(x)
    assert features.dtype == np.float32
    assert np.array_equal(net.output(features).asnumpy(), net(x).asnumpy())


def test_hooks_of_a_net_get_arrays_and_not_the_symbols_of_a_trace():
    net = nn.Dense(2, in_units=3)
    net.initialize()
    seen = []
    net.register_forward_pre_hook(lambda block, x: seen.append(x[0].asnumpy().shape))
    net.register_forward_hook(lambda block, x, out: seen.append(out.asnumpy().shape))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MXNet's, of hooks in a hybridized net
        amp.cast(net, "float16")
    net(nd.ones((1, 3)))
    assert seen == [(1, 3), (1, 2)]


def test_several_inputs_outputs_and_nested_lists():
    class Net(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.a, self.b = nn.Dense(3, flatten=False), nn.Dense(3, flatten=False)

        def hybrid_forward(self, F, x, pair, scale):
            u, (v,) = pair
            a, b = F.broadcast_mul(self.a(x), scale), self.b(u + v)
            return a, [b, (F.softmax(a), a + b)]

    net = Net()
    net.initialize()
    x = nd.ones((2, 3))
    args = (x, [x, [x]], nd.ones((1, 1)))
    expected = [o.asnumpy() for o in gluon.block._flatten(net(*args), "output")[0]]
    amp.cast(net, "float16")
    a, (b, (c, d)) = net(*args)
    for got, want in zip((a, b, c, d), expected):
        assert got.dtype == np.float32
        assert np.abs(got.asnumpy() - want).max() < 1e-3
