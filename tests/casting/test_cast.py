"""Binding a policy to a net: scope, undo, every kind of block, and what is said of bad input."""

import copy
import warnings

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.casting.binding import binding_of
from gluon_amp.dtypes import dtype_name
from gluon_amp.policy import graph

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn, rnn
from mxnet.gluon.model_zoo import vision

POLICIES = ("float16", "mixed_float16", "bfloat16")


def small_net(prefix="net_"):
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Conv2D(8, 3, padding=1, in_channels=3), nn.BatchNorm(in_channels=8))
        net.add(nn.Activation("relu"), nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(4, in_units=8))
    net.initialize(mx.init.Xavier())
    return net


def images(n=2, seed=0, size=8):
    return nd.array(np.random.RandomState(seed).normal(size=(n, 3, size, size)))


def backward(net, *inputs):
    """Run a training pass whose loss weighs all outputs differently, and return the outputs."""
    with autograd.record():
        out = net(*inputs)
        flat, _ = gluon.block._flatten(out, "output")
    heads = [nd.array(np.random.RandomState(1).normal(size=o.shape)) for o in flat]
    autograd.backward(flat, heads)
    return out


def dtypes_of(net):
    return {name.split("_", 1)[1]: dtype_name(p.dtype) for name, p in net.collect_params().items()}


def public_attributes():
    """Every public attribute of the MXNet modules that other libraries are known to patch."""
    modules = [mx.nd, mx.sym, mx.gluon, mx.gluon.nn, mx.gluon.rnn, mx.gluon.loss, mx.nd.op]
    modules += [mx.sym.op, mx.nd.contrib, mx.sym.contrib, mx.gluon.block, mx.gluon.Block]
    modules += [mx.gluon.HybridBlock, mx.gluon.SymbolBlock, mx.gluon.Parameter, mx.autograd]
    return {
        (m.__name__, name): id(value)
        for m in modules
        for name, value in vars(m).items()
        if not name.startswith("__")
    }


# ------------------------------------------------------------------------------ Law 1: scope


@pytest.mark.parametrize("policy", POLICIES)
def test_casting_one_net_changes_no_attribute_of_mxnet_and_no_other_net(policy):
    other, x = small_net("other_"), images()
    other.hybridize()
    before = backward(other, x).asnumpy()
    gradient = other[0].weight.grad().asnumpy()
    attributes = public_attributes()

    net = small_net()
    amp.cast(net, policy)
    backward(net, x).wait_to_read()
    assert public_attributes() == attributes
    assert np.array_equal(backward(other, x).asnumpy(), before)
    assert np.array_equal(other[0].weight.grad().asnumpy(), gradient)
    assert type(other) is nn.HybridSequential

    amp.cast(net, "float32")
    assert public_attributes() == attributes


@pytest.mark.parametrize("policy", POLICIES)
def test_float32_undoes_a_cast(policy):
    net, x = small_net(), images()
    expected = net(x).asnumpy()
    for p in net.collect_params().values():
        p.set_data(p.data().astype("float16").astype("float32"))  # representable in float16
    expected = net(x).asnumpy()
    before = {name: p.data().asnumpy() for name, p in net.collect_params().items()}
    for _ in range(2):
        amp.cast(net, policy)
        assert not np.array_equal(net(x).asnumpy(), expected)
        amp.cast(net, "float32")
        assert type(net) is nn.HybridSequential
        assert all(type(child).__module__.startswith("mxnet") for child in net)
        assert binding_of(net) is None
        for name, p in net.collect_params().items():
            assert p.dtype == "float32" or p.dtype == np.float32
            assert np.array_equal(p.data().asnumpy(), before[name])
        assert np.array_equal(net(x).asnumpy(), expected)


def test_twice_is_once():
    net, x = small_net(), images()
    once = amp.cast(net, "float16")(x).asnumpy()
    kind = type(net)
    assert np.array_equal(amp.cast(net, "float16")(x).asnumpy(), once)
    assert type(net) is kind
    assert isinstance(net, nn.HybridSequential)
    assert repr(net).startswith("HybridSequential(")


# ------------------------------------------------------------------------- dtypes and Law 10


def test_float16_weights_float32_norms_float32_output():
    net = amp.cast(small_net(), "float16")
    assert dtypes_of(net) == {
        "conv0_weight": "float16",
        "conv0_bias": "float16",
        "batchnorm0_gamma": "float32",
        "batchnorm0_beta": "float32",
        "batchnorm0_running_mean": "float32",
        "batchnorm0_running_var": "float32",
        "dense0_weight": "float16",
        "dense0_bias": "float16",
    }
    assert backward(net, images()).dtype == np.float32
    assert net[0].weight.grad().dtype == np.float16


