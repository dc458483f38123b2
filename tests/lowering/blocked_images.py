"""Images in the blocked layout, and symbols of the operators on them."""

from typing import Callable, Dict, Optional, Sequence, Tuple, Union

import numpy as np

from gluon_amp.base import bfloat16
from gluon_amp.graph import from_json

import mxnet as mx
from mxnet import autograd, nd

ELEMENTS = ["bfloat16", "float16"] if bfloat16.is_native() else ["float16"]
# The relative error of one rounding
PRECISION = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


def rounded(values: np.ndarray, element: str) -> np.ndarray:
    """Return values of an element type, in float32."""
    if element == "float16":
        with np.errstate(over="ignore"):
            return np.asarray(values).astype(np.float16).astype(np.float32)
    cast = nd.amp_cast(nd.array(values), dtype=np.dtype([("bfloat16", np.uint16)]))
    return nd.amp_cast(cast, dtype="float32").asnumpy()


def to_blocked(plain: np.ndarray, lanes: int, padding: float = 0) -> np.ndarray:
    """Return images (N, C, H, W) as (N, groups, H, W, lanes); 0 lanes are as many as channels."""
    images, channels, height, width = plain.shape
    lanes = lanes or channels
    groups = -(-channels // lanes)
    padded = np.full((images, groups * lanes, height, width), padding, np.float32)
    padded[:, :channels] = plain
    padded = padded.reshape(images, groups, lanes, height, width)
    return np.ascontiguousarray(padded.transpose(0, 1, 3, 4, 2))


def to_plain(blocked: np.ndarray, channels: int) -> Tuple[np.ndarray, np.ndarray]:
    """Return blocked images as (N, C, H, W), and the values of their padding."""
    images, groups, height, width, lanes = blocked.shape
    plain = blocked.transpose(0, 1, 4, 2, 3).reshape(images, groups * lanes, height, width)
    return plain[:, :channels], plain[:, channels:]


def operator(
    op: str, inputs: Sequence[str], element: str, low: int = 1, **attributes
) -> mx.sym.Symbol:
    """Return a symbol of float32 variables that computes an operator in an element type.

    The first `low` inputs are cast to it. Values of float16 are float32 arrays, as emulated.
    """
    nodes = [{"op": "null", "name": name, "inputs": []} for name in inputs]
    entries = [[i, 0, 0] for i in range(len(inputs))]

    def cast(entry: list, dtype: str) -> list:
        attrs = {"dtype": dtype}
        nodes.append(
            {"op": "amp_cast", "name": f"c{len(nodes)}", "inputs": [entry], "attrs": attrs}
        )
        return [len(nodes) - 1, 0, 0]

    if element == "bfloat16":
        entries[:low] = [cast(entry, "bfloat16") for entry in entries[:low]]
    attrs = {name: str(value) for name, value in attributes.items()}
    nodes.append({"op": op, "name": "result", "inputs": entries, "attrs": attrs})
    head = [len(nodes) - 1, 0, 0]
    if element == "bfloat16":
        head = cast(head, "float32")
    return from_json({"nodes": nodes, "heads": [head]})


def compute(
    symbol: mx.sym.Symbol,
    arrays: Dict[str, np.ndarray],
    head: np.ndarray,
    requests: Union[str, Dict[str, str]] = "write",
) -> Dict[str, np.ndarray]:
    """Return a symbol's result and the gradients of its variables, which are ones before."""
    arrays = {name: nd.array(value, dtype=value.dtype) for name, value in arrays.items()}
    grads = {name: nd.ones(x.shape, dtype=x.dtype) for name, x in arrays.items()}
    executor = symbol.bind(mx.cpu(), args=arrays, args_grad=grads, grad_req=requests)
    (out,) = executor.forward(is_train=True)
    executor.backward(nd.array(head))
    return {"result": out.asnumpy(), **{name: grad.asnumpy() for name, grad in grads.items()}}


def reference(
    op: Callable,
    arrays: Dict[str, np.ndarray],
    head_of: Callable[[tuple], np.ndarray],
    **attributes,
) -> Tuple[Dict[str, np.ndarray], np.ndarray]:
    """Return what `compute` does, of an operator of MXNet, and the gradient of its result."""
    inputs = [nd.array(array, dtype="float32") for array in arrays.values()]
    for array in inputs:
        array.attach_grad()
    with autograd.record():
        out = op(*inputs, **attributes)
    head = head_of(out.shape)
    out.backward(nd.array(head))
    grads = {name: array.grad.asnumpy() for name, array in zip(arrays, inputs)}
    return {"result": out.asnumpy(), **grads}, head


def assert_close(
    actual: Dict[str, np.ndarray],
    expected: Dict[str, np.ndarray],
    precision: Dict[str, float],
    sums: float = 2e-5,
    names: Optional[Sequence[str]] = None,
) -> None:
    """Compare with float32 results that are rounded with a relative precision.

    The sums of float32 products, in another order, may differ by `sums` of the largest value.
    """
    for name in names or expected:
        wanted = expected[name]
        largest = np.abs(wanted).max() if wanted.size else 0
        np.testing.assert_allclose(
            actual[name], wanted, rtol=precision.get(name, 0), atol=sums * largest, err_msg=name
        )
