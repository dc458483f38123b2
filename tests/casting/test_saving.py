"""What is saved of a block that was not cast, with a cast child in it, loads in stock MXNet."""

import json

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp import graph
from tests import kinds

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn
from mxnet.gluon.contrib.estimator import CheckpointHandler


class Parent(gluon.HybridBlock):
    def __init__(self, child):
        super().__init__(prefix="parent_")
        with self.name_scope():
            self.child = child
            self.head = nn.Dense(2)

    def hybrid_forward(self, F, x, shift=None):
        hidden = self.child(x)
        return self.head(hidden if shift is None else hidden + shift), hidden


class Outer(gluon.HybridBlock):
    def __init__(self, inner):
        super().__init__(prefix="outer_")
        self.inner = inner

    def hybrid_forward(self, F, x):
        return self.inner(x)[0] * 2


def images():
    return kinds.array(np.random.RandomState(0).normal(size=(2, 3, 4, 4)))


def child(policy):
    mx.random.seed(0)
    net = nn.HybridSequential(prefix="child_")
    with net.name_scope():
        net.add(nn.Conv2D(4, 3, activation="relu"), nn.BatchNorm(), nn.Dense(3))
    net.initialize(mx.init.Uniform(0.5))
    return amp.cast(net, policy)


def parent(policy):
    net = Parent(child(policy))
    net.head.initialize(mx.init.Uniform(0.5))
    net.hybridize()
    return net


def is_stock(text):
    return "gluon_amp" not in text and "amp_cast" not in text and '"__dtype__": "2"' not in text


def imported(prefix, inputs=("data",)):
    return gluon.SymbolBlock.imports(f"{prefix}-symbol.json", list(inputs), f"{prefix}-0000.params")


def test_an_export_holds_the_plain_graph_and_the_masters(arrays, tmp_path):
    net, x = parent("float16"), images()
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 2.0**-13}, loss_scale=None)
    with autograd.record():
        loss = net(x)[0].sum()
    trainer.backward(loss)
    trainer.step(1)
    expected = [y.asnumpy() for y in net(x)]
    net.export(str(tmp_path / "net"))
    assert is_stock((tmp_path / "net-symbol.json").read_text())
    stock = imported(tmp_path / "net")
    for name, master in trainer.master_params().items():
        assert np.array_equal(stock.collect_params()[name].data().asnumpy(), master.asnumpy())
    for found, y in zip(stock(x), expected):
        np.testing.assert_allclose(found.asnumpy(), y, rtol=0.02, atol=0.02)
    for found, y in zip(net(x), expected):
        assert np.array_equal(found.asnumpy(), y)  # the net itself runs as before


def test_an_export_of_a_block_of_blocks_with_several_inputs(tmp_path):
    net, x, shift = parent("float16"), images(), kinds.array([[1.0, 2, 3]] * 2)
    expected = net(x, shift)[0].asnumpy()
    net.export(str(tmp_path / "net"))
    found = imported(tmp_path / "net", ("data0", "data1"))(x, shift)[0]
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=0.01, atol=0.01)

    outer = Outer(net)
    outer.hybridize()
    expected = outer(x).asnumpy()
    outer.export(str(tmp_path / "outer"))
    assert is_stock((tmp_path / "outer-symbol.json").read_text())
    found = imported(tmp_path / "outer")(x)
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=0.01, atol=0.01)


def test_the_float16_model_of_a_parent(tmp_path):
    net = parent("float16")
    net(images())
    net.export(str(tmp_path / "net"), remove_amp_cast=False)
    symbol, args, _ = mx.model.load_checkpoint(str(tmp_path / "net"), 0)
    assert args["child_conv0_weight"].dtype == np.float16
    assert args["parent_dense0_weight"].dtype == np.float32
    ops = {node["op"] for node in graph.to_json(symbol)["nodes"]}
    assert "amp_cast" in ops and not any("gluon_amp" in op for op in ops)
    net(images())