@pytest.mark.parametrize("policy", ["mixed_float16", "bfloat16"])
def test_mixed_policies_keep_float32_parameters_and_gradients(policy):
    net = amp.cast(small_net(), policy)
    assert set(dtypes_of(net).values()) == {"float32"}
    assert backward(net, images()).dtype == np.float32
    assert net[0].weight.grad().dtype == np.float32


@pytest.mark.parametrize("policy", POLICIES)
def test_every_product_runs_in_the_compute_dtype(policy):
    net = amp.cast(small_net(), policy)
    rows = amp.describe(net, images()).rows
    compute = amp.Policy.parse(policy).compute_dtype
    ran = {row.op: row.compute_dtype for row in rows}
    assert ran["Convolution"] == ran["FullyConnected"] == compute
    assert ran["BatchNorm"] == "float32"


@pytest.mark.parametrize("policy", POLICIES)
def test_results_are_near_float32(policy):
    net, x = small_net(), images()
    expected = backward(net, x).asnumpy()
    gradient = net[0].weight.grad().asnumpy()
    amp.cast(net, policy)
    unit = {"float16": 2**-11, "bfloat16": 2**-8}[amp.Policy.parse(policy).compute_dtype]
    got = backward(net, x).asnumpy()
    assert 0 < np.abs(got - expected).max() < 8 * unit * np.abs(expected).max()
    got = net[0].weight.grad().asnumpy()
    assert 0 < np.abs(got - gradient).max() < 64 * unit * np.abs(gradient).max()


def test_float16_and_mixed_float16_compute_the_same():
    x = images()
    net = small_net()
    low = amp.cast(copy.deepcopy(net), "float16")(x).asnumpy()
    assert np.array_equal(amp.cast(net, "mixed_float16")(x).asnumpy(), low)


def test_float16_data_gives_what_float32_data_gives():
    net, x = amp.cast(small_net(), "float16"), images()
    out = net(x).asnumpy()
    assert np.array_equal(net(x.astype("float16")).asnumpy(), out)
    assert np.array_equal(net(x).asnumpy(), out)


# ------------------------------------------------------------------- when and on what it works


def test_before_initialize_with_deferred_shapes():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Dense(3))
    amp.cast(net, "float16")
    net.initialize(mx.init.Xavier())
    assert net(images()).dtype == np.float32
    assert net[0].weight.data().dtype == np.float16
    assert net[1].gamma.data().dtype == np.float32


@pytest.mark.parametrize("when", ["before", "after"])
def test_with_hybridize_before_or_after(when):
    net, x = small_net(), images()
    if when == "before":
        net.hybridize(static_alloc=True, static_shape=True)
        net(x)
    amp.cast(net, "float16")
    flags = dict(net._flags)
    if when == "before":
        assert flags["static_alloc"] and flags["static_shape"]
    else:
        net.hybridize(static_alloc=True, static_shape=True)
    assert backward(net, x).dtype == np.float32


def test_a_cast_net_stays_hybridized_and_says_so():
    net = amp.cast(small_net(), "float16")
    with pytest.warns(UserWarning, match="stays hybridized"):
        net.hybridize(False)
    assert net(images()).dtype == np.float32


def test_batch_size_may_change():
    net = amp.cast(small_net(), "float16")
    net.hybridize(static_alloc=True, static_shape=True)
    whole = net(images(6)).asnumpy()
    for n in (1, 4, 6):
        assert np.array_equal(net(images(6)[:n]).asnumpy(), whole[:n])


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


def test_a_forward_that_asks_for_autograds_mode():
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


def test_a_plain_block_gets_its_hybrid_parts_cast():
    class Plain(gluon.Block):
        def __init__(self):
            super().__init__()
            self.body = nn.HybridSequential()
            self.body.add(nn.Dense(8), nn.Dense(8))
            self.head = nn.Dense(2)

        def forward(self, x):
            hidden = self.body(x)
            assert hidden.dtype == np.float32  # its own code never sees float16
            return self.head(hidden * float(hidden.max().asscalar() > -1))

    net = Plain()
    net.initialize()
    amp.cast(net, "float16")
    assert backward(net, nd.ones((2, 3))).dtype == np.float32
    assert net.body[0].weight.dtype == "float16"
    rows = amp.describe(net).rows
    assert [row.block for row in rows if row.op == "FullyConnected"] == ["body.0", "body.1", "head"]
    amp.cast(net, "float32")
    assert type(net.body) is nn.HybridSequential
    assert net(nd.ones((2, 3))).dtype == np.float32


