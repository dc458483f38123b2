"""`amp.export_onnx`: nothing is written that was not run and compared."""

import sys
from operator import attrgetter

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.base.messages import UsageError
from gluon_amp.handover.network import network_of
from gluon_amp.handover.rounding import distance
from gluon_amp.handover.to_onnx import model, translate
from gluon_amp.handover.to_onnx.parts import compared

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import nn, rnn

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def small() -> nn.HybridSequential:
    mx.random.seed(0)
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, activation="relu"), nn.BatchNorm(), nn.Dense(6), nn.LayerNorm())
    net.add(nn.Dense(3))
    net.initialize(mx.init.Xavier())
    return net


def images(count: int = 2) -> nd.NDArray:
    mx.random.seed(1)
    return nd.random.normal(shape=(count, 3, 8, 8))


def run(path, *inputs):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    return session.run(None, {n: np.asarray(i.asnumpy()) for n, i in zip(names, inputs)})


def test_the_file_of_a_cast_net_computes_what_its_masters_do(tmp_path):
    """`mx.onnx.export_model` fails on float16 weights (insightface 1945), and on LayerNorm."""
    net, x, path = amp.cast(small(), "float16"), images(), tmp_path / "net.onnx"
    trainer = amp.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01}, loss_scale=128)
    with autograd.record():
        loss = net(x)[:, 0].sum()
    trainer.backward(loss)
    trainer.step(1)
    report = amp.export_onnx(net, path, x)
    amp.cast(net, "float32")  # which keeps every bit of the masters
    np.testing.assert_allclose(run(path, images(5))[0], net(images(5)).asnumpy(), atol=2e-6)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [(one.domain, one.version) for one in model.opset_import] == [("", 13)]
    assert {one.data_type for one in model.graph.initializer} <= {
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.INT64,
    }
    against = {row.against for row in report.rows}
    assert against == {"float32 net", "net in float16"}
    assert [row.batch for row in report.rows if row.allowed] == [2, 1, 5]
    assert all(row.largest <= row.allowed for row in report.rows if row.allowed)


def test_a_mixed_file_has_half_the_size_and_float32_norms(tmp_path):
    mx.random.seed(0)
    net = nn.HybridSequential()
    net.add(nn.Dense(300), nn.LayerNorm(), nn.Dense(300), nn.Dense(10))
    net.initialize(mx.init.Xavier())
    x = nd.random.normal(shape=(4, 300))
    plain = amp.export_onnx(net, tmp_path / "float32.onnx", x)
    mixed = amp.export_onnx(net, tmp_path / "float16.onnx", x, policy="float16")
    assert 0.5 <= mixed.size / plain.size < 0.52
    assert mixed.dtype == "float16"
    model = onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "float16.onnx"))
    dtypes = {one.name: one.type.tensor_type.elem_type for one in model.graph.value_info}
    sums = [node.output[0] for node in model.graph.node if node.op_type == "ReduceMean"]
    assert {dtypes[name] for name in sums} == {onnx.TensorProto.FLOAT}
    amp.cast(net, "float16")
    np.testing.assert_allclose(run(tmp_path / "float16.onnx", x)[0], net(x).asnumpy(), atol=4e-3)


def test_a_pin_of_a_policy_is_a_pin_of_the_file(tmp_path):
    net, x, path = small(), images(), tmp_path / "net.onnx"
    pinned = amp.Policy("float16").pin(blocks=["^0$"])
    amp.export_onnx(net, path, x, policy=pinned)
    weights = {one.name: one.data_type for one in onnx.load(path).graph.initializer}
    assert weights[net[0].weight.name] == onnx.TensorProto.FLOAT
    assert weights[net[4].weight.name] == onnx.TensorProto.FLOAT16


