"""The trial of a library that was just built or found: `obtain` runs this in a separate process.

The library's operators depend on how MXNet was compiled. If MXNet was compiled in another way than
they expect, they may crash. The exit status is 0 if they work.
"""

import json
import sys

import numpy as np

from gluon_amp.lowering import bfloat16, native

import mxnet as mx
from mxnet import autograd, nd

# Rounding in place: in oneDNN's blocked layout between two convolutions, and in the backward pass
ROUNDING = [
    ("null", "data", [], {}),
    ("null", "weight", [], {}),
    ("_gluon_amp_widen", "wide", [1], {}),
    ("Convolution", "conv0", [0, 2], {"kernel": "(1, 1)", "num_filter": "32", "no_bias": "True"}),
    ("_gluon_amp_round", "round", [3], {}),
    ("Convolution", "conv1", [4, 2], {"kernel": "(1, 1)", "num_filter": "32", "no_bias": "True"}),
    ("_gluon_amp_round_relu", "relu", [5], {}),
    ("_gluon_amp_narrow", "narrow", [6], {}),
]

# An operator whose gradient function reads the inputs of its node
LAYOUT = [
    ("null", "data", [], {}),
    ("null", "other", [], {}),
    ("amp_cast", "bfloat0", [0], {"dtype": "bfloat16"}),
    ("amp_cast", "bfloat1", [1], {"dtype": "bfloat16"}),
    ("_gluon_amp_norm_layout", "passed", [2, 3], {}),
    ("amp_cast", "float32", [4], {"dtype": "float32"}),
]

# An operator that calls MXNet's own cast, and adds its gradient
CAST = [
    ("null", "data", [], {}),
    ("null", "other", [], {}),
    ("_gluon_amp_bfloat16", "bfloat", [0], {}),
    ("amp_cast", "float32", [2], {"dtype": "float32"}),
    ("elemwise_mul", "product", [3, 1], {}),
]

# An operator that calls MXNet's own convolution, and computes gradients in float32
CONVOLUTION = [
    ("null", "data", [], {}),
    ("null", "weight", [], {}),
    ("amp_cast", "bfloat0", [0], {"dtype": "bfloat16"}),
    ("amp_cast", "bfloat1", [1], {"dtype": "bfloat16"}),
    (
        "_gluon_amp_convolution",
        "conv",
        [2, 3],
        {"kernel": "(3,)", "stride": "(2,)", "pad": "(1,)", "num_filter": "2", "no_bias": "True"},
    ),
    ("amp_cast", "float32", [4], {"dtype": "float32"}),
]


def _graph(nodes: list) -> mx.sym.Symbol:
    nodes = [
        {"op": op, "name": name, "inputs": [[i, 0, 0] for i in inputs], "attrs": attrs}
        for op, name, inputs, attrs in nodes
    ]
    return mx.sym.load_json(
        json.dumps({"nodes": nodes, "arg_nodes": [0, 1], "heads": [[len(nodes) - 1, 0, 0]]})
    )


def _round(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).astype(np.float32)


def check_rounding() -> None:
    """Compare two rounded 1×1 convolutions, which are matrix products, with numpy."""
    random = np.random.RandomState(0)
    data = _round(random.normal(size=(2, 32, 5, 5)))
    weight = _round(random.normal(size=(32, 32)))
    net = mx.gluon.SymbolBlock(_graph(ROUNDING), [mx.sym.var("data"), mx.sym.var("weight")])
    net.hybridize(static_alloc=True)
    inputs = nd.array(data), nd.array(weight.reshape(32, 32, 1, 1), dtype="float16")
    for array in inputs:
        array.attach_grad()
    for _ in range(2):
        with autograd.record():
            out = net(*inputs)
        out.backward()

    pixels = data.transpose(0, 2, 3, 1).reshape(-1, 32)
    hidden = _round(pixels @ weight.T)
    result = np.maximum(_round(hidden @ weight.T), 0)
    actual = out.asnumpy().transpose(0, 2, 3, 1).reshape(-1, 32)
    np.testing.assert_allclose(actual, result, rtol=2e-3, atol=0.05)

    relu_grad = (result > 0).astype(np.float32)
    hidden_grad = _round(relu_grad @ weight)
    weight_grad = _round(relu_grad.T @ hidden + hidden_grad.T @ pixels)
    np.testing.assert_allclose(
        inputs[1].grad.asnumpy().reshape(32, 32), weight_grad, rtol=1e-2, atol=1
    )


def check_layouts() -> None:
    """Pass integers, which bfloat16 holds, forward and back; the other input has no gradient."""
    data, other = nd.arange(6).reshape((2, 3)), nd.ones((2, 3))
    net = mx.gluon.SymbolBlock(_graph(LAYOUT), [mx.sym.var("data"), mx.sym.var("other")])
    for array in (data, other):
        array.attach_grad()
    with autograd.record():
        out = net(data, other)
        weighted = out * nd.arange(6, 12).reshape((2, 3))
    weighted.backward()
    np.testing.assert_array_equal(out.asnumpy(), data.asnumpy())
    np.testing.assert_array_equal(data.grad.asnumpy(), [[6, 7, 8], [9, 10, 11]])
    np.testing.assert_array_equal(other.grad.asnumpy(), np.zeros((2, 3)))


def check_casts() -> None:
    """Multiply integers, which bfloat16 holds, in two passes and add their gradients."""
    data, other = nd.arange(6).reshape((2, 3)), nd.arange(6, 12).reshape((2, 3))
    net = mx.gluon.SymbolBlock(_graph(CAST), [mx.sym.var("data"), mx.sym.var("other")])
    for array in (data, other):
        array.attach_grad("add")
    for _ in range(2):
        with autograd.record():
            out = net(data, other)
        out.backward()
    np.testing.assert_array_equal(out.asnumpy(), (data * other).asnumpy())
    np.testing.assert_array_equal(data.grad.asnumpy(), 2 * other.asnumpy())
    np.testing.assert_array_equal(other.grad.asnumpy(), 2 * data.asnumpy())


def check_convolutions() -> None:
    """Convolve images of one pixel with stride 2: only the middle of the kernel has an effect."""
    data, weight = nd.arange(4).reshape((2, 2, 1)), nd.arange(12).reshape((2, 2, 3))
    net = mx.gluon.SymbolBlock(_graph(CONVOLUTION), [mx.sym.var("data"), mx.sym.var("weight")])
    for array in (data, weight):
        array.attach_grad()
    with autograd.record():
        out = net(data, weight)
    out.backward()
    np.testing.assert_array_equal(out.asnumpy(), [[[4], [10]], [[14], [44]]])
    np.testing.assert_array_equal(data.grad.asnumpy(), [[[8], [14]], [[8], [14]]])
    middle = [[0, 2, 0], [0, 4, 0]]
    np.testing.assert_array_equal(weight.grad.asnumpy(), [middle, middle])


if __name__ == "__main__":
    try:
        native.load(sys.argv[1])
        check_rounding()
        check_layouts()
        check_casts()
        if bfloat16.runs_on_cpu():
            check_convolutions()
    except Exception as error:
        sys.exit(f"error: {type(error).__name__}: {native.first_line(error)}")
