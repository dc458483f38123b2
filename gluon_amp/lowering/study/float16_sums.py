"""Matrix products that accumulate in float16, for the emulation on a CPU.

Tensor Cores can accumulate in float16, which is faster on some GPUs, and so does cuBLAS's Hgemm,
which MXNet's `batch_dot` calls (apache/mxnet 18584). If a partial sum passes 65504, the result is
infinite or NaN even if the whole sum would fit. A policy with `accumulate=float16` shows the effect
on a network. The operator is written in numpy: for small networks, not for training runs.

Products are accumulated in chunks of 16. Each chunk is added exactly (in float64) to the sum so
far, and the new sum is rounded to float16. 16 is the depth of the matrix product that one Tensor
Core instruction computes (mma.m16n8k16 and wmma's 16 × 16 × 16 in NVIDIA's PTX ISA). Within an
instruction the hardware keeps more digits. GPU kernels choose their own order of a sum, so the
emulation does not promise their bits. Gradients are accumulated in the same way.
"""

from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from gluon_amp.graph import flag, integer, integers

import mxnet as mx

CHUNK = 16
OPERATOR = "gluon_amp_float16_sums"

CHANNELS = {"Convolution": 1, "FullyConnected": -1}  # the axis of the output that a bias belongs to

Attrs = Mapping[str, str]
Operands = Tuple[np.ndarray, np.ndarray]


