"""The trial of a library that was just built or found: `obtain` runs this in a separate process.

The library's operators depend on how MXNet was compiled. If MXNet was compiled in another way than
they expect, they may crash. The exit status is 0 if they work.
"""

import sys
from typing import Optional, Sequence

import numpy as np

from gluon_amp.lowering import bfloat16, native
from gluon_amp.policy.graph import from_json

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


def train(
    nodes: list,
    inputs: Sequence[nd.NDArray],
    passes: int = 1,
    grad_req: str = "write",
    out_grad: Optional[nd.NDArray] = None,
    static_alloc: bool = False,
) -> np.ndarray:
    """Run a graph of two variables forward and back, and return its output."""
    nodes = [
        {"op": op, "name": name, "inputs": [[i, 0, 0] for i in sources], "attrs": attrs}
        for op, name, sources, attrs in nodes
    ]
    symbol = from_json({"nodes": nodes, "heads": [[len(nodes) - 1, 0, 0]]})
    net = mx.gluon.SymbolBlock(symbol, [mx.sym.var(node["name"]) for node in nodes[:2]])
    net.hybridize(static_alloc=static_alloc)
    for array in inputs:
        array.attach_grad(grad_req)
    for _ in range(passes):
        with autograd.record():
            out = net(*inputs)
        out.backward(out_grad)
    return out.asnumpy()


def _round(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).astype(np.float32)


def check_rounding() -> None:
    """Compare two rounded 1×1 convolutions, which are matrix products, with numpy."""
    random = np.random.RandomState(0)
    data = _round(random.normal(size=(2, 32, 5, 5)))
    weight = _round(random.normal(size=(32, 32)))
    inputs = nd.array(data), nd.array(weight.reshape(32, 32, 1, 1), dtype="float16")
    out = train(ROUNDING, inputs, passes=2, static_alloc=True)

    pixels = data.transpose(0, 2, 3, 1).reshape(-1, 32)
    hidden = _round(pixels @ weight.T)
    result = np.maximum(_round(hidden @ weight.T), 0)
    actual = out.transpose(0, 2, 3, 1).reshape(-1, 32)
    np.testing.assert_allclose(actual, result, rtol=2e-3, atol=0.05)

    relu_grad = (result > 0).astype(np.float32)
    hidden_grad = _round(relu_grad @ weight)
    weight_grad = _round(relu_grad.T @ hidden + hidden_grad.T @ pixels)
    actual = inputs[1].grad.asnumpy().reshape(32, 32)
    np.testing.assert_allclose(actual, weight_grad, rtol=1e-2, atol=1)


def check_casts() -> None:
    """Multiply integers, which bfloat16 holds, in two passes and add their gradients."""
    data, other = nd.arange(6).reshape((2, 3)), nd.arange(6, 12).reshape((2, 3))
    out = train(CAST, (data, other), passes=2, grad_req="add")
    np.testing.assert_array_equal(out, (data * other).asnumpy())
    np.testing.assert_array_equal(data.grad.asnumpy(), 2 * other.asnumpy())
    np.testing.assert_array_equal(other.grad.asnumpy(), 2 * data.asnumpy())


def check_convolutions() -> None:
    """Convolve images of one pixel with stride 2: only the middle of the kernel has an effect."""
    data, weight = nd.arange(4).reshape((2, 2, 1)), nd.arange(12).reshape((2, 2, 3))
    out = train(CONVOLUTION, (data, weight))
    np.testing.assert_array_equal(out, [[[4], [10]], [[14], [44]]])
    np.testing.assert_array_equal(data.grad.asnumpy(), [[[8], [14]], [[8], [14]]])
    middle = [[0, 2, 0], [0, 4, 0]]
    np.testing.assert_array_equal(weight.grad.asnumpy(), [middle, middle])


if __name__ == "__main__":
    try:
        native.load(sys.argv[1])
        check_rounding()
        check_casts()
        if bfloat16.runs_on_cpu():
            check_convolutions()
    except Exception as error:
        sys.exit(f"error: {type(error).__name__}: {native.first_line(error)}")