def test_a_net_that_overflows_in_float16_is_refused(tmp_path):
    net, x = small(), images() * 1e6
    with pytest.raises(UsageError, match="in float16 the net itself .* amp.suggest_policy"):
        amp.export_onnx(net, tmp_path / "net.onnx", x, policy="float16")
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_translation_names_its_block_and_leaves_the_earlier_file(tmp_path, monkeypatch):
    net, x, path = small(), images(), tmp_path / "net.onnx"
    amp.export_onnx(net, path, x)
    before = path.read_bytes()
    wrong = {**translate.TRANSLATIONS, "Activation": lambda n, w: w.add("Softplus", n.data)}
    monkeypatch.setattr(translate, "TRANSLATIONS", wrong)
    with pytest.raises(UsageError, match="first to differ is block 0.act, operator Activation"):
        amp.export_onnx(net, path, x)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["net.onnx"]


def test_an_operator_without_translation_is_named_with_its_block(tmp_path):
    net = nn.HybridSequential()
    net.add(nn.Dense(3), nn.HybridLambda(lambda F, x: F.gamma(x)))
    net.initialize()
    with pytest.raises(UsageError, match="block 1, operator gamma has no translation"):
        amp.export_onnx(net, tmp_path / "net.onnx", nd.random.normal(shape=(2, 4)))


def test_a_batch_that_the_graph_fixes_is_named_and_can_be_kept(tmp_path):
    net = nn.HybridLambda(lambda F, x: F.reshape(x, (2, 6)) * 2)
    x = nd.random.normal(shape=(2, 3, 2))
    with pytest.raises(UsageError, match="accepts a batch of 2 alone .* pass batch_axis=None"):
        amp.export_onnx(net, tmp_path / "net.onnx", x)
    report = amp.export_onnx(net, tmp_path / "net.onnx", x, batch_axis=None)
    assert report.inputs == {"data": "2 x 3 x 2 float32"}
    assert {row.batch for row in report.rows} == {None}


def test_a_net_that_runs_only_without_a_graph_is_refused(tmp_path):
    net = nn.HybridLambda(lambda F, x: x * F.sum(x, axis=1, keepdims=True))  # broadcasts arrays
    with pytest.raises(UsageError, match="as a graph the net does not accept .* run hybridized"):
        amp.export_onnx(net, tmp_path / "net.onnx", nd.ones((2, 3)))


@pytest.mark.parametrize("batch_axis", [None, 0])
def test_first_states_of_a_batch_that_is_fixed(batch_axis, tmp_path):
    """MXNet writes them as zeros of an unknown size; 0 is the axis of the time."""
    layer = rnn.LSTM(4, input_size=3)
    layer.initialize()
    x = nd.random.normal(shape=(5, 2, 3))
    report = amp.export_onnx(layer, tmp_path / "net.onnx", x, batch_axis=batch_axis)
    assert "2 x 3 float32" in report.inputs["data"]
    np.testing.assert_allclose(run(tmp_path / "net.onnx", x)[0], layer(x).asnumpy(), atol=1e-6)


def test_a_batch_axis_for_each_input(tmp_path):
    def scaled(F, x, factor, states):
        return F.broadcast_mul(x, factor) + F.SwapAxis(states, dim1=0, dim2=1)

    inputs = nd.random.normal(shape=(2, 3)), nd.ones((1, 3)), nd.ones((3, 2))
    net, path = nn.HybridLambda(scaled), tmp_path / "net.onnx"
    for error, batch_axis, message in (
        (UsageError, 0, "have batches of .*: give batch_axis"),
        (UsageError, (0, 1), "got 2 axes of the batch, expected one for each of the 3"),
        (TypeError, "0", "got batch_axis='0', expected an axis, None or"),
        (UsageError, (0, None, 2), "has no axis 2 for the batch"),
    ):
        with pytest.raises(error, match=message):
            amp.export_onnx(net, path, *inputs, batch_axis=batch_axis)
    report = amp.export_onnx(net, path, *inputs, batch_axis=(0, None, 1))
    sizes = ["batch x 3 float32", "1 x 3 float32", "3 x batch float32"]
    assert list(report.inputs.values()) == sizes


