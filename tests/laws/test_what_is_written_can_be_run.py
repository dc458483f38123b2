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


# What a net does before a dense layer: in float32 it changes nothing
ASKING = {
    "Cast": lambda F, x: F.Cast(x, **F16),
    "amp_cast": lambda F, x: F.amp_cast(x, **F16),
    "astype": lambda F, x: x.astype("float16"),
    "one_hot": lambda F, x: F.broadcast_add(x, F.one_hot(F.ones(1), 6, on_value=0, **F16)),
    "ones": lambda F, x: F.broadcast_mul(x, F.ones((1, 6), **F16)),
    "full": lambda F, x: F.broadcast_div(x, F.full((1, 6), 1, **F16)),
    "arange": lambda F, x: F.broadcast_maximum(x, F.expand_dims(F.arange(-99, -93, **F16), 0)),
    "eye": lambda F, x: F.dot(x, F.eye(6, **F16)),
    "draw": lambda F, x: x + F.random.uniform(0, 0, (2, 6), **F16),
    "norm": lambda F, x: F.broadcast_maximum(x, -F.norm(x, keepdims=True, out_dtype="float16")),
    "loop": loop,
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


@pytest.mark.parametrize("policy", ["float16", "mixed_float16", "bfloat16"])
@pytest.mark.parametrize("make", [Asking, graph_of])
@pytest.mark.parametrize("ask", ASKING)
def test_nets_that_ask_for_float16_themselves(ask, make, policy, tmp_path):
    def check(found, tolerance):
        expected = x.asnumpy() @ weight.asnumpy().T
        for one in found:
            assert one.dtype == np.float32
            np.testing.assert_allclose(one.asnumpy(), expected, rtol=tolerance, atol=tolerance)

    mx.random.seed(0)
    net, x = make(ASKING[ask]), nd.random.normal(shape=(2, 6))
    net.initialize(mx.init.Normal())
    before = amp.cast(net, policy)(x)
    (weight,) = (param._reduce() for param in net.collect_params().values())
    check(before, 0.02)
    net.export(str(tmp_path / "net"))
    files = (str(tmp_path / f"net-{end}") for end in ("symbol.json", "0000.params"))
    check(SymbolBlock.imports(next(files), ["data"], next(files))(x), 1e-6)
    if make is graph_of:
        check(amp.cast(net, "float32")(x), 1e-6)
        return
    with pytest.raises(ValueError, match="Python code of block net asks for float16 .node "):
        amp.cast(net, "float32")  # its weights would meet float16 data
    np.testing.assert_array_equal(net(x)[0].asnumpy(), before[0].asnumpy())


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
    with pytest.raises(TypeError, match="wrote nothing, as stock .* run the graph: node dense"):
        net.export(str(tmp_path / "net"), remove_amp_cast=not low)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [amp.symbolic.Module, amp.symbolic.BucketingModule])
def test_the_files_of_a_module(kind, tmp_path):
    head = mx.sym.FullyConnected(mx.sym.var("data").astype("float16"), num_hidden=3, name="fc")
    head, labels = mx.sym.SoftmaxOutput(head.astype("float32"), name="softmax"), ["softmax_label"]
    arguments = (head,) if kind is amp.symbolic.Module else (lambda _: (head, ["data"], labels), 6)
    module, prefix = kind(*arguments), str(tmp_path / "net")
    module.bind([("data", (2, 6))], [("softmax_label", (2,))])
    module.init_params(mx.init.One())
    module.save_checkpoint(prefix, 1)
    (symbol,) = tmp_path.glob("*-symbol.json")
    stock = SymbolBlock.imports(str(symbol), ["data", *labels], f"{prefix}-0001.params")
    np.testing.assert_array_equal(stock(nd.ones((2, 6)), nd.zeros(2)).asnumpy(), np.float32(1 / 3))