def test_a_symbol_block_with_batchnorms_of_any_name():
    x = mx.sym.var("data")
    names = ("g", "b", "moving_average_a", "another")
    hidden = mx.sym.Convolution(x, kernel=(3, 3), num_filter=4, name="c")
    hidden = mx.sym.BatchNorm(hidden, *(mx.sym.var(n) for n in names), fix_gamma=False, name="odd")
    out = mx.sym.FullyConnected(hidden, num_hidden=3, name="fc")
    net = gluon.SymbolBlock([out, hidden], [x])
    net.initialize(mx.init.One())
    expected = [o.asnumpy() for o in net(images())]
    amp.cast(net, "float16")
    assert {p: dtype_name(net.params[p].dtype) for p in names} == dict.fromkeys(names, "float32")
    assert net.params["c_weight"].dtype == "float16"
    amp.cast(net, "float32")
    assert all(np.array_equal(a.asnumpy(), b) for a, b in zip(net(images()), expected))
    outs = backward(amp.cast(net, "float16"), images())
    assert [o.dtype for o in outs] == [np.float32, np.float32]


def test_a_block_called_by_itself_is_cast_too():
    net = amp.cast(vision.resnet18_v1(classes=3), "float16")
    net.initialize()
    x = images(size=32)
    features = net.features(x)
    assert features.dtype == np.float32
    assert np.array_equal(net.output(features).asnumpy(), net(x).asnumpy())


def test_the_faqs_transplanted_features():
    pretrained = vision.resnet18_v1(classes=7)
    pretrained.initialize(mx.init.Xavier())
    net = vision.resnet18_v1(classes=3)
    net.initialize(mx.init.Xavier())
    amp.cast(net, "float16")
    net.features = pretrained.features  # float32
    amp.cast(net, "float16")
    x = images(size=32)
    assert backward(net, x).dtype == np.float32
    assert net.features[0].weight.dtype == "float16"
    net.summary(x.astype("float16"))


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


def test_summary_prints_and_changes_nothing(capsys):
    net = amp.cast(small_net(), "float16")
    out = net(images()).asnumpy()
    net.summary(images())
    assert "Conv2D-1" in capsys.readouterr().out
    assert net[0].weight.dtype == "float16"
    assert np.array_equal(net(images()).asnumpy(), out)


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


def test_several_contexts():
    net = small_net()
    net.collect_params().reset_ctx([mx.cpu(0), mx.cpu(1)])
    amp.cast(net, "float16")
    x = images(4)
    whole = net(x).asnumpy()
    parts = gluon.utils.split_and_load(x, [mx.cpu(0), mx.cpu(1)])
    outs = [net(part) for part in parts]
    assert [o.context for o in outs] == [mx.cpu(0), mx.cpu(1)]
    assert np.array_equal(np.concatenate([o.asnumpy() for o in outs]), whole)
    net.collect_params().reset_ctx([mx.cpu(1)])
    assert np.array_equal(net(parts[1]).asnumpy(), whole[2:])


def test_deep_copies_are_cast_and_independent():
    net = amp.cast(small_net(), "float16")
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    out = net(images()).asnumpy()
    twin = copy.deepcopy(net)
    assert np.array_equal(twin(images()).asnumpy(), out)
    backward(twin, images())
    assert twin[0].weight.grad().asnumpy().any()
    twin[5].weight.set_data(twin[5].weight.data() * 0)
    assert np.array_equal(net(images()).asnumpy(), out)
    amp.cast(twin, "float32")
    assert net[0].weight.dtype == "float16"
    assert trainer is net[0].weight._trainer


def test_shared_parameters():
    first = nn.Dense(4, in_units=4, prefix="shared_")
    net = nn.HybridSequential()
    net.add(first, nn.Dense(4, in_units=4, params=first.params))
    net.initialize()
    amp.cast(net, "float16")
    assert net[0].weight is net[1].weight
    assert backward(net, nd.ones((1, 4))).dtype == np.float32


class Double(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        assert in_data[0].dtype == np.float32
        self.assign(out_data[0], req[0], in_data[0] * 2)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * 2)


@mx.operator.register("gluon_amp_test_double")
class DoubleProp(mx.operator.CustomOpProp):
    def __init__(self):  # takes no arguments, so it must not be given any
        super().__init__(need_top_grad=True)

    def create_operator(self, ctx, shapes, dtypes):
        return Double()


@pytest.mark.parametrize("policy", POLICIES)
def test_custom_operators_run_in_float32(policy):
    net = nn.HybridSequential()
    net.add(nn.Dense(3), nn.HybridLambda(lambda F, x: F.Custom(x, op_type="gluon_amp_test_double")))
    net.add(nn.Dense(2))
    net.initialize()
    x = nd.ones((2, 3))
    expected = net(x).asnumpy()
    amp.cast(net, policy)
    assert np.abs(backward(net, x).asnumpy() - expected).max() < 0.01
    assert {r.op: r.compute_dtype for r in amp.describe(net).rows}["Custom"] == "float32"