def test_inputs_have_the_order_of_the_call_and_one_that_is_not_read_is_left_out(tmp_path):
    def backwards(F, spare, x, y, z):
        return F.slice_like(F.tile(z, (3, 1)), y, axes=(0,)) + F.zeros_like(y) + x

    inputs, path = [nd.random.normal(shape=(2, 3)) for _ in range(4)], tmp_path / "net.onnx"
    report = amp.export_onnx(nn.HybridLambda(backwards), path, *inputs)
    session = onnxruntime.InferenceSession(str(path))
    assert [one.name for one in session.get_inputs()] == list(report.inputs) == ["data1", "data3"]
    _, x, _, z = inputs
    np.testing.assert_array_equal(run(path, x, z)[0], (x + z).asnumpy())


@pytest.mark.parametrize("layer, shape, options, smallest, largest", [
    # reads its weight transposed, and the file holds it once
    (nn.Dense(300, in_units=200, flatten=False), (2, 3, 200), {}, 240_000, 245_000),
    # 80,800 weights in float16
    (rnn.LSTM(100, input_size=100), (2, 1, 100), {"policy": "float16", "batch_axis": 1},
     160_000, 170_000),
])  # fmt: skip
def test_a_file_holds_each_weight_once(layer, shape, options, smallest, largest, tmp_path):
    layer.initialize()
    x = nd.random.normal(shape=shape)
    assert smallest < amp.export_onnx(layer, tmp_path / "net.onnx", x, **options).size < largest


@pytest.mark.parametrize("op", ["contrib.ROIAlign", "ROIPooling"])
def test_random_regions_are_regions(op, tmp_path):
    """Their first number is that of an image: others end onnxruntime's run."""

    def pooled(F, x, regions):
        return attrgetter(op)(F)(x, regions, pooled_size=(2, 2), spatial_scale=1)

    inputs = images(1), nd.array([[0, 0, 0, 5, 5], [0, 1, 2, 6, 7]])
    net, path = nn.HybridLambda(pooled), tmp_path / "net.onnx"
    assert network_of(net, inputs, "f").indices() == {"data1": True}
    report = amp.export_onnx(net, path, *inputs, batch_axis=None)
    assert {row.inputs for row in report.rows} == {"given", "random"}


class Ranked(nn.HybridBlock):
    """Returns the places of the two largest of its features, and a dense layer of these values."""

    def __init__(self):
        super().__init__()
        self.features, self.head = nn.Dense(64), nn.Dense(3)

    def hybrid_forward(self, F, x):
        values, places = F.topk(self.features(x), k=2, ret_typ="both")
        return places, self.head(values)


def ranked():
    """Return a net whose features are nearly equal, so that roundings decide, and its inputs."""
    mx.random.seed(0)
    net = Ranked()
    net.initialize(mx.init.Xavier())
    x = nd.random.uniform(0.5, 1.5, (4, 300))
    net(x)
    weight = net.features.weight.data()
    net.features.weight.set_data(nd.broadcast_add(weight[:1], weight * 1e-7))
    return net, x


def test_what_ties_decide_is_compared_part_by_part(tmp_path):
    net, x = ranked()
    report = amp.export_onnx(net, tmp_path / "net.onnx", x)
    given = [row for row in report.rows if row.inputs == "given"]
    assert [row.output for row in given] == ["part 0", "part 1"]
    assert all(row.largest <= row.allowed < 1e-4 for row in report.rows)
    model = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"))
    assert [one.name for one in model.get_outputs()] == ["output0", "output1"]
    half = amp.export_onnx(net, tmp_path / "half.onnx", x, policy="float16")
    assert {row.output for row in half.rows if row.allowed} == {"part 0", "part 1"}


def test_first_states_behind_a_decision():
    """They are zeros of an unknown size, which only the layer that reads them knows."""
    mx.random.seed(0)
    net, lstm = nn.HybridSequential(), rnn.LSTM(4, layout="NTC")
    net.add(nn.Dense(8), nn.HybridLambda(lambda F, x: F.topk(x, k=2)), nn.Embedding(8, 3), lstm)
    net.initialize(mx.init.Normal(1))
    network = network_of(net, (nd.random.normal(shape=(4, 5)),), "f")
    found = translate.translate(network, {"data": 0})
    parts = [*compared(network, found, network.inputs, "float32")]
    assert [part.number for part in parts] == [0, 1]
    for part in parts:
        assert all(map(np.less_equal, map(distance, part.found, part.expected), part.allowed))


