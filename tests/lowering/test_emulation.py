"""What the emulation rounds, on the way forward and back, and what it leaves alone."""

import numpy as np

import gluon_amp as amp
from gluon_amp import graph, kernels
from gluon_amp.base.formats import FORMATS
from gluon_amp.graph import own_operators as own
from gluon_amp.lowering import blocked, lower
from gluon_amp.policy import Policy, cast_pass
from tests.float_values import beside, every_value
from tests.lowering import back_through, emulated

import mxnet as mx
from mxnet import nd
from mxnet.gluon import nn


def run(symbol, **arrays):
    arrays = {name: nd.array(value, dtype=value.dtype) for name, value in arrays.items()}
    return symbol.eval(ctx=mx.cpu(), **arrays)[0]


def test_without_the_library_rounding_is_numpys_for_every_value(monkeypatch):
    """And for midpoints and neighbours; `tests/kernels/test_rounding.py` has the library's."""
    monkeypatch.setattr(kernels, "available", lambda: False)
    values = beside(every_value(FORMATS["float16"]))
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16).astype(np.float32)
    # an operator that runs in float16 and returns its input: x * 1
    symbol = emulated(mx.sym.amp_cast(mx.sym.var("x"), dtype="float16") * 1.0, x="float32")
    actual = run(symbol, x=values).asnumpy()
    assert actual.dtype == np.float32  # the policy's output
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(actual), nan)
    assert np.array_equal(actual[~nan].view(np.uint32), expected[~nan].view(np.uint32))


def dense_gradient(head_gradient):
    net = nn.Dense(1, use_bias=False, in_units=1)
    net.initialize(mx.init.One())
    amp.cast(net, "float16")
    back_through(net, nd.ones((1, 1)), head=nd.array([[head_gradient]]))
    return net.weight.grad()


def test_gradients_round_underflow_and_overflow_as_float16():
    assert dense_gradient(1 + 2.0**-11).asscalar() == 1.0  # ties to even
    assert dense_gradient(2.0**-24).asscalar() == 2.0**-24  # the smallest subnormal
    assert dense_gradient(2.0**-26).asscalar() == 0.0
    assert dense_gradient(65520.0).asscalar() == np.inf
    assert dense_gradient(1.0).dtype == np.float16


def test_values_that_only_move_are_not_rounded_again():
    x, w = mx.sym.var("x"), mx.sym.var("w")
    conv = mx.sym.Convolution(x, w, kernel=(1, 1), num_filter=2, no_bias=True, name="conv")
    moved = mx.sym.Pooling(mx.sym.relu(conv.reshape((0, -1, 2, 2))), kernel=(2, 2), stride=(2, 2))
    symbol = emulated(moved, x="float32", w="float16")
    nodes = graph.to_json(symbol)["nodes"]
    rounds = [n for n in nodes if n["op"] == own.ROUND or n["attrs"].get("dtype") == "float16"]
    read = [nodes[n["inputs"][0][0]]["name"] for n in rounds if n["inputs"]]
    # A blocked result is rounded again where it becomes plain, for the sake of its gradient.
    assert read == ["x", "conv_plain" if blocked.available() else "conv"]


def test_graphs_of_a_gpu_and_graphs_without_float16_are_left_alone():
    symbol = mx.sym.FullyConnected(mx.sym.var("x"), mx.sym.var("w"), num_hidden=3, no_bias=True)
    assert lower(symbol, {"x": "float32"}, "cpu") is symbol
    dtypes = {"w": "float16"}
    cast = cast_pass.apply(symbol, Policy.parse("float16"), dtypes)
    assert lower(cast, {"x": "float32", **dtypes}, "gpu") is cast


def test_integers_are_never_rounded():
    ids, w = mx.sym.var("ids"), mx.sym.var("w")
    rows = mx.sym.Embedding(ids, w, input_dim=5000, output_dim=2)
    symbol = emulated(rows, ids="int32", w="float32")
    table = np.arange(10000, dtype="f4").reshape(5000, 2)
    actual = run(symbol, ids=np.array([4099], "i4"), w=table).asnumpy()
    assert actual.tolist() == [[8198.0, 8199.0]]


def test_float16_outputs_and_inputs_stay_float16():
    policy = Policy.parse("compute=float16,output=float16")
    x = mx.sym.var("x")
    dense = mx.sym.FullyConnected(x, mx.sym.var("w"), num_hidden=2, no_bias=True)
    symbol = cast_pass.apply(dense, policy, {"w": "float32"})
    symbol = lower(symbol, {"x": "float16", "w": "float32"}, "cpu")
    out = run(symbol, x=np.ones((1, 2), "float16"), w=np.ones((2, 2), "float32"))
    assert out.dtype == np.float16
    assert out.asnumpy().tolist() == [[2.0, 2.0]]
