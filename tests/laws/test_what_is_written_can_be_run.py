"""Law 20: an exported file runs in stock MXNet with the values of the float32 net, or is refused.

The nets ask for float16 themselves, as those of MXNet's float16 recipe do.
"""

import numpy as np
import pytest

import gluon_amp as amp

import mxnet as mx
from mxnet import nd
from mxnet.gluon import HybridBlock, SymbolBlock, nn

F16 = {"dtype": "float16"}


def loop(F, x):
    def step(row, total):
        total = F.cast(F.cast(total, **F16) + row.astype("float16"), dtype="float32")
        return total, total

    return F.contrib.foreach(step, F.expand_dims(x, 0), F.zeros_like(x))[1].astype("float16")


def norm(F, x):
    return F.broadcast_mul(x, F.norm(x, axis=1, keepdims=True, out_dtype="float16"))


# What a net does before a dense layer, and the same in float32
ASKING = {
    "Cast": (lambda F, x: F.Cast(x, **F16), lambda x: x),
    "amp_cast": (lambda F, x: F.amp_cast(x, **F16), lambda x: x),
    "astype": (lambda F, x: x.astype("float16"), lambda x: x),
    "one_hot": (
        lambda F, x: F.broadcast_add(x, F.one_hot(F.ones(1), 6, **F16)),
        lambda x: x + np.eye(6)[1],
    ),
    "full": (lambda F, x: F.broadcast_mul(x, F.full((1, 6), 3, **F16)), lambda x: 3 * x),
    "arange": (
        lambda F, x: F.broadcast_mul(x, F.expand_dims(F.arange(6, **F16), 0)),
        lambda x: x * np.arange(6),
    ),
    "eye": (lambda F, x: F.dot(x, F.eye(6, **F16)), lambda x: x),
    "draw": (
        lambda F, x: F.broadcast_mul(x, F.random.uniform(2, 2, (1, 6), **F16)),
        lambda x: 2 * x,
    ),
    "norm": (norm, lambda x: x * np.linalg.norm(x, axis=1, keepdims=True)),
    "loop": (loop, lambda x: x),
}


class Asking(HybridBlock):
    def __init__(self, ask):
        super().__init__()
        self.ask = ask
        with self.name_scope():
            self.dense = nn.Dense(3, in_units=6, use_bias=False)

    def hybrid_forward(self, F, x):
        out = self.dense(self.ask(F, x))
        return out.astype("float32"), out


def graph_of(ask):
    x, weight = mx.sym.var("data"), mx.sym.var("w", shape=(3, 6), dtype="float16")
    out = mx.sym.FullyConnected(ask(mx.sym, x), weight, num_hidden=3, no_bias=True)
    return SymbolBlock(mx.sym.Group([out, out.astype("float32")]), [x])


def check(found, expected, tolerance):
    for one in found:
        assert one.dtype == np.float32
        np.testing.assert_allclose(one.asnumpy(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("policy", ["float16", "mixed_float16", "bfloat16"])
@pytest.mark.parametrize("make", [Asking, graph_of])
@pytest.mark.parametrize("ask", ASKING)
def test_nets_that_ask_for_float16_themselves(ask, make, policy, tmp_path):
    mx.random.seed(0)
    x, (ask, in_float32) = nd.random.normal(shape=(2, 6)), ASKING[ask]
    net = make(ask)
    net.initialize(mx.init.Normal())
    amp.cast(net, policy)
    before = net(x)
    (weight,) = (param._reduce() for param in net.collect_params().values())
    expected = in_float32(x.asnumpy()) @ weight.asnumpy().T
    check(before, expected, 0.02)
    net.export(str(tmp_path / "net"))
    files = (str(tmp_path / f"net-{end}") for end in ("symbol.json", "0000.params"))
    check(SymbolBlock.imports(next(files), ["data"], next(files))(x), expected, 1e-5)
    if make is graph_of:
        check(amp.cast(net, "float32")(x), expected, 1e-5)
        return
    with pytest.raises(ValueError, match="Python code of block net asks for float16 .node "):
        amp.cast(net, "float32")  # its weights would meet float16 data
    np.testing.assert_array_equal(net(x)[0].asnumpy(), before[0].asnumpy())


def test_a_python_cast_that_meets_no_weight_stays(tmp_path):
    net = nn.HybridSequential()
    net.add(nn.Dense(3, in_units=6), nn.HybridLambda(lambda F, x: F.cast(x, **F16)))
    net.initialize()
    assert amp.cast(amp.cast(net, "float16"), "float32")(nd.ones((2, 6))).dtype == np.float16


@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize("is_part", [False, True])
def test_what_cannot_be_run_is_refused_before_anything_is_written(is_part, low, tmp_path):
    dense, parent = nn.Dense(3, in_units=6), nn.HybridSequential()
    dense.initialize()
    parent.add(amp.cast(dense, "float16"))
    net = parent if is_part else dense
    net.hybridize()
    net(nd.ones((2, 6)))
    dense.bias.cast("float64")
    with pytest.raises(TypeError, match="wrote nothing, as stock .* could not run .* .node dense"):
        net.export(str(tmp_path / "net"), remove_amp_cast=not low)
    assert not list(tmp_path.iterdir())


def test_the_files_of_a_module(tmp_path):
    def generate(_):
        head = ASKING["Cast"][0](mx.sym, mx.sym.var("data"))
        head = mx.sym.FullyConnected(head, num_hidden=3, name="fc").astype("float32")
        return mx.sym.SoftmaxOutput(head, name="softmax"), ("data",), ("softmax_label",)

    shapes = [("data", (2, 6))], [("softmax_label", (2,))]
    batch = mx.io.DataBatch([nd.ones((2, 6))], [nd.zeros(2)])
    outputs = []
    one, many = amp.symbolic.Module(generate(6)[0]), amp.symbolic.BucketingModule(generate, 6)
    for module, name in ((one, "one"), (many, "many")):
        module.bind(*shapes)
        module.init_params(mx.init.One())
        module.save_checkpoint(str(tmp_path / name), 1)
    (tmp_path / "many-symbol.json").write_text((tmp_path / "many-6-symbol.json").read_text())
    for module in (one, *(mx.mod.Module.load(str(tmp_path / n), 1) for n in ("one", "many"))):
        module.binded or module.bind(*shapes)
        module.forward(batch, is_train=False)
        outputs.append(module.get_outputs()[0].asnumpy())
    np.testing.assert_allclose(outputs[1:], [outputs[0]] * 2, atol=1e-3)