def product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Multiply stacks of matrices of float16 values, rounding the sum after each 16 products."""
    left, right = left.astype(np.float64), right.astype(np.float64)
    total = np.zeros(1, np.float16)
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(0, left.shape[-1], CHUNK):
            chunk = left[..., k : k + CHUNK] @ right[..., k : k + CHUNK, :]
            total = (total + chunk).astype(np.float16)
    return total


def replaced(node: Dict[str, Any]) -> Dict[str, Any]:
    """Return what stands in place of a node: the node itself if it is none of `PRODUCTS`."""
    if node["op"] not in PRODUCTS:
        return node
    attrs = {"op_type": OPERATOR, "of": node["op"], **node["attrs"]}
    return {**node, "op": "Custom", "attrs": attrs}


# ---------------------------------------------------- operators as products of two matrices
#
# Each function returns the matrices, or stacks of them, whose product has the elements of an
# operator's output, in their order; those of a convolution in the order of `_channels_first`.


def _fully_connected(attrs: Attrs, data: np.ndarray, weight: np.ndarray) -> Operands:
    return data.reshape(-1, weight.shape[1]), weight.T


def _dot(attrs: Attrs, left: np.ndarray, right: np.ndarray) -> Operands:
    left, right = (x.T if flip else x for x, flip in zip((left, right), _flips(attrs)))
    return left.reshape(-1, left.shape[-1]), right.reshape(right.shape[0], -1)


def _batch_dot(attrs: Attrs, left: np.ndarray, right: np.ndarray) -> Operands:
    pairs = zip((left, right), _flips(attrs))
    left, right = (x.swapaxes(-1, -2) if flip else x for x, flip in pairs)
    return left, right


def _convolution(attrs: Attrs, data: np.ndarray, weight: np.ndarray) -> Operands:
    """Return the weight (G, O/G, K) and the data's windows (G, K, N × positions).

    K is channels × kernel.
    """
    dims, kernel = weight.ndim - 2, weight.shape[2:]
    pad = integers(attrs, "pad", (0,) * dims)
    stride, dilate = (integers(attrs, name, (1,) * dims) for name in ("stride", "dilate"))
    padded = np.pad(data, [(0, 0), (0, 0), *((p, p) for p in pad)])
    spans = [d * (k - 1) + 1 for d, k in zip(dilate, kernel)]
    axes: Any = tuple(range(2, dims + 2))  # numpy 1.23 declares one axis alone
    windows = np.lib.stride_tricks.sliding_window_view(padded, spans, axes)
    windows = windows[tuple(slice(None, None, step) for step in (1, 1, *stride, *dilate))]
    groups, positions = integer(attrs, "num_group", 1), int(np.prod(windows.shape[2 : dims + 2]))
    windows = windows.reshape(len(data), groups, -1, positions, int(np.prod(kernel)))
    right = windows.transpose(1, 2, 4, 0, 3).reshape(groups, -1, len(data) * positions)
    return weight.reshape(groups, -1, right.shape[1]), right


PRODUCTS: Dict[str, Callable[[Attrs, np.ndarray, np.ndarray], Operands]] = {
    "Convolution": _convolution,
    "FullyConnected": _fully_connected,
    "dot": _dot,
    "batch_dot": _batch_dot,
}


def _flips(attrs: Attrs) -> List[bool]:
    return [flag(attrs, f"transpose_{which}") for which in "ab"]


def _channels_first(op: str, output: np.ndarray) -> np.ndarray:
    return output.swapaxes(0, 1) if op == "Convolution" else output


def check(op: str, attrs: Attrs, shapes: Sequence[Sequence[int]]) -> None:
    """Raise `ValueError` for a product of these shapes that `PRODUCTS` do not describe."""
    left, right, *_ = map(tuple, shapes)
    flips = zip(_flips(attrs), (left, right))
    if op == "dot" and any(flip and len(shape) != 2 for flip, shape in flips):
        raise ValueError(
            f"dot() of shapes {left} and {right} with a transpose cannot accumulate in float16: "
            "transpose matrices only, or pin dot to float32."
        )


# ------------------------------------------------------------------------- the operator


class _Float16Sums(mx.operator.CustomOp):
    """The custom operator that replaces operator `of`."""

    def __init__(self, of: str, attrs: Attrs) -> None:
        super().__init__()
        self.of, self.attrs = of, attrs

    def forward(self, is_train, req, in_data, out_data, aux):
        data, weight, *bias = (x.asnumpy() for x in in_data)
        out = np.empty(out_data[0].shape, np.float32)
        first = _channels_first(self.of, out)
        first[:] = product(*PRODUCTS[self.of](self.attrs, data, weight)).reshape(first.shape)
        if bias:
            channels_last = np.moveaxis(out, CHANNELS[self.of], -1)
            channels_last += bias[0]
        self.assign(out_data[0], req[0], mx.nd.array(out, dtype=np.float32))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        arrays = [x.asnumpy() for x in in_data[:2]]
        gradient = out_grad[0].asnumpy()
        left, right = PRODUCTS[self.of](self.attrs, *arrays)
        result = _channels_first(self.of, gradient).reshape(*left.shape[:-1], right.shape[-1])
        of_left = product(result, right.swapaxes(-1, -2))
        of_right = product(left.swapaxes(-1, -2), result)
        # An element's gradient is the sum over its places in the matrices, where its number stands.
        # Padding has the number 0.
        sizes = [x.size for x in arrays]
        numbers = np.split(np.arange(1, 1 + sum(sizes)), sizes[:1])
        numbers = [number.reshape(x.shape) for number, x in zip(numbers, arrays)]
        sums = np.zeros(1 + sum(sizes), np.float32)
        for places, of_one in zip(PRODUCTS[self.of](self.attrs, *numbers), (of_left, of_right)):
            np.add.at(sums, places.ravel(), of_one.ravel().astype(np.float32))
        grads = [part.reshape(x.shape) for part, x in zip(np.split(sums[1:], sizes[:1]), arrays)]
        if len(in_data) > 2:
            channels = CHANNELS[self.of] % gradient.ndim
            grads.append(gradient.sum(axis=tuple({*range(gradient.ndim)} - {channels})))
        for target, grad_req, grad in zip(in_grad, req, grads):
            self.assign(target, grad_req, mx.nd.array(grad, dtype=np.float32))


@mx.operator.register(OPERATOR)
class _Float16SumsProp(mx.operator.CustomOpProp):
    """Names, shapes and dtypes of the custom operator that replaces operator `of`."""

    def __init__(self, of: str, **attrs: str) -> None:
        super().__init__(need_top_grad=True)
        self.of = of
        self.attrs = {k: v for k, v in attrs.items() if not k.startswith("__")}
        binary = of in ("dot", "batch_dot")
        self.names = ["lhs", "rhs"] if binary else ["data", "weight", "bias"]
        if flag(attrs, "no_bias"):
            self.names = self.names[:2]
        self.symbol = getattr(mx.sym, of)(*map(mx.sym.var, self.names), **self.attrs)

    def list_arguments(self):
        return self.names

    def infer_shape(self, in_shape):
        known = {n: tuple(s) for n, s in zip(self.names, in_shape) if len(s) and min(s) > 0}
        shapes, outs, _ = self.symbol.infer_shape(**known)
        return [list(s) for s in shapes], [list(outs[0])], []

    def create_operator(self, ctx, shapes, dtypes):
        check(self.of, self.attrs, shapes)
        return _Float16Sums(self.of, self.attrs)