@pytest.mark.parametrize("policy", POLICIES)
def test_nets_of_the_numpy_interface(policy):
    class Net(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.conv, self.norm = nn.Conv2D(4, 3, in_channels=3), nn.BatchNorm(in_channels=4)
                self.dense = nn.Dense(5, in_units=64)

        def hybrid_forward(self, F, x):
            y = self.dense(F.npx.relu(self.norm(self.conv(x))))
            return F.npx.softmax(y + F.np.tanh(y)), F.np.concatenate([y, y], axis=1).mean()

    mx.npx.set_np()
    try:
        net = Net()
        net.initialize()
        x = mx.np.random.normal(size=(2, 3, 6, 6))
        expected = [o.asnumpy() for o in net(x)]
        amp.cast(net, policy)
        low = amp.Policy.parse(policy).param_dtype
        assert dtype_name(net.conv.weight.dtype) == low
        for got, want in zip(net(x), expected):
            assert isinstance(got, mx.np.ndarray) and got.dtype == np.float32
            assert np.abs(got.asnumpy() - want).max() < 0.01
        with autograd.record():
            loss = net(x)[0][:, 0].sum()
        loss.backward()
        assert net.conv.weight.grad().asnumpy().any()
    finally:
        mx.npx.reset_np()


def test_weights_tied_to_an_embedding_stay_float32_and_are_cast_in_the_graph():
    class Tied(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.embed = nn.Embedding(9, 4)
                self.decode = nn.Dense(9, flatten=False, params=self.embed.params)

        def hybrid_forward(self, F, ids):
            return self.decode(self.embed(ids))

    net = Tied()
    net.initialize()
    amp.cast(net, "float16")
    assert dtype_name(net.embed.weight.dtype) == "float32"
    ran = {row.op: row.compute_dtype for row in amp.describe(net, nd.array([[1, 2]])).rows}
    assert ran["FullyConnected"] == "float16"
    assert backward(net, nd.array([[1, 2]], dtype="int32")).shape == (1, 2, 9)


# ------------------------------------------------------------------------- files and symbols


@pytest.mark.parametrize("policy", POLICIES)
def test_export_loads_and_runs_in_stock_mxnet(policy, tmp_path):
    net, x = small_net(), images()
    expected = net(x).asnumpy()
    amp.cast(net, policy)
    net(x)
    net.export(str(tmp_path / "net"))
    text = (tmp_path / "net-symbol.json").read_text()
    assert "amp" not in text and "Cast" not in text
    files = str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params")
    block = gluon.SymbolBlock.imports(*files)
    assert np.abs(block(x).asnumpy() - expected).max() < 1e-3

    symbol, args, auxs = mx.model.load_checkpoint(str(tmp_path / "net"), 0)
    module = mx.mod.Module(symbol, label_names=None)
    module.bind([("data", x.shape)], for_training=False)
    module.set_params(args, auxs)
    module.forward(mx.io.DataBatch([x]))
    assert np.abs(module.get_outputs()[0].asnumpy() - block(x).asnumpy()).max() < 1e-6


def test_a_float16_export_is_imported_and_becomes_float32_again(tmp_path):
    """Its casts go with its float16 weights: they would feed float32 weights float16 data."""
    net, x = amp.cast(small_net(), "float16"), images()
    expected = net(x).asnumpy()
    net.export(str(tmp_path / "net"), remove_amp_cast=False)
    files = str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MXNet's, of the data's dtype
        block = gluon.SymbolBlock.imports(*files)
    amp.cast(block, "float32")
    assert {np.dtype(p.dtype).name for p in block.collect_params().values()} == {"float32"}
    casts = [n for n in graph.to_json(block._cached_graph[1])["nodes"] if n["op"] == "amp_cast"]
    assert [cast["attrs"]["dtype"] for cast in casts] == [
        "float32"
    ]  # MXNet keeps that of an output
    found = block(x)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.asnumpy(), expected, atol=5e-3)
    np.testing.assert_allclose(amp.cast(block, "float16")(x).asnumpy(), expected, atol=5e-3)


def test_export_of_the_float16_model_is_a_float16_graph(tmp_path):
    net = amp.cast(small_net(), "float16")
    net(images())
    net.export(str(tmp_path / "net"), remove_amp_cast=False)
    symbol, args, auxs = mx.model.load_checkpoint(str(tmp_path / "net"), 0)
    assert args["net_conv0_weight"].dtype == np.float16
    assert args["net_batchnorm0_gamma"].dtype == np.float32
    ops = {node["op"] for node in graph.to_json(symbol)["nodes"]}
    assert "amp_cast" in ops and "Cast" not in ops  # no emulation in it
    internals = symbol.get_internals()
    types = {name: a.dtype for name, a in {**args, **auxs}.items()}
    _, found, _ = internals.infer_type(data="float32", **types)
    outputs = dict(zip(internals.list_outputs(), found))
    assert outputs["net_conv0_fwd_output"] == np.float16
    assert outputs["net_dense0_fwd_output"] == np.float16
    assert found[-1] == np.float32


@pytest.mark.parametrize("policy", POLICIES)
def test_parameter_files_go_both_ways(policy, tmp_path):
    stock, x, name = small_net(), images(), str(tmp_path / "a.params")
    stock.save_parameters(name)
    net = amp.cast(small_net(), policy)
    net.load_parameters(name)
    assert np.array_equal(net(x).asnumpy(), amp.cast(copy.deepcopy(stock), policy)(x).asnumpy())
    dtypes = dtypes_of(net)
    net.save_parameters(name)
    assert dtypes_of(net) == dtypes
    again = small_net()
    again.load_parameters(name)  # stock MXNet, no options
    assert np.array_equal(
        again[0].weight.data().asnumpy(), net[0].weight.data().asnumpy().astype("float32")
    )


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


# ---------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "x, text",
    [
        (nd.ones((2, 3, 8, 8), dtype="float64"), "got float64 data, expected float32 or float16"),
        (nd.ones((2, 3, 8, 8), dtype="int32"), "got int32 data, .* pass float32 data"),
        (nd.ones((2, 3, 8, 8), dtype="uint8"), "got uint8 data, .* pass float32 data"),
    ],
)
@pytest.mark.parametrize("policy", POLICIES)
def test_data_of_other_dtypes_gets_one_sentence_at_once(policy, x, text):
    net = amp.cast(small_net(), policy)
    for _ in range(2):
        with pytest.raises(TypeError, match=text) as caught:
            net(x)
        assert "\n" not in str(caught.value)
    assert net(images()).dtype == np.float32  # and the net still works