def test_what_else_mxnet_saves_of_a_graph(tmp_path):
    for net in (parent("float16"), child("float16")):
        net(images())
        net.save(str(tmp_path / "all"))
        model = json.loads((tmp_path / "all-model.json").read_text())
        (saved,) = model.values()
        assert "Convolution" in saved["symbol"] and is_stock(saved["symbol"])

        class Estimator:  # all of one that `_save_symbol` reads
            pass

        Estimator.net = net
        CheckpointHandler(str(tmp_path), model_prefix="kept")._save_symbol(Estimator)
        assert is_stock((tmp_path / "kept-symbol.json").read_text())


def test_a_parent_has_its_own_class_whenever_it_has_no_graph(tmp_path):
    net, x = parent("float16"), images()
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
    net.export(str(tmp_path / "net"))
    assert is_stock((tmp_path / "net-symbol.json").read_text())
    assert type(amp.cast(net, "float32")) is Parent


def test_the_symbol_of_a_cast_net_is_saved_as_a_float32_graph(tmp_path):
    net, x = child("float16"), images()
    expected = net(x).asnumpy()
    net.export(str(tmp_path / "net"))  # for the parameters
    net(mx.sym.var("data")).save(str(tmp_path / "net-symbol.json"))
    text = (tmp_path / "net-symbol.json").read_text()
    assert "float16" not in text and '"__dtype__": "2"' not in text
    found = imported(tmp_path / "net")(x).asnumpy()
    np.testing.assert_allclose(found, expected, rtol=0.02, atol=0.02)


class Face(gluon.HybridBlock):
    """A small ArcFace: a convolution, a norm, PReLU, and the cosine to each identity."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.features = nn.HybridSequential()
            self.features.add(nn.Conv2D(8, 3), nn.BatchNorm(), nn.PReLU(), nn.Dropout(0.4))
            self.features.add(nn.Dense(8))
            self.weight = self.params.get("weight", shape=(5, 8))

    def hybrid_forward(self, F, x, weight):
        # the exporter knows the norm over channels only
        embedding = F.L2Normalization(F.expand_dims(self.features(x), 2), mode="channel")
        embedding = F.reshape(embedding, (-1, 8))
        return F.FullyConnected(embedding, weight, num_hidden=5, no_bias=True, flatten=False)


def test_mxnets_own_exporter_writes_an_onnx_model_of_the_masters(tmp_path, monkeypatch):
    """It fails on float16 weights and casts (deepinsight/insightface 1945)."""
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    # MXNet's exporter declares the opset of the installed onnx. 17 is the last that has all
    # operators as MXNet 1.9.1 writes them.
    monkeypatch.setattr(onnx.defs, "onnx_opset_version", lambda: 17)
    monkeypatch.setattr(onnx.checker.DEFAULT_CONTEXT, "opset_imports", {"": 17})
    net, x, path = Face(), images(), str(tmp_path / "net")
    net.initialize(mx.init.Xavier())
    amp.cast(net, "float16")
    net(x)
    trainer = amp.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01}, loss_scale=128)
    with autograd.record():
        loss = net(x)[:, 0].sum()
    trainer.backward(loss)
    assert trainer.step(1).applied
    net(x)
    net.export(path)
    files = f"{path}-symbol.json", f"{path}-0000.params"
    mx.onnx.export_model(*files, [x.shape], [np.float32], f"{path}.onnx")
    model = onnx.load(f"{path}.onnx")
    model.opset_import[0].version = 17
    onnx.checker.check_model(model)
    kinds_of_weights = {one.data_type for one in model.graph.initializer}
    assert kinds_of_weights <= {onnx.TensorProto.FLOAT, onnx.TensorProto.INT64}
    (result,) = ReferenceEvaluator(model).run(None, {"data": x.asnumpy()})
    amp.cast(net, "float32")  # which keeps every bit of the masters
    np.testing.assert_allclose(result, net(x).asnumpy(), atol=2e-6)
