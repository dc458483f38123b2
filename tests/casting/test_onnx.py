"""MXNet's own exporter writes ONNX models of nets that were trained in float16.

A float16 ArcFace could not be exported (deepinsight/insightface 1945): the exporter met float16
weights and casts. Here `net.export` writes a float32 graph with the masters.
"""

import numpy as np
import pytest

import gluon_amp as amp

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

onnx = pytest.importorskip("onnx")
FLOAT = onnx.TensorProto.FLOAT


class Face(gluon.HybridBlock):
    """A small ArcFace: convolutions, norms, PReLU, and the cosine to each identity."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.features = nn.HybridSequential()
            self.features.add(
                nn.Conv2D(8, 3, padding=1, use_bias=False, in_channels=3),
                nn.BatchNorm(in_channels=8),
                nn.PReLU(),
                nn.MaxPool2D(),
                nn.Dropout(0.4),
                nn.Dense(8, in_units=128),
            )
            self.weight = self.params.get("weight", shape=(5, 8))

    def hybrid_forward(self, F, x, weight):
        # the exporter knows the norm over channels only
        embedding = F.L2Normalization(F.expand_dims(self.features(x), 2), mode="channel")
        embedding = F.reshape(embedding, (-1, 8))
        return F.FullyConnected(embedding, weight, num_hidden=5, no_bias=True, flatten=False)


class Attention(gluon.HybridBlock):
    """One layer of a transformer: embedding, attention, layer norm, GELU."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.embedding = nn.Embedding(3000, 8)
            self.parts = [nn.Dense(8, flatten=False, in_units=8) for _ in range(3)]
            for part in self.parts:
                self.register_child(part)
            self.norm = nn.LayerNorm(in_channels=8)
            self.gelu = nn.GELU()
            self.head = nn.Dense(5, in_units=32)

    def hybrid_forward(self, F, ids):
        x = self.embedding(ids)
        query, key, value = (part(x) for part in self.parts)
        scores = F.softmax(F.batch_dot(query, key, transpose_b=True) / 3)
        return self.head(self.gelu(self.norm(x + F.batch_dot(scores, value))))


NETS = {
    "face": (Face, lambda: nd.random.uniform(-1, 1, (4, 3, 8, 8))),
    "attention": (Attention, lambda: nd.array(np.random.randint(2049, 3000, (4, 4)))),
}


def trained(name):
    make, data = NETS[name]
    net = make()
    net.initialize(mx.init.Xavier())
    amp.cast(net, "float16")
    x, labels = data(), nd.array([0, 1, 2, 3])
    trainer = amp.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01}, loss_scale=128)
    with autograd.record():
        loss = gluon.loss.SoftmaxCrossEntropyLoss()(net(x), labels)
    trainer.backward(loss)
    assert trainer.step(4).applied
    return net, x


OPSET = 17  # the last one that has all operators as MXNet 1.9.1 writes them


@pytest.fixture
def opset(monkeypatch):
    """MXNet's exporter declares the opset of the installed onnx, which is a later one."""
    monkeypatch.setattr(onnx.defs, "onnx_opset_version", lambda: OPSET)
    monkeypatch.setattr(onnx.checker.DEFAULT_CONTEXT, "opset_imports", {"": OPSET})


@pytest.mark.usefixtures("opset")
@pytest.mark.parametrize("name", NETS)
def test_an_exported_model_computes_what_the_float32_net_computes(name, tmp_path):
    from onnx.reference import ReferenceEvaluator

    net, x = trained(name)
    low = net(x).asnumpy()
    path = str(tmp_path / "net")
    net.export(path)
    mx.onnx.export_model(
        f"{path}-symbol.json", f"{path}-0000.params", [x.shape], [np.float32], f"{path}.onnx"
    )
    model = onnx.load(f"{path}.onnx")
    model.opset_import[0].version = OPSET
    onnx.checker.check_model(model)
    assert model.graph.initializer
    assert {one.data_type for one in model.graph.initializer} <= {FLOAT, onnx.TensorProto.INT64}
    (result,) = ReferenceEvaluator(model).run(None, {"data": x.asnumpy()})
    np.testing.assert_allclose(result, low, atol=0.05)

    amp.cast(net, "float32")  # which keeps every bit of the masters
    np.testing.assert_allclose(result, net(x).asnumpy(), atol=2e-6)
