"""The trial of a library that was just built or found: `obtain` runs this in a separate process.

The library's operators depend on how MXNet was compiled. If MXNet was compiled in another way than
they expect, they may crash. The exit status is 0 if they work.
"""

import json
import os
import sys
from typing import Optional, Sequence

import numpy as np

from gluon_amp import kernels
from gluon_amp.base import bfloat16
from gluon_amp.base.messages import reason_of

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

# Operators on blocked images: float32 arrays that hold float16 values, of 2 channels in 16 lanes.
# The first convolution reads plain data. Entries are [node, output].
ONE_BY_ONE = {"kernel": "(1, 1)", "num_filter": "2", "no_bias": "True", "lanes": "16"}
BLOCKED_VARIABLES = ("data", "weight", "gamma", "beta", "mean", "var")
BLOCKED = [
    ("_gluon_amp_blocked_convolution", [[0, 0], [1, 0]], {**ONE_BY_ONE, "plain_data": "True"}),
    (
        "_gluon_amp_norm",
        [[6, 0], [2, 0], [3, 0], [4, 0], [5, 0]],
        {
            "program": "relu 0",
            "channels": "2",
            "eps": "0.0",
            "fix_gamma": "False",
            "use_global_stats": "True",
            "num_extras": "0",
        },
    ),
    ("_gluon_amp_pool", [[7, 0]], {"kernel": "(2, 2)", "pool_type": "max", "channels": "2"}),
    ("_gluon_amp_fork", [[8, 0], [8, 0]], {"num_outputs": "2"}),
    ("_gluon_amp_blocked_convolution", [[9, 0], [1, 0]], {**ONE_BY_ONE, "channels": "2"}),
    (
        "_gluon_amp_pointwise",
        [[10, 0], [9, 1]],
        {"program": "add 0 1", "num_inputs": "2", "channels": "2"},
    ),
    ("_gluon_amp_unblock", [[11, 0]], {"channels": "2"}),
]


def symbol_of(nodes: list) -> mx.sym.Symbol:
    """Return the symbol of a list of nodes, the last of which is the output."""
    variables = [i for i, node in enumerate(nodes) if node["op"] == "null"]
    graph = {"nodes": nodes, "arg_nodes": variables, "heads": [[len(nodes) - 1, 0, 0]]}
    # MXNet would upgrade a graph without a version.
    return mx.sym.load_json(json.dumps({**graph, "attrs": {"mxnet_version": ["int", 10901]}}))


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
    symbol = symbol_of(nodes)
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


def check_blocked_images() -> None:
    """Convolve, normalize, pool, convolve and add images of integers; both weights are one."""
    nodes = [{"op": "null", "name": name, "inputs": []} for name in BLOCKED_VARIABLES]
    for op, sources, attrs in BLOCKED:
        inputs = [[*entry, 0] for entry in sources]
        nodes.append({"op": op, "name": f"{op}{len(nodes)}", "inputs": inputs, "attrs": attrs})
    symbol = symbol_of(nodes)
    args = {
        "data": nd.array([[[[1, -3], [2, 0]], [[0, 1], [-1, 2]]]]),
        "weight": nd.array([[1, 2], [0, 1]]).reshape((2, 2, 1, 1)),
        "gamma": nd.array([2, 2]),
        "beta": nd.array([-1, -1]),
    }
    grads = {name: nd.zeros(array.shape) for name, array in args.items()}
    statistics = {"mean": nd.zeros(2), "var": nd.ones(2)}
    executor = symbol.bind(mx.cpu(), args=args, args_grad=grads, aux_states=statistics)
    (out,) = executor.forward(is_train=True)
    executor.backward(nd.ones(out.shape))
    # convolved: ((1, -1), (0, 4)) and ((0, 1), (-1, 2)); pooled: 7 and 3; convolved: 13 and 3
    np.testing.assert_array_equal(out.asnumpy(), [[[[20]], [[6]]]])
    np.testing.assert_array_equal(grads["data"].asnumpy(), [[[[0, 0], [0, 4]], [[0, 0], [0, 16]]]])
    # the sum of ((7, 3), (7, 3)) and ((0, 8), (0, 16))
    weight_grad = grads["weight"].asnumpy().reshape(2, 2)
    np.testing.assert_array_equal(weight_grad, [[7, 11], [7, 19]])
    np.testing.assert_array_equal(grads["gamma"].asnumpy(), [8, 8])
    np.testing.assert_array_equal(grads["beta"].asnumpy(), [2, 4])


if __name__ == "__main__":
    try:
        kernels.load(sys.argv[1])
        check_rounding()
        check_casts()
        if os.environ.get("MXNET_MKLDNN_ENABLED", "1") != "0":
            check_blocked_images()
        if bfloat16.has_kernels():
            check_convolutions()
    except Exception as error:
        sys.exit(f"error: {type(error).__name__}: {reason_of(error)}")