def test_a_decision_about_the_inputs(tmp_path):
    net = nn.HybridLambda(lambda F, x: F.argmax(x, axis=1))
    x = nd.array(1 + 2.0**-23 * np.array([[0, 3, 1, 2], [3, 0, 1, 2]]))
    report = amp.export_onnx(net, tmp_path / "net.onnx", x)
    assert {row.output for row in report.rows if row.inputs == "given"} == {"part 1"}


@pytest.mark.parametrize("op, part", [("FullyConnected", 0), ("topk", 1)])
def test_a_fault_before_or_behind_a_decision_is_found(op, part, tmp_path, monkeypatch):
    net, x = ranked()
    right = translate.TRANSLATIONS[op]

    def wrong(n, w):
        names = right(n, w)
        names, *others = [names] if isinstance(names, str) else names
        return [w.add("Mul", names, w.scalar(1.01, "float32")), *others]

    monkeypatch.setattr(translate, "TRANSLATIONS", {**translate.TRANSLATIONS, op: wrong})
    with pytest.raises(UsageError, match=f"part {part} of the ONNX file differs"):
        amp.export_onnx(net, tmp_path / "net.onnx", x)
    assert list(tmp_path.iterdir()) == []


def test_a_module_is_exported_without_its_label(tmp_path):
    data = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=4)
    data = mx.sym.FullyConnected(mx.sym.BatchNorm(data), num_hidden=3)
    symbol = mx.sym.SoftmaxOutput(data, name="softmax")
    module = amp.symbolic.Module(symbol, policy="float16")
    x = images()
    module.bind([("data", x.shape)], [("softmax_label", (2,))])
    module.init_params(mx.init.Xavier())
    report = amp.export_onnx(module, tmp_path / "net.onnx", x, policy="float16")
    assert report.inputs == {"data": "batch x 3 x 8 x 8 float32"}
    module.forward(mx.io.DataBatch([x], [nd.zeros(2)]), is_train=False)
    expected = module.get_outputs()[0].asnumpy()
    np.testing.assert_allclose(run(tmp_path / "net.onnx", x)[0], expected, atol=2e-3)


def test_weights_that_no_file_holds_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(model, "LARGEST", 1000)
    net = nn.Dense(10, in_units=30)
    net.initialize()
    with pytest.raises(UsageError, match="weights have 0.0 GB, .* pass policy='float16'"):
        amp.export_onnx(net, tmp_path / "net.onnx", nd.random.normal(shape=(2, 30)))
    amp.export_onnx(net, tmp_path / "net.onnx", nd.random.normal(shape=(2, 30)), policy="float16")


def test_an_input_with_the_name_of_an_output_is_refused(tmp_path):
    data = mx.sym.var("output")
    module = mx.mod.Module(data * 2, data_names=["output"], label_names=None)
    module.bind([("output", (2, 3))], for_training=False)
    module.init_params()
    with pytest.raises(UsageError, match="name of an output of the file, output: rename it"):
        amp.export_onnx(module, tmp_path / "net.onnx", nd.ones((2, 3)))


def test_metadata_is_in_the_file(tmp_path):
    path = tmp_path / "net.onnx"
    amp.export_onnx(small(), path, images(), metadata={"classes": '["cat", "Käfer"]'})
    found = {one.key: one.value for one in onnx.load(path).metadata_props}
    assert found == {"dtype": "float32", "producer": "gluon_amp", "classes": '["cat", "Käfer"]'}


@pytest.mark.parametrize("metadata", [{"classes": 10}, {1: "a"}, ["a"]])
def test_metadata_other_than_text_is_refused(metadata, tmp_path):
    with pytest.raises(TypeError, match="expected metadata of names and texts: use json.dumps"):
        amp.export_onnx(small(), tmp_path / "net.onnx", images(), metadata=metadata)


