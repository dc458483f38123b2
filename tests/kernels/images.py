"""Images in the blocked layout, and the C++ operators on them beside those of MXNet."""

from typing import Callable, Dict, Sequence, Tuple, Union

import numpy as np

from gluon_amp.base import bfloat16, registry
from gluon_amp.graph import from_json
from gluon_amp.graph.own_operators import NARROW_BFLOAT16, WIDEN_BFLOAT16

import mxnet as mx
from mxnet import autograd, nd

# What arrays hold; products widen bfloat16 to float32 where it is emulated.
ELEMENTS = ["float16", "float32", "widened bfloat16"]
ELEMENTS = ["bfloat16", *ELEMENTS] if bfloat16.is_native() else ELEMENTS
# The relative error of one rounding; in float32, of a few
PRECISION = {
    "bfloat16": 2.0**-8,
    "widened bfloat16": 2.0**-8,
    "wide bfloat16": 2.0**-8,
    "float16": 2.0**-11,
    "float32": 2.0**-21,
}

WIDENED = {"bfloat16": NARROW_BFLOAT16, "float32": WIDEN_BFLOAT16}

# images, channels, height, width, lanes (0: as many as channels)
SHAPES = [
    (2, 16, 4, 4, 16),
    (3, 32, 28, 21, 16),  # several spans of an image
    (5, 3, 7, 10, 16),
    (2, 17, 7, 7, 8),
    (4, 24, 1, 1, 8),
    (2, 24, 5, 13, 0),
    (2, 1, 70, 1, 0),
    (1, 600, 3, 4, 0),  # more lanes than a table of the kernels has
]

Arrays = Dict[str, np.ndarray]


def rounded(values: np.ndarray, element: str) -> np.ndarray:
    """Return values of an element type, in float32."""
    if element == "float16":
        with np.errstate(over="ignore"):
            return np.asarray(values).astype(np.float16).astype(np.float32)
    values = np.asarray(values, np.float32)
    if element == "float32":
        return values
    bits = values.view(np.uint32)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(values), values, bits.view(np.float32))


def normal(shape: Sequence[int], element: str, seed: int = 0) -> np.ndarray:
    """Return random values of an element type."""
    return rounded(np.random.RandomState(seed).normal(size=shape), element)


def integers(*shape: int, seed: int = 0) -> np.ndarray:
    """Return values that bfloat16 and float16 hold, as do sums of two of them."""
    return np.random.RandomState(seed).randint(-60, 60, shape).astype(np.float32)


