"""Law 15: an exported file was run and compared before the call returns.

Whatever a translation does wrong, the call raises, and no file appears. Each operator of these
nets is broken in turn.
"""

import pytest

import gluon_amp as amp
from gluon_amp.base.messages import UsageError
from gluon_amp.handover.to_onnx import translate
from gluon_amp.handover.to_onnx.translate import canonical

import mxnet as mx
from mxnet import nd
from mxnet.gluon import nn, rnn

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def convolutional():
    net = nn.HybridSequential()
    net.add(
        nn.LayerNorm(),
        nn.Conv2D(4, 3, activation="relu"),
        nn.BatchNorm(),
        nn.MaxPool2D(),
        nn.PReLU(),
    )
    net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(5))
    return net, nd.random.normal(shape=(2, 3, 8, 8))


def recurrent():
    net = nn.HybridSequential()
    net.add(nn.Embedding(9, 4), rnn.GRU(6, layout="NTC"), nn.Dense(5, flatten=False))
    net.add(nn.HybridLambda("log_softmax"))
    return net, nd.array([[1, 2, 3], [4, 5, 8]])


def broken(translation):
    """Return a translation whose result is by a tenth too large."""

    def translate_wrongly(node, writer):
        found = translation(node, writer)
        names = [found] if isinstance(found, str) else list(found)
        factor = writer.scalar(1.1, node.out.dtype)
        return [writer.add("Mul", names[0], factor), *names[1:]]

    return translate_wrongly


PRODUCTS = {
    "dense": lambda F, x, w: F.npx.fully_connected(x, w, no_bias=True, num_hidden=5, flatten=False),
    "right": lambda F, x, w: F.np.matmul(x, F.np.transpose(w)),
    "left": lambda F, x, w: F.np.matmul(w, F.np.transpose(x, (0, 2, 1))),
}


class OfMatrix(mx.gluon.HybridBlock):
    """Transposes the three axes of a float16 result, and multiplies it with a matrix."""

    def __init__(self, product):
        super().__init__()
        self.product, self.dense = product, nn.Dense(6, in_units=6, flatten=False)
        self.weight = self.params.get("weight", shape=(5, 6))

    def hybrid_forward(self, F, x, weight):
        return self.product(F, F.np.transpose(self.dense(x), (1, 0, 2)), weight)


@pytest.mark.parametrize("product", sorted(PRODUCTS))
def test_onnxruntime_loads_products_of_a_matrix_and_a_transpose(product, tmp_path):
    """Without a Reshape between them it ends the process, in some versions."""
    onnx, path = pytest.importorskip("onnx"), tmp_path / "net.onnx"
    with mx.util.np_shape(True), mx.util.np_array(True):
        net = OfMatrix(PRODUCTS[product])
        net.initialize()
        amp.export_onnx(net, path, mx.np.ones((3, 2, 6)), policy="float16")
    nodes = onnx.load(path).graph.node
    parted = {name for node in nodes if node.op_type == "Reshape" for name in node.output}
    for node in [node for node in nodes if node.op_type == "MatMul"]:
        assert parted.intersection(node.input), node


@pytest.mark.parametrize("policy", [None, "float16"])
@pytest.mark.parametrize("build", [convolutional, recurrent])
def test_no_wrong_file_is_written(build, policy, tmp_path, monkeypatch):
    mx.random.seed(0)
    net, x = build()
    net.initialize(mx.init.Xavier())
    path = tmp_path / "net.onnx"
    report = amp.export_onnx(net, path, x, policy=policy)
    assert all(row.largest <= row.allowed for row in report.rows)
    path.unlink()
    net.hybridize()
    net(x)
    ops = {canonical(node["op"]) for node in amp_nodes(net)} - {"null"}
    for op in sorted(ops - {"Flatten", "SwapAxis", "Reshape", "_rnn_param_concat", "_zeros"}):
        wrong = {**translate.TRANSLATIONS, op: broken(translate.TRANSLATIONS[op])}
        monkeypatch.setattr(translate, "TRANSLATIONS", wrong)
        with pytest.raises(UsageError, match="nothing was written"):
            amp.export_onnx(net, path, x, policy=policy)
        assert list(tmp_path.iterdir()) == [], op


def amp_nodes(net):
    from gluon_amp import graph

    return graph.to_json(net._cached_graph[1])["nodes"]
