"""Calls of a cast net on symbols, by a user and by a parent that is not cast."""

import numpy as np

import gluon_amp as amp
from tests.casting.nets import backward, small_net

import mxnet as mx
from mxnet import gluon, nd
from mxnet.gluon import nn


def test_a_cast_part_of_a_hybridized_net_that_is_not_cast():
    class Parent(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.body, self.head = nn.Dense(8, in_units=3), nn.Dense(2, in_units=8)

        def hybrid_forward(self, F, x):
            return self.head(self.body(x))

    net = Parent()
    net.initialize()
    amp.cast(net.body, "float16")
    x = nd.random.normal(shape=(2, 3))
    expected = net(x).asnumpy()
    net.hybridize()
    assert np.array_equal(backward(net, x).asnumpy(), expected)
    assert net.body.weight.grad().dtype == np.float16
    assert net.head.weight.grad().dtype == np.float32


def test_calling_a_cast_net_on_symbols_gives_its_cast_graph():
    net = amp.cast(small_net(), "float16")
    symbol = net(mx.sym.var("pixels"))
    dtypes = {p.name: p.dtype for p in net.collect_params().values()}
    internals = symbol.get_internals()
    _, found, _ = internals.infer_type(pixels="float32", **dtypes)
    outputs = dict(zip(internals.list_outputs(), found))
    assert outputs["net_conv0_fwd_output"] == np.float16
    assert found[-1] == np.float32


def test_calling_a_cast_net_on_symbols_gives_all_its_outputs():
    class Net(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return x * 2, [x * 3]

    net = amp.cast(Net(), "float16")
    double, (triple,) = net(mx.sym.var("x"))
    assert [s.eval(x=nd.ones((1,)))[0].asscalar() for s in (double, triple)] == [2.0, 3.0]
