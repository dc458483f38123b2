"""Calls of a cast net on symbols, by a user and by a parent that is not cast."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gluon_amp as amp
from tests.casting.nets import backward, images, small_net

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


def nested(child, prefixes):
    """Return blocks of these prefixes around a child, the outermost hybridized."""
    for prefix in prefixes:
        outer = nn.HybridSequential(prefix=prefix)
        outer.add(child)
        child = outer
    child.hybridize()
    return child


@pytest.mark.parametrize("prefixes", [[""], ["middle_", ""], ["", ""]])
def test_a_parent_created_after_the_cast_whatever_its_prefix(prefixes, tmp_path):
    child, x = amp.cast(small_net(), "float16"), images()
    expected = child(x).asnumpy()
    parent = nested(child, prefixes)
    assert np.array_equal(parent(x).asnumpy(), expected)
    parent.export(str(tmp_path / "net"))
    assert "gluon_amp" not in (tmp_path / "net-symbol.json").read_text()


def test_parents_in_several_threads():
    x = images()
    children = [amp.cast(small_net(), "float16") for _ in range(8)]
    expected = [child(x).asnumpy() for child in children]
    with ThreadPoolExecutor(4) as threads:
        outputs = threads.map(lambda child: nested(child, [""])(x).asnumpy(), children)
        assert all(map(np.array_equal, outputs, expected))


def test_calling_a_cast_net_on_symbols_gives_its_cast_graph():
    net = amp.cast(small_net(), "float16")
    symbol = net(mx.sym.var("pixels"))
    dtypes = {p.name: p.dtype for p in net.collect_params().values()}
    internals = symbol.get_internals()
    for own in (dtypes, dict.fromkeys(dtypes, "float32")):
        _, found, _ = internals.infer_type(pixels="float32", **own)
        outputs = dict(zip(internals.list_outputs(), found))
        assert outputs["net_conv0_fwd_output"] == np.float16
        assert found[-1] == np.float32


def test_a_symbol_block_of_a_part_of_a_cast_net(arrays):
    net, x = amp.cast(small_net(), "float16"), images()
    expected = net(x).asnumpy()
    data = mx.sym.var("data")
    data = data.as_np_ndarray() if arrays is mx.np else data
    block = gluon.SymbolBlock(net(data), [data], params=net.collect_params())
    amp.cast(block, "float16")
    assert np.array_equal(block(x).asnumpy(), expected)
    assert block.params["net_conv0_weight"] is net[0].weight


def test_calling_a_cast_net_on_symbols_twice_gives_two_graphs(arrays):
    net, x = amp.cast(small_net(), "float16"), images()
    expected = net(x).asnumpy()
    for name in ("pixels", "frames"):
        symbol = mx.sym.var(name)
        symbol = net(symbol.as_np_ndarray() if arrays is mx.np else symbol)
        assert name in symbol.list_inputs() and len(symbol.list_inputs()) == 9
    assert np.array_equal(net(x).asnumpy(), expected)


def test_calling_a_cast_net_on_symbols_it_does_not_read():
    class First(gluon.HybridBlock):
        def hybrid_forward(self, F, x, lengths):
            return x * 2

    net = amp.cast(First(), "float16")
    symbols = [mx.sym.var(name) for name in ("x", "lengths")]
    assert net(*symbols).list_inputs() == ["x"]


def test_calling_a_cast_net_on_symbols_gives_all_its_outputs():
    class Net(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return x * 2, [x * 3]

    net = amp.cast(Net(), "float16")
    double, (triple,) = net(mx.sym.var("x"))
    assert [s.eval(x=nd.ones((1,)))[0].asscalar() for s in (double, triple)] == [2.0, 3.0]
