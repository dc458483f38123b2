"""The trial of a library that was just built or found: `obtain` runs this in a separate process.

The library's operators depend on how MXNet was compiled. If MXNet was compiled in another way than
they expect, they may crash. The exit status is 0 if they work.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any, Dict, List

import numpy as np

from gluon_amp import kernels
from gluon_amp.base import bfloat16
from gluon_amp.base.messages import reason_of
from gluon_amp.base.mxnet_internals import GRAPH_VERSION

import mxnet as mx
from mxnet import nd


def check(operators: List[tuple], arrays: Dict[str, nd.NDArray], **expected: Any) -> None:
    """Run a graph forward and back; compare its output `out` and gradients with what is expected.

    Each operator reads tensors by their numbers: first the variables, then the first results of
    the operators. Gradients are added to zeros.
    """
    nodes: List[Dict[str, Any]] = [{"op": "null", "name": name, "inputs": []} for name in arrays]
    for op, sources, attrs in operators:
        inputs = [[*(s if isinstance(s, tuple) else (s, 0)), 0] for s in sources]
        nodes.append({"op": op, "name": f"node{len(nodes)}", "inputs": inputs, "attrs": attrs})
    graph = {"nodes": nodes, "arg_nodes": [*range(len(arrays))], "heads": [[len(nodes) - 1, 0, 0]]}
    symbol = mx.sym.load_json(json.dumps({**graph, "attrs": GRAPH_VERSION}))
    args = {name: arrays[name] for name in symbol.list_arguments()}
    results = {name: nd.zeros(array.shape, dtype=array.dtype) for name, array in args.items()}
    states = {name: arrays[name] for name in symbol.list_auxiliary_states()}
    executor = symbol.bind(mx.cpu(), args, dict(results), "add", states)
    (results["out"],) = executor.forward(is_train=True)
    executor.backward(nd.ones_like(results["out"]))
    for name, values in expected.items():
        np.testing.assert_array_equal(results[name].asnumpy().ravel(), np.ravel(values), name)


def check_rounding() -> None:
    """Round in place, in oneDNN's layout, between two convolutions of one pixel.

    They are matrix products, here of integers: each channel is added to the one before.
    """
    data = np.tile([2048, 1], 16)
    weight = np.eye(32) + np.eye(32, k=1)
    window = {"kernel": "(1, 1)", "num_filter": "32", "no_bias": "True"}
    operators = [
        ("_gluon_amp_widen", [1], {}),
        ("_gluon_amp_bfloat16", [0], {}),
        ("amp_cast", [3], {"dtype": "float32"}),
        ("Convolution", [4, 2], window),
        ("_gluon_amp_round", [5], {}),
        ("Convolution", [6, 2], window),
        ("_gluon_amp_round_relu", [7], {}),
        ("_gluon_amp_narrow", [8], {}),
    ]
    arrays = {
        "data": nd.array(data.reshape(1, 32, 1, 1)),
        "weight": nd.array(weight.reshape(32, 32, 1, 1), dtype="float16"),
    }
    hidden = [2048] * 31 + [1]  # 2049 is rounded
    hidden_grad = [1] + [2] * 31
    weight_grad = (hidden + np.outer(hidden_grad, data)).astype(np.float16)
    check(operators, arrays, out=[4096] * 30 + [2048, 1], weight=weight_grad)


def check_convolutions() -> None:
    """Convolve images of one pixel with stride 2: only the middle of the kernel has an effect."""
    window = {"kernel": "(3,)", "stride": "(2,)", "pad": "(1,)", "num_filter": "2"}
    operators = [
        ("_gluon_amp_bfloat16", [0], {}),
        ("_gluon_amp_bfloat16", [1], {}),
        ("_gluon_amp_convolution", [2, 3], {**window, "no_bias": "True"}),
        ("amp_cast", [4], {"dtype": "float32"}),
    ]
    arrays = {"data": nd.arange(4).reshape((2, 2, 1)), "weight": nd.arange(12).reshape((2, 2, 3))}
    middle = [[0, 2, 0], [0, 4, 0]]
    data_grad = [[8, 14], [8, 14]]
    check(operators, arrays, out=[4, 10, 14, 44], data=data_grad, weight=[middle, middle])


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
    # convolved: ((1, -1), (0, 4)) and ((0, 1), (-1, 2)); pooled: 7 and 3; convolved: 13 and 3
    expected = {
        "out": [20, 6],
        "data": [[[0, 0], [0, 4]], [[0, 0], [0, 16]]],
        "weight": [[7, 11], [7, 19]],  # the sum of ((7, 3), (7, 3)) and ((0, 8), (0, 16))
        "gamma": [8, 8],
        "beta": [2, 4],
    }
    check(operators, arrays, **expected)


if __name__ == "__main__":
    try:
        kernels.load(Path(sys.argv[1]))
        check_rounding()
        if os.environ.get("MXNET_MKLDNN_ENABLED", "1") != "0":
            check_blocked_images()
        if bfloat16.has_kernels():
            check_convolutions()
    except Exception as error:
        sys.exit(f"error: {type(error).__name__}: {reason_of(error)}")
