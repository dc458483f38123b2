"""A cast block: its binding, its calls, and its exports."""

import abc
import copy
import pickle
import warnings

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp import graph
from gluon_amp.casting.binding import binding_of
from gluon_amp.policy import Policy
from tests.casting.nets import AsksForTheMode, backward, exported, images, imported, small_net

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

STUDY = "compute=float8_e4m3,gradients=float8_e5m2"
SUBCLASSES = []


class Encoder(abc.ABC, gluon.HybridBlock):
    """As in Sockeye: `abc.ABC` has `__slots__`, so its subclasses have another layout in C."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(2, in_units=2)

    def __init_subclass__(cls):
        SUBCLASSES.append(cls.__name__)

    def hybrid_forward(self, F, x):
        return self.dense(x)

    @abc.abstractmethod
    def width(self):
        """Return the number of outputs."""


class PlainEncoder(Encoder):
    def width(self):
        return 2


class WideEncoder(PlainEncoder):
    """With a `forward` of its own it is not cast, but its child is."""

    def forward(self, x):
        return super().forward(x)


@pytest.mark.parametrize("cls", [PlainEncoder, WideEncoder])
def test_a_block_of_an_abstract_class_that_registers_its_subclasses(cls):
    net = cls()
    net.initialize(mx.init.One())
    net.hybridize()
    amp.cast(net, "float16")
    assert net(nd.ones((1, 2))).asnumpy().tolist() == [[2, 2]]
    assert isinstance(net, Encoder) and binding_of(net.dense) is not None
    assert (binding_of(net) is None) == (cls is WideEncoder)
    amp.cast(net, "float32")
    assert type(net) is cls
    assert SUBCLASSES == ["PlainEncoder", "WideEncoder"]


def test_options_of_hybridize_stay_and_a_cast_net_stays_hybridized(caplog):
    net = small_net()
    net.hybridize(static_alloc=True, static_shape=True)
    amp.cast(net)
    assert dict(net._flags)["static_alloc"] and dict(net._flags)["static_shape"]
    assert backward(net, images()).dtype == np.float32
    with warnings.catch_warnings(), caplog.at_level("INFO", "gluon_amp"):
        warnings.simplefilter("error")
        net.hybridize(active=False)
    assert "stays hybridized while it is cast" in caplog.text and net._active and net[0]._active


@pytest.mark.parametrize("hybridized", [False, True])
def test_undoing_a_cast_restores_whether_the_net_was_hybridized(hybridized):
    net = small_net()
    net.hybridize(hybridized)
    amp.cast(amp.cast(net, "float16"), "bfloat16")
    for one in (copy.deepcopy(net), net):
        assert one._active and one[0]._active
        amp.cast(one, "float32")
        assert one._active == one[0]._active == hybridized
    for active in (True, False):
        amp.cast(net, "float16").hybridize(active)
        assert amp.cast(net, "float32")._active == active


@pytest.mark.parametrize("policy, deferred", [("float16", True), (STUDY, False)])
def test_slices_compute_what_the_net_computes(policy, deferred):
    net = nn.HybridSequential()
    net.add(nn.Dense(8, activation="relu"), nn.HybridSequential(), nn.Dense(3))
    net[1].add(nn.Dense(8), nn.Activation("relu"))
    if not deferred:
        net.initialize(mx.init.Uniform(1))
    amp.cast(net, policy)
    start, middle, end = net[:1], net[1:][:-1], net[::-1][:1]
    if deferred:
        net.initialize(mx.init.Uniform(1))
    x = nd.array(np.arange(8).reshape(2, 4) / 8)
    expected = net(x).asnumpy()
    for _ in range(2):
        np.testing.assert_array_equal(end(middle(start(x))).asnumpy(), expected)
        for part in (start, middle, end):
            part.hybridize()
    copied = copy.deepcopy(end)(pickle.loads(pickle.dumps(middle))(start(x)))
    np.testing.assert_array_equal(copied.asnumpy(), expected)
    start.summary(x)
    assert amp.policy_of(start) == amp.policy_of(net)
    assert [row.block for row in amp.describe(end, nd.ones((1, 8))).rows] == ["2"]  # for pins

    amp.cast(net, "float32")
    assert amp.policy_of(start) == amp.policy_of(middle) == Policy()
    np.testing.assert_array_equal(end(middle(start(x))).asnumpy(), net(x).asnumpy())


def test_data_in_memory_that_processes_share():
    net = amp.cast(small_net(), "float16")
    shared = net(images().as_in_context(mx.Context("cpu_shared", 0)))
    assert shared.context == mx.cpu()
    np.testing.assert_array_equal(shared.asnumpy(), net(images()).asnumpy())


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


def test_summary_prints_and_changes_nothing(capsys):
    net = amp.cast(small_net(), "float16")
    out = net(images()).asnumpy()
    net.summary(images())
    assert "Conv2D-1" in capsys.readouterr().out
    assert net[0].weight.dtype == "float16"
    assert np.array_equal(net(images()).asnumpy(), out)


@pytest.mark.parametrize(
    "dtype, text",
    [
        ("float64", "got float64 data, expected float32 or float16"),
        ("int32", "got int32 data, .* pass float32 data"),
    ],
)
def test_data_of_other_dtypes_gets_one_sentence_at_once(dtype, text):
    net = amp.cast(small_net(), "float16")
    for _ in range(2):
        with pytest.raises(TypeError, match=text) as caught:
            net(nd.ones((2, 3, 8, 8), dtype=dtype))
        assert "\n" not in str(caught.value)
    assert net(images()).dtype == np.float32  # and the net still works


def test_gluons_own_cast_on_a_cast_net_is_refused():
    with pytest.raises(RuntimeError, match="call amp.cast"):
        amp.cast(small_net(), "float16").cast("float32")


# ------------------------------------------------------------------------------------- exports


def test_an_export_with_casts_is_a_float16_graph_that_becomes_float32_again(tmp_path):
    net, x = amp.cast(small_net(), "float16"), images()
    expected = net(x).asnumpy()
    text = exported(net, tmp_path, remove_amp_cast=False)
    assert '"amp_cast"' in text and '"Cast"' not in text and "gluon_amp" not in text
    symbol, args, auxs = mx.model.load_checkpoint(str(tmp_path / "net"), 0)
    assert args["net_conv0_weight"].dtype == np.float16
    assert args["net_batchnorm0_gamma"].dtype == np.float32
    internals = symbol.get_internals()
    types = {name: a.dtype for name, a in {**args, **auxs}.items()}
    _, found, _ = internals.infer_type(data="float32", **types)
    outputs = dict(zip(internals.list_outputs(), found))
    assert outputs["net_conv0_fwd_output"] == outputs["net_dense0_fwd_output"] == np.float16
    assert found[-1] == np.float32

    # Its casts go with its float16 weights: they would feed float32 weights float16 data.
    block = amp.cast(imported(tmp_path), "float32")
    assert {np.dtype(p.dtype).name for p in block.collect_params().values()} == {"float32"}
    casts = [n for n in graph.to_json(block._cached_graph[1])["nodes"] if n["op"] == "amp_cast"]
    assert [cast["attrs"]["dtype"] for cast in casts] == ["float32"]  # MXNet keeps an output's
    for policy in ("float32", "float16"):
        out = amp.cast(block, policy)(x)
        assert out.dtype == np.float32
        np.testing.assert_allclose(out.asnumpy(), expected, atol=5e-3)


def test_an_exported_graph_of_a_format_for_study_has_no_attributes_of_ours(tmp_path):
    net = amp.cast(small_net(), STUDY)
    net(images())
    text = exported(net, tmp_path, remove_amp_cast=False)
    assert "FullyConnected" in text and "gluon_amp" not in text


@pytest.mark.parametrize("modes", [(False, True), (True, False), (True,)])
def test_an_export_is_that_of_inference_if_it_has_run(modes, tmp_path):
    net, one = amp.cast(AsksForTheMode(), "float16"), nd.ones((1,))
    for training in modes:
        with autograd.record() if training else autograd.pause():
            net(one)
    exported(net, tmp_path)
    symbol = mx.sym.load(str(tmp_path / "net-symbol.json"))
    assert symbol.eval(data=one)[0].asscalar() == (3 if False in modes else 2)
    assert net(one).asscalar() == 3  # the net itself runs as before


# ------------------------------------------------------------------------------------ backends

STATIC = {"static_alloc": True, "static_shape": True}
BACKENDS = {
    "optimize_for": lambda net, x: net.optimize_for(x, backend="MKLDNN"),
    "quantize": lambda net, x: net.optimize_for(x, backend="MKLDNN_QUANTIZE", clear=True, **STATIC),
    "positional": lambda net, x: net.hybridize(True, "MKLDNN", True, True, True, 2, None, None),
    "keywords": lambda net, x: net.hybridize(active=True, backend="MKLDNN", **STATIC),
    "unknown": lambda net, x: net.hybridize(True, "NoSuchBackend"),
}


@pytest.mark.parametrize("how, policy", zip(BACKENDS, ["float16", "bfloat16"] * 2 + ["float16"]))
def test_a_backend_changes_neither_results_nor_gradients_nor_files(how, policy, tmp_path):
    net, x = amp.cast(small_net(), policy), images()
    backward(net, x)
    gradient = net[0].weight.grad().asnumpy()
    expected = net(x).asnumpy()
    BACKENDS[how](net, x)
    np.testing.assert_allclose(net(x).asnumpy(), expected, rtol=0.01, atol=0.01)
    net[0].weight.zero_grad()
    backward(net, x)
    assert np.array_equal(net[0].weight.grad().asnumpy(), gradient)
    found = net(x).asnumpy()
    assert "mkldnn" not in exported(net, tmp_path)
    np.testing.assert_allclose(imported(tmp_path)(x).asnumpy(), found, rtol=0.01, atol=0.01)
    net.hybridize()
    np.testing.assert_allclose(net(x).asnumpy(), found, rtol=0.01, atol=0.01)


def test_a_backend_partitions_the_graph_that_runs(monkeypatch):
    net, x = amp.cast(small_net(), "mixed_float16"), images()
    backends = []
    partition = mx.sym.Symbol.optimize_for

    def optimize_for(symbol, backend, *args, **options):
        backends.append((backend, options))
        return partition(symbol, backend, *args, **options)

    monkeypatch.setattr(mx.sym.Symbol, "optimize_for", optimize_for)
    net.optimize_for(x, backend="MKLDNN", level="1")
    net(x)
    backward(net, x)  # not for training: its gradients would be zero
    net.hybridize()
    net(x)
    assert backends == [("MKLDNN", {"level": "1"})]
    with pytest.raises(ValueError, match="backend"):
        net.optimize_for(x)
