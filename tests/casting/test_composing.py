"""Calls of a cast net on symbols, and what a parent that is not cast runs and saves."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

import gluon_amp as amp
from tests.casting.nets import Net, backward, exported, images, imported, small_net

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from mxnet.gluon.contrib.estimator import CheckpointHandler


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


def test_a_call_on_symbols_gives_all_outputs_of_the_symbols_that_are_read():
    net = amp.cast(Net(lambda net, F, x, lengths: (x * 2, [x * 3])), "float16")
    double, (triple,) = net(mx.sym.var("x"), mx.sym.var("lengths"))
    assert double.list_inputs() == triple.list_inputs() == ["x"]
    assert [s.eval(x=nd.ones((1,)))[0].asscalar() for s in (double, triple)] == [2.0, 3.0]


# ------------------------------------------------------------ parents that are not cast


class Parent(gluon.HybridBlock):
    def __init__(self, child):
        super().__init__(prefix="parent_")
        with self.name_scope():
            self.child = child
            self.head = nn.Dense(2)

    def hybrid_forward(self, F, x, shift=None):
        hidden = self.child(x)
        return self.head(hidden if shift is None else hidden + shift), hidden


def test_a_parent_computes_what_its_parts_compute():
    net, x = Parent(amp.cast(small_net(), "float16")), images()
    net.head.initialize()
    expected = net(x)[0].asnumpy()
    net.hybridize()
    assert np.array_equal(net(x)[0].asnumpy(), expected)
    backward(net, x)
    assert net.child[0].weight.grad().dtype == np.float16
    assert net.head.weight.grad().dtype == np.float32


@pytest.mark.parametrize("prefixes", [[""], ["middle_", ""], ["", ""]])
def test_a_parent_created_after_the_cast_whatever_its_prefix(prefixes, tmp_path):
    parent, x = amp.cast(small_net(), "float16"), images()
    expected = parent(x).asnumpy()
    for prefix in prefixes:
        child, parent = parent, nn.HybridSequential(prefix=prefix)
        parent.add(child)
    parent.hybridize()
    assert np.array_equal(parent(x).asnumpy(), expected)
    assert is_stock(exported(parent, tmp_path))


def parent():
    net = Parent(amp.cast(small_net("child_"), "float16"))
    net.head.initialize(mx.init.Uniform(0.5))
    net.hybridize()
    return net


def is_stock(text):
    return "gluon_amp" not in text and "amp_cast" not in text and '"__dtype__": "2"' not in text


def test_an_export_holds_the_plain_graph_and_the_masters(arrays, tmp_path):
    net, x = parent(), images()
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 2.0**-13}, loss_scale=None)
    with autograd.record():
        loss = net(x)[0].sum()
    trainer.backward(loss)
    trainer.step(1)
    expected = [y.asnumpy() for y in net(x)]
    assert is_stock(exported(net, tmp_path))
    stock = imported(tmp_path)
    for name, master in trainer.master_params().items():
        assert np.array_equal(stock.collect_params()[name].data().asnumpy(), master.asnumpy())
    for found, y in zip(stock(x), expected):
        np.testing.assert_allclose(found.asnumpy(), y, rtol=0.02, atol=0.02)
    for found, y in zip(net(x), expected):
        assert np.array_equal(found.asnumpy(), y)  # the net itself runs as before


def test_the_float16_model_of_a_parent(tmp_path):
    net = parent()
    net(images())
    text = exported(net, tmp_path, remove_amp_cast=False)
    assert '"amp_cast"' in text and "gluon_amp" not in text
    _, args, _ = mx.model.load_checkpoint(str(tmp_path / "net"), 0)
    assert args["child_conv0_weight"].dtype == np.float16
    assert args["parent_dense0_weight"].dtype == np.float32


def test_an_export_of_a_parent_with_several_inputs(tmp_path):
    net, x, shift = parent(), images(), nd.array([[1.0, 2, 3, 4]] * 2)
    expected = net(x, shift)[0].asnumpy()
    assert is_stock(exported(net, tmp_path))
    found = imported(tmp_path, ("data0", "data1"))(x, shift)[0]
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=0.01, atol=0.01)


def test_what_else_mxnet_saves_of_a_graph(tmp_path):
    for net in (parent(), amp.cast(small_net(), "float16")):
        net(images())
        net.save(str(tmp_path / "all"))
        model = json.loads((tmp_path / "all-model.json").read_text())
        (saved,) = model.values()
        assert "Convolution" in saved["symbol"] and is_stock(saved["symbol"])

        estimator = SimpleNamespace(net=net)  # all of one that `_save_symbol` reads
        CheckpointHandler(str(tmp_path), model_prefix="kept")._save_symbol(estimator)
        assert is_stock((tmp_path / "kept-symbol.json").read_text())


def test_a_parent_has_its_own_class_whenever_it_has_no_graph(tmp_path):
    net, x = parent(), images()
    assert type(net) is Parent
    expected = net(x)[0].asnumpy()
    assert isinstance(net, Parent) and type(net).__name__ == "Parent"
    net.hybridize()
    assert type(net) is Parent
    with pytest.raises(RuntimeError, match="first call block.hybridize"):
        net.export(str(tmp_path / "net"))
    assert np.array_equal(net(x)[0].asnumpy(), expected)
    amp.cast(net, "float16")
    net(x)
    assert is_stock(exported(net, tmp_path))
    assert type(amp.cast(net, "float32")) is Parent


def test_the_symbol_of_a_cast_net_is_saved_as_a_float32_graph(tmp_path):
    net, x = amp.cast(small_net(), "float16"), images()
    expected = net(x).asnumpy()
    exported(net, tmp_path)  # for the parameters
    net(mx.sym.var("data")).save(str(tmp_path / "net-symbol.json"))
    text = (tmp_path / "net-symbol.json").read_text()
    assert "float16" not in text and '"__dtype__": "2"' not in text
    found = imported(tmp_path)(x).asnumpy()
    np.testing.assert_allclose(found, expected, rtol=0.02, atol=0.02)