@pytest.mark.parametrize("where", ["parameter", "result"])
def test_a_net_without_numbers_is_no_proof(where, tmp_path):
    """NaN equals NaN, so that any file would agree."""
    net, x = small(), images()
    net(x)
    if where == "parameter":
        net[4].bias.set_data(nd.full(3, np.nan))
    else:
        net.add(nn.HybridLambda(lambda F, x: F.log(-F.exp(x))))
    with pytest.raises(UsageError, match="output 0 of the net has no finite value"):
        amp.export_onnx(net, tmp_path / "net.onnx", x)
    assert list(tmp_path.iterdir()) == []


def test_the_report_is_a_table_of_80_columns(tmp_path):
    report = amp.export_onnx(small(), tmp_path / "net.onnx", images(), policy="float16")
    first, *lines = str(report).splitlines()
    assert first == f"{tmp_path / 'net.onnx'}: ONNX opset 13, float16, {report.size / 1e3:.1f} kB"
    assert lines[:3] == [
        "  input   data     batch x 3 x 8 x 8 float32",
        "  output  output   batch x 3 float32",
        "batch  inputs output   against         largest     mean  allowed   top-1",
    ]
    assert len(lines) == 3 + 6
    assert max(map(len, lines)) <= 80


def test_a_report_says_where_rounding_alone_is_too_large_for_a_proof(tmp_path):
    net = nn.HybridSequential()
    net.add(nn.Dense(2, in_units=3), nn.HybridLambda(lambda F, x: x - 1000.3))
    net.initialize()
    net[0].bias.set_data(nd.array([1000.3, 1000.3]))
    x = nd.random.uniform(0.1, 1, (4, 3)) * 1000
    weak = amp.export_onnx(net, tmp_path / "net.onnx", x * 1e-4)
    assert "so this proves little:" in str(weak)
    assert max(map(len, str(weak).splitlines()[1:])) <= 80
    assert "proves little" not in str(amp.export_onnx(net, tmp_path / "net.onnx", x))


@pytest.mark.parametrize("policy", ["bfloat16", "compute=float8_e4m3"])
def test_other_dtypes_are_refused(policy, tmp_path):
    with pytest.raises(UsageError, match="expected None, 'float16' or a relative of it"):
        amp.export_onnx(small(), tmp_path / "net.onnx", images(), policy=policy)


def test_a_path_that_cannot_be_written_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(translate, "translate", None)
    with pytest.raises(FileNotFoundError, match="There is no folder .*: create it"):
        amp.export_onnx(small(), tmp_path / "missing" / "net.onnx", images())
    with pytest.raises(PermissionError, match="cannot be written"):
        amp.export_onnx(small(), bytes(tmp_path), images())


@pytest.mark.parametrize("name", ["onnx", "onnxruntime"])
def test_a_package_that_is_missing_or_too_new_is_named(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=rf"{name} cannot be imported .*gluon-amp\[export\]"):
        amp.export_onnx(small(), tmp_path / "net.onnx", images())

    class TooNew:
        def find_spec(self, fullname, path=None, target=None):
            if fullname == name:
                raise AttributeError("module 'numpy' has no attribute 'dtypes'")

    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [TooNew(), *sys.meta_path])
    with pytest.raises(UsageError, match=rf"{name} cannot be imported \(module 'numpy'"):
        amp.export_onnx(small(), tmp_path / "net.onnx", images())


def test_true_in_small_letters_as_other_bindings_of_mxnet_write_it(tmp_path):
    product = mx.sym.dot(mx.sym.var("data"), mx.sym.var("w", shape=(4, 5)), transpose_b=True)
    product = mx.sym.load_json(product.tojson().replace('"True"', '"true"'))
    net = mx.gluon.SymbolBlock(product, [mx.sym.var("data")])
    net.initialize(mx.init.One())
    amp.export_onnx(net, tmp_path / "net.onnx", nd.ones((2, 5)))
    np.testing.assert_allclose(run(tmp_path / "net.onnx", nd.ones((2, 5)))[0], np.full((2, 4), 5))
