"""The trial of a library that was just built or found: `obtain` runs this in a separate process.

The library's operators depend on how MXNet was compiled. If MXNet was compiled in another way than
they expect, they may crash. The exit status is 0 if they work.
"""

import json
import os
import sys
from typing import Dict, List, Tuple

import numpy as np

from gluon_amp import kernels
from gluon_amp.base import bfloat16
from gluon_amp.base.messages import reason_of
from gluon_amp.base.mxnet_internals import GRAPH_VERSION

import mxnet as mx
from mxnet import nd


def run(
    operators: List[tuple], arrays: Dict[str, nd.NDArray], passes: int = 1
) -> Tuple[np.ndarray, Dict[str, np.ndarray]]:
    """Run a graph forward and back; return its output and the gradients of its variables.

    Each operator reads tensors by their numbers: first the variables, then the first results of
    the operators. The gradients of several passes are added.
    """
    nodes = [{"op": "null", "name": name, "inputs": []} for name in arrays]
    for op, sources, attrs in operators:
        inputs = [[*(s if isinstance(s, tuple) else (s, 0)), 0] for s in sources]
        nodes.append({"op": op, "name": f"node{len(nodes)}", "inputs": inputs, "attrs": attrs})
    graph = {"nodes": nodes, "arg_nodes": [*range(len(arrays))], "heads": [[len(nodes) - 1, 0, 0]]}
    symbol = mx.sym.load_json(json.dumps({**graph, "attrs": GRAPH_VERSION}))
    args = {name: arrays[name] for name in symbol.list_arguments()}
    grads = {name: nd.zeros(array.shape, dtype=array.dtype) for name, array in args.items()}
    states = {name: arrays[name] for name in symbol.list_auxiliary_states()}
    executor = symbol.bind(mx.cpu(), args, grads, "add" if passes > 1 else "write", states)
    for _ in range(passes):
        (out,) = executor.forward(is_train=True)
        executor.backward(nd.ones(out.shape, dtype=out.dtype))
    return out.asnumpy(), {name: grad.asnumpy() for name, grad in grads.items()}


def _round(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).astype(np.float32)


def check_rounding() -> None:
    """Round in place, in oneDNN's layout, between two convolutions; compare them with numpy.

    1×1 convolutions are matrix products.
    """
    random = np.random.RandomState(0)
    data = _round(random.normal(size=(2, 32, 5, 5)))
    weight = _round(random.normal(size=(32, 32)))
    half = nd.array(weight.reshape(32, 32, 1, 1), dtype="float16")
    window = {"kernel": "(1, 1)", "num_filter": "32", "no_bias": "True"}
    operators = [
        ("_gluon_amp_widen", [1], {}),
        ("Convolution", [0, 2], window),
        ("_gluon_amp_round", [3], {}),
        ("Convolution", [4, 2], window),
        ("_gluon_amp_round_relu", [5], {}),
        ("_gluon_amp_narrow", [6], {}),
    ]
    out, grads = run(operators, {"data": nd.array(data), "weight": half})

    pixels = data.transpose(0, 2, 3, 1).reshape(-1, 32)
    hidden = _round(pixels @ weight.T)
    result = np.maximum(_round(hidden @ weight.T), 0)
    actual = out.transpose(0, 2, 3, 1).reshape(-1, 32)
    np.testing.assert_allclose(actual, result, rtol=2e-3, atol=0.05)

    relu_grad = (result > 0).astype(np.float32)
    hidden_grad = _round(relu_grad @ weight)
    weight_grad = _round(relu_grad.T @ hidden + hidden_grad.T @ pixels)
    np.testing.assert_allclose(grads["weight"].reshape(32, 32), weight_grad, rtol=1e-2, atol=1)