def test_blocks_that_are_no_net():
    with pytest.raises(TypeError, match="cast\\(\\) got a list, expected a gluon Block"):
        amp.cast([small_net()])
    with pytest.raises(TypeError, match="holds no HybridBlock"):
        amp.cast(nn.Sequential())


def test_parameters_of_other_dtypes():
    net = nn.Dense(2, in_units=3, dtype="float64")
    net.initialize()
    with pytest.raises(TypeError, match="weight is float64, expected float32"):
        amp.cast(net)
    assert type(net) is nn.Dense

    class Ids(gluon.HybridBlock):
        def __init__(self, grad_req):
            super().__init__()
            with self.name_scope():
                self.ids = self.params.get(
                    "ids", shape=(3,), dtype="int32", init="ones", grad_req=grad_req
                )
                self.rows = nn.Embedding(4, 2)

        def hybrid_forward(self, F, x, ids):
            return F.broadcast_add(self.rows(ids), x)

    with pytest.raises(TypeError, match="ids is int32, expected float32"):
        amp.cast(Ids("write"))
    net = Ids("null")
    net.initialize()
    amp.cast(net, "float16")
    assert net(nd.ones((1, 2))).dtype == np.float32
    assert net.ids.data().dtype == np.int32


@pytest.mark.parametrize(
    "forward",
    [
        lambda F, x: x if x.sum() > 0 else -x,
        lambda F, x: x.reshape((x.shape[0], -1)),
        lambda F, x: F.array(x.asnumpy()),
    ],
)
def test_a_forward_that_cannot_be_traced_is_refused_and_nothing_changes(forward):
    class Odd(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.dense = nn.Dense(2, in_units=3)

        def hybrid_forward(self, F, x):
            return forward(F, self.dense(x))

    net = Odd()
    net.initialize()
    with pytest.raises(ValueError, match="does not trace") as caught:
        amp.cast(net, "float16")
    assert "\n" not in str(caught.value)
    assert type(net) is Odd and type(net.dense) is nn.Dense
    assert dtype_name(net.dense.weight.dtype) == "float32"


def test_a_pin_that_matches_nothing_is_refused_and_nothing_changes():
    net = small_net()
    with pytest.raises(ValueError, match="'haed' matches no block"):
        amp.cast(net, amp.Policy.parse("float16").pin(blocks=["haed"]))
    assert set(dtypes_of(net).values()) == {"float32"}
    assert type(net) is nn.HybridSequential


@pytest.mark.parametrize("policy", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("before", [None, "float16"])
def test_a_cast_while_autograd_records_is_refused_and_no_gradient_is_lost(before, policy):
    net = nn.Dense(1, in_units=2)
    net.initialize(mx.init.One())
    if before:
        amp.cast(net, before)
    dtype = net.weight.dtype
    with autograd.record():
        loss = net(nd.array([[2, 3]]))
        with pytest.raises(RuntimeError, match=r"inside autograd.record\(\), .* before the record"):
            amp.cast(net, policy)
    loss.backward()
    assert net.weight.grad().asnumpy().tolist() == [[2, 3]]
    assert net.weight.dtype == dtype
    with autograd.train_mode():
        amp.cast(net, policy)  # nothing is recorded


def test_gluons_own_cast_on_a_cast_net_is_refused():
    net = amp.cast(small_net(), "float16")
    with pytest.raises(RuntimeError, match="call amp.cast"):
        net.cast("float32")


def test_bfloat16_on_a_gpu_is_refused_with_the_reason():
    net = nn.Dense(2, use_bias=False)  # deferred: no GPU is touched
    net.initialize(ctx=mx.gpu(0))
    with pytest.raises(ValueError, match="no bfloat16 kernels there"):
        amp.cast(net, "bfloat16")
    assert type(net) is nn.Dense
    amp.cast(net, "float16")


# ---------------------------------------------------------------------------------- describe


def test_describe_as_a_table():
    policy = amp.Policy.parse("float16").pin(blocks=["^5$"])
    text = str(amp.describe(amp.cast(small_net(), policy), images()))
    lines = text.splitlines()
    assert lines[0].split() == ["block", "op", "computes", "in", "parameters", "because"]
    assert lines[2].split() == ["0", "Convolution", "float16", "2×float16"]
    assert lines[3].split() == ["1", "BatchNorm", "float32", "4×float32", "[1]"]
    assert lines[-3] == f"[1] {policy.why('BatchNorm')}"
    assert lines[-2].startswith("[2] ")
    assert lines[-2].endswith("pinned to float32 by the policy's own pin")
    assert lines[-1] == "6 operators: 4 in float16, 2 in float32"


def test_describe_fits_80_columns():
    net = mx.gluon.model_zoo.vision.resnet50_v1()
    net.initialize()
    policy = amp.Policy.parse("float16").pin(ops=["Pooling"])
    text = str(amp.describe(amp.cast(net, policy), mx.nd.ones((1, 3, 32, 32))))
    assert max(map(len, text.splitlines())) <= 80
    assert text.count(policy.why("BatchNorm")) == 1


def test_describe_without_inputs():
    net = amp.cast(small_net(), "float16")
    with pytest.raises(ValueError, match="describe\\(\\) needs inputs"):
        amp.describe(net)
    net(images())
    assert len(amp.describe(net).rows) == 6


def test_describe_of_a_net_that_is_not_cast():
    rows = amp.describe(small_net(), images()).rows
    assert {row.compute_dtype for row in rows} == {"float32"}
    assert {row.reason for row in rows} == {""}


# ------------------------------------------------------------------------------ layers of Gluon

LAYERS = [
    (lambda: nn.LayerNorm(), (2, 6)),
    (lambda: nn.GroupNorm(2), (2, 4, 3, 3)),
    (lambda: nn.InstanceNorm(), (2, 4, 3, 3)),
    (lambda: gluon.contrib.nn.SyncBatchNorm(num_devices=1), (2, 4, 3, 3)),
    (lambda: nn.BatchNorm(), (2, 4, 3, 3)),
    (lambda: nn.PReLU(), (2, 4)),
    (lambda: nn.LeakyReLU(0.1), (2, 4)),
    (lambda: nn.ELU(), (2, 4)),
    (lambda: nn.SELU(), (2, 4)),
    (lambda: nn.GELU(), (2, 4)),
    (lambda: nn.Swish(), (2, 4)),
    (lambda: nn.Dropout(0.5), (2, 4)),
    (lambda: nn.Flatten(), (2, 4, 3)),
    (lambda: nn.HybridLambda(lambda F, x: F.LRN(x, nsize=3)), (2, 4, 3, 3)),
    (lambda: nn.HybridLambda("tanh"), (2, 4)),
    (lambda: nn.Conv1D(3, 3), (2, 4, 8)),
    (lambda: nn.Conv2D(4, 3, groups=4), (2, 4, 8, 8)),
    (lambda: nn.Conv3D(3, 2), (2, 2, 4, 4, 4)),
    (lambda: nn.Conv1DTranspose(3, 3), (2, 4, 8)),
    (lambda: nn.Conv2DTranspose(3, 3), (2, 4, 8, 8)),
    (lambda: nn.MaxPool1D(), (2, 4, 8)),
    (lambda: nn.AvgPool2D(), (2, 4, 8, 8)),
    (lambda: nn.MaxPool3D(), (2, 4, 8, 8, 8)),
    (lambda: nn.GlobalAvgPool1D(), (2, 4, 8)),
    (lambda: nn.GlobalMaxPool2D(), (2, 4, 8, 8)),
    (lambda: nn.ReflectionPad2D(1), (2, 4, 8, 8)),
    (lambda: gluon.contrib.nn.PixelShuffle2D(2), (2, 4, 3, 3)),
]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "make, shape", LAYERS, ids=lambda v: str(v) if isinstance(v, tuple) else ""
)
def test_each_layer_between_two_others(make, shape, policy):
    """Behind a convolution (so that its data is low precision) and before a dense layer."""
    first = {2: lambda: nn.Dense(shape[1]), 3: lambda: nn.Conv1D(shape[1], 1)}.get(
        len(shape), lambda: (nn.Conv2D if len(shape) == 4 else nn.Conv3D)(shape[1], 1)
    )
    net = nn.HybridSequential()
    net.add(first(), make(), nn.Dense(3))
    net.initialize(mx.init.Xavier())
    x = nd.array(np.random.RandomState(0).normal(size=shape))
    expected = net(x).asnumpy()
    amp.cast(net, policy)
    got = net(x)
    assert got.dtype == np.float32
    unit = {"float16": 2**-11, "bfloat16": 2**-8}[amp.Policy.parse(policy).compute_dtype]
    assert np.abs(got.asnumpy() - expected).max() <= 16 * unit * max(1, np.abs(expected).max())
    backward(net, x).wait_to_read()
    assert np.isfinite(net[0].weight.grad().asnumpy()).all()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("layer", [rnn.RNN, rnn.LSTM, rnn.GRU])
@pytest.mark.parametrize("states", [False, True])
def test_recurrent_layers(layer, states, policy):
    net = layer(5, num_layers=2, bidirectional=True, layout="NTC")
    net.initialize()
    x = nd.random.normal(shape=(2, 3, 4))
    expected = net(x).asnumpy()
    amp.cast(net, policy)
    low = amp.Policy.parse(policy).param_dtype
    assert {dtype_name(p.dtype) for p in net.collect_params().values()} == {low}
    if states:
        got, last = net(x, net.begin_state(2))
        assert all(s.dtype == np.float32 for s in last)
    else:
        got = net(x)
    assert got.dtype == np.float32
    assert np.abs(got.asnumpy() - expected).max() < 0.01
    backward(net, x)
    rows = amp.describe(net).rows
    compute = amp.Policy.parse(policy).compute_dtype
    if compute == "float16":
        assert [r.compute_dtype for r in rows if r.op == "RNN"] == ["float16"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cell", [rnn.RNNCell, rnn.LSTMCell, rnn.GRUCell])
def test_recurrent_cells_unrolled(cell, policy):
    class Net(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.cell = rnn.HybridSequentialRNNCell()
                self.cell.add(cell(5))
                self.cell.add(rnn.ResidualCell(cell(5)))
                self.cell.add(rnn.DropoutCell(0.1))

        def hybrid_forward(self, F, x):
            outs, _ = self.cell.unroll(3, x, layout="NTC", merge_outputs=True)
            return outs

    net = Net()
    net.initialize()
    x = nd.random.normal(shape=(2, 3, 5))
    expected = net(x).asnumpy()
    amp.cast(net, policy)
    assert np.abs(net(x).asnumpy() - expected).max() < 0.02
    assert backward(net, x).dtype == np.float32
    products = [r for r in amp.describe(net).rows if r.op == "FullyConnected"]
    assert {r.compute_dtype for r in products} == {amp.Policy.parse(policy).compute_dtype}
    if policy == "float16":
        assert net.cell[0].i2h_weight.dtype == "float16"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_cell_in_a_symbolic_loop(policy):
    class Loop(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.cell = rnn.LSTMCell(4, input_size=3)

        def hybrid_forward(self, F, x, h, c):
            outs, _ = F.contrib.foreach(self.cell, x, [h, c])
            return outs

    net = Loop()
    net.initialize()
    args = nd.random.normal(shape=(3, 2, 3)), nd.zeros((2, 4)), nd.zeros((2, 4))
    expected = net(*args).asnumpy()
    amp.cast(net, policy)
    assert 0 < np.abs(backward(net, *args).asnumpy() - expected).max() < 0.01
    assert net.cell.i2h_weight.grad().asnumpy().any()
    products = {r.compute_dtype for r in amp.describe(net).rows if r.op == "FullyConnected"}
    assert products == {amp.Policy.parse(policy).compute_dtype}


def test_a_cell_called_step_by_step():
    net = rnn.LSTMCell(5, input_size=4)
    net.initialize()
    x = nd.random.normal(shape=(2, 4))
    expected, _ = net(x, net.begin_state(2))
    expected = expected.asnumpy()
    amp.cast(net, "float16")
    assert net.i2h_weight.dtype == "float16"
    out, states = net(x, net.begin_state(2))
    out2, _ = net(x, states)
    assert np.abs(out.asnumpy() - expected).max() < 1e-3
    assert out2.dtype == np.float32


@pytest.mark.parametrize("policy", ["float16", "mixed_float16"])
def test_attention_with_interleaved_products(policy):
    class Attention(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.qkv = nn.Dense(24, flatten=False)

        def hybrid_forward(self, F, x):
            qkv = self.qkv(x)
            scores = F.contrib.interleaved_matmul_selfatt_qk(qkv, heads=2)
            weights = F.softmax(scores)
            return F.contrib.interleaved_matmul_selfatt_valatt(qkv, weights, heads=2)

    net = Attention()
    net.initialize()
    x = nd.random.normal(shape=(3, 2, 8))
    expected = net(x).asnumpy()
    amp.cast(net, policy)
    assert np.abs(net(x).asnumpy() - expected).max() < 1e-3
    backward(net, x)
    ran = {row.op: row.compute_dtype for row in amp.describe(net).rows}
    assert ran["_contrib_interleaved_matmul_selfatt_qk"] == "float16"
    assert ran["softmax"] == "float32"


LOSSES = [
    (gluon.loss.SoftmaxCrossEntropyLoss, lambda: (nd.array([1, 3]),)),
    (
        lambda: gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=False),
        lambda: (nd.ones((2, 4)) / 4,),
    ),
    (gluon.loss.SigmoidBCELoss, lambda: (nd.ones((2, 4)),)),
    (gluon.loss.L1Loss, lambda: (nd.ones((2, 4)),)),
    (gluon.loss.L2Loss, lambda: (nd.ones((2, 4)) * 300,)),
    (gluon.loss.HuberLoss, lambda: (nd.ones((2, 4)),)),
    (gluon.loss.HingeLoss, lambda: (nd.ones((2, 4)),)),
    (gluon.loss.PoissonNLLLoss, lambda: (nd.ones((2, 4)),)),
    (gluon.loss.KLDivLoss, lambda: (nd.ones((2, 4)) / 4,)),
    (lambda: gluon.loss.CTCLoss(layout="NTC"), lambda: (nd.array([[1], [2]]),)),
    (gluon.loss.CosineEmbeddingLoss, lambda: (nd.ones((2, 4)), nd.array([1, -1]))),
    (gluon.loss.TripletLoss, lambda: (nd.ones((2, 4)), nd.zeros((2, 4)))),
]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("make, others", LOSSES)
def test_losses_behind_a_cast_net_are_finite_float32(make, others, policy):
    net, loss = nn.Dense(12 if "CTC" in str(make()) else 4), make()
    net.initialize()
    amp.cast(net, policy)
    labels = others()
    with autograd.record():
        out = net(nd.ones((2, 3)))
        out = out.reshape((2, 3, 4)) if out.shape[1] == 12 else out
        value = loss(out, *labels)
    value.backward()
    assert value.dtype == np.float32
    assert np.isfinite(value.asnumpy()).all()
    assert np.isfinite(net.weight.grad().asnumpy()).all()


def test_a_loss_inside_the_net_is_float32_and_its_epsilon_survives():
    class Net(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.dense = nn.Dense(3)
                self.loss = gluon.loss.SigmoidBCELoss(from_sigmoid=True)

        def hybrid_forward(self, F, x, label):
            return self.loss(F.sigmoid(self.dense(x) * 100), label)

    net = Net()
    net.initialize(mx.init.One())
    amp.cast(net, "float16")
    with autograd.record():
        loss = net(nd.ones((2, 2)), nd.zeros((2, 3)))  # sigmoid is exactly 1: log(1 - 1 + eps)
    loss.backward()
    assert np.isfinite(loss.asnumpy()).all()
    assert loss.asscalar() if loss.size == 1 else loss.asnumpy().min() > 20


def test_an_attention_mask_of_minus_1e18_does_not_become_nan():
    net = nn.HybridSequential()
    net.add(nn.Dense(4, flatten=False), nn.HybridLambda(lambda F, x: F.softmax(x - 1e18 * (x < 0))))
    net.initialize()
    amp.cast(net, "float16")
    assert np.isfinite(net(nd.random.normal(shape=(2, 3, 5))).asnumpy()).all()


def test_no_warnings_of_our_own():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        net = amp.cast(small_net(), "float16")
        backward(net, images())
        amp.describe(net)