def to_blocked(plain: np.ndarray, lanes: int, padding: float = 0) -> np.ndarray:
    """Return images (N, C, H, W) as (N, groups, H, W, lanes); 0 lanes are as many as channels."""
    images, channels, height, width = plain.shape
    lanes = lanes or channels
    groups = -(-channels // lanes)
    padded = np.full((images, groups * lanes, height, width), padding, np.float32)
    padded[:, :channels] = plain
    padded = padded.reshape(images, groups, lanes, height, width)
    return np.ascontiguousarray(padded.transpose(0, 1, 3, 4, 2))


def to_plain(blocked: np.ndarray, channels: int) -> np.ndarray:
    """Return blocked images as (N, C, H, W); their padding has to be 0."""
    images, groups, height, width, lanes = blocked.shape
    plain = blocked.transpose(0, 1, 4, 2, 3).reshape(images, groups * lanes, height, width)
    np.testing.assert_array_equal(plain[:, channels:], 0, "padding")
    return plain[:, :channels]


def operator(op, inputs, element, low=None, outputs=1, **attributes) -> mx.sym.Symbol:
    """Return a symbol of float32 variables that computes an operator in an element type.

    The inputs in `low`, by default the first one, are cast to it. Values of float16 are float32
    arrays, as emulated, and so are those of "wide bfloat16".
    """
    names = list(dict.fromkeys(inputs))
    nodes = [{"op": "null", "name": name, "inputs": []} for name in names]
    entries = {name: [i, 0, 0] for i, name in enumerate(names)}

    def emit(op: str, name: str, read: list, **attrs) -> list:
        attrs = {key: str(value) for key, value in attrs.items()}
        nodes.append({"op": op, "name": name, "inputs": read, "attrs": attrs})
        return [len(nodes) - 1, 0, 0]

    def cast(entry: list, dtype: str) -> list:
        if element == "bfloat16":
            return emit("amp_cast", f"c{len(nodes)}", [entry], dtype=dtype)
        if element == "widened bfloat16":
            return emit(WIDENED[dtype], f"c{len(nodes)}", [entry])
        return entry

    if element in ("widened bfloat16", "float32"):
        attributes["in_float32"] = True
    if element == "wide bfloat16":
        attributes["bfloat_values"] = True

    for name in names[:1] if low is None else low:
        entries[name] = cast(entries[name], "bfloat16")
    number, *_ = emit(op, "result", [entries[name] for name in inputs], **attributes)
    heads = [cast([number, k, 0], "float32") for k in range(outputs)]
    return from_json({"nodes": nodes, "heads": heads})


def compute(
    symbol: mx.sym.Symbol,
    arrays: Arrays,
    head: Union[np.ndarray, Sequence[np.ndarray], None] = None,
    requests: Union[str, Dict[str, str]] = "write",
) -> Arrays:
    """Return a symbol's result and the gradients of its variables, which are ones before.

    Without `head` it is inference. Auxiliary states are returned as they are afterwards.
    """
    arrays = {name: nd.array(value, dtype=value.dtype) for name, value in arrays.items()}
    states = {name: arrays.pop(name) for name in symbol.list_auxiliary_states()}
    grads = {name: nd.ones(x.shape, dtype=x.dtype) for name, x in arrays.items()}
    executor = symbol.bind(
        mx.cpu(), args=arrays, args_grad=grads, grad_req=requests, aux_states=states
    )
    outs = executor.forward(is_train=head is not None)
    if head is not None:
        heads = [head] if isinstance(head, np.ndarray) else head
        executor.backward([nd.array(x, dtype=y.dtype) for x, y in zip(heads, outs)])
    results = {"result": outs[0], **grads, **states}
    results.update((f"result{k}", out) for k, out in enumerate(outs[1:], start=1))
    return {name: array.asnumpy() for name, array in results.items()}


def invoke(op: str, arrays: Sequence[nd.NDArray], attributes: Dict[str, object], out=None) -> None:
    """Call an operator alone, on these arrays themselves, and wait for it."""
    handle, texts = registry.handle(op).value, list(map(str, attributes.values()))
    mx.nd._internal._imperative_invoke(handle, arrays, list(attributes), texts, out, False, False)
    nd.waitall()


def reference(
    op: Callable, arrays: Arrays, head_of: Callable[[tuple], np.ndarray], **attributes
) -> Tuple[Arrays, np.ndarray]:
    """Return what `compute` does, of operators of MXNet, and the gradient of their result."""
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
    actual: Arrays, expected: Arrays, precision: Dict[str, float], sums: float = 2e-5
) -> None:
    """Compare with float32 results that are rounded with a relative precision.

    The sums of float32 products, in another order, may differ by `sums` of the largest value.
    """
    for name, wanted in expected.items():
        largest = np.abs(wanted).max() if wanted.size else 0
        rtol, atol = precision.get(name, 0), sums * largest
        np.testing.assert_allclose(actual[name], wanted, rtol=rtol, atol=atol, err_msg=name)


def assert_same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    """Assert equal dtypes and bits, apart from the bits of NaNs."""
    nan = np.isnan(expected)
    assert actual.dtype == expected.dtype
    assert np.array_equal(np.isnan(actual), nan)
    unsigned = f"u{actual.dtype.itemsize}"
    assert np.array_equal(actual[~nan].view(unsigned), expected[~nan].view(unsigned))