def check_casts() -> None:
    """Multiply integers by MXNet's own cast, in two passes whose gradients are added."""
    data, other = nd.arange(6).reshape((2, 3)), nd.arange(6, 12).reshape((2, 3))
    operators = [
        ("_gluon_amp_bfloat16", [0], {}),
        ("amp_cast", [2], {"dtype": "float32"}),
        ("elemwise_mul", [3, 1], {}),
    ]
    out, grads = run(operators, {"data": data, "other": other}, passes=2)
    np.testing.assert_array_equal(out, (data * other).asnumpy())
    np.testing.assert_array_equal(grads["data"], 2 * other.asnumpy())
    np.testing.assert_array_equal(grads["other"], 2 * data.asnumpy())


def check_convolutions() -> None:
    """Convolve images of one pixel with stride 2: only the middle of the kernel has an effect."""
    window = {"kernel": "(3,)", "stride": "(2,)", "pad": "(1,)", "num_filter": "2"}
    operators = [
        ("amp_cast", [0], {"dtype": "bfloat16"}),
        ("amp_cast", [1], {"dtype": "bfloat16"}),
        ("_gluon_amp_convolution", [2, 3], {**window, "no_bias": "True"}),
        ("amp_cast", [4], {"dtype": "float32"}),
    ]
    data, weight = nd.arange(4).reshape((2, 2, 1)), nd.arange(12).reshape((2, 2, 3))
    out, grads = run(operators, {"data": data, "weight": weight})
    np.testing.assert_array_equal(out, [[[4], [10]], [[14], [44]]])
    np.testing.assert_array_equal(grads["data"], [[[8], [14]], [[8], [14]]])
    middle = [[0, 2, 0], [0, 4, 0]]
    np.testing.assert_array_equal(grads["weight"], [middle, middle])


def check_blocked_images() -> None:
    """Convolve, normalize, pool, convolve and add images of integers; both weights are one.

    The images are float32 arrays that hold float16 values, of 2 channels in 16 lanes. The first
    convolution reads plain data.
    """
    two = {"channels": "2"}
    window = {"kernel": "(1, 1)", "num_filter": "2", "no_bias": "True", "lanes": "16"}
    norm = {"program": "relu 0", "num_extras": "0", "eps": "0.0", "fix_gamma": "False"}
    operators = [
        ("_gluon_amp_blocked_convolution", [0, 1], {**window, "plain_data": "True"}),
        ("_gluon_amp_norm", [6, 2, 3, 4, 5], {**norm, **two, "use_global_stats": "True"}),
        ("_gluon_amp_pool", [7], {"kernel": "(2, 2)", "pool_type": "max", **two}),
        ("_gluon_amp_fork", [8, 8], {"num_outputs": "2"}),
        ("_gluon_amp_blocked_convolution", [9, 1], {**window, **two}),
        ("_gluon_amp_pointwise", [10, (9, 1)], {"program": "add 0 1", "num_inputs": "2", **two}),
        ("_gluon_amp_unblock", [11], two),
    ]
    arrays = {
        "data": nd.array([[[[1, -3], [2, 0]], [[0, 1], [-1, 2]]]]),
        "weight": nd.array([[1, 2], [0, 1]]).reshape((2, 2, 1, 1)),
        "gamma": nd.array([2, 2]),
        "beta": nd.array([-1, -1]),
        "mean": nd.zeros(2),
        "var": nd.ones(2),
    }
    out, grads = run(operators, arrays)
    # convolved: ((1, -1), (0, 4)) and ((0, 1), (-1, 2)); pooled: 7 and 3; convolved: 13 and 3
    np.testing.assert_array_equal(out, [[[[20]], [[6]]]])
    np.testing.assert_array_equal(grads["data"], [[[[0, 0], [0, 4]], [[0, 0], [0, 16]]]])
    # the sum of ((7, 3), (7, 3)) and ((0, 8), (0, 16))
    np.testing.assert_array_equal(grads["weight"].reshape(2, 2), [[7, 11], [7, 19]])
    np.testing.assert_array_equal(grads["gamma"], [8, 8])
    np.testing.assert_array_equal(grads["beta"], [2, 4])


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
