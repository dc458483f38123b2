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

from typing import List, Tuple

import numpy as np

from gluon_amp.graph import flag, integer, integers

import mxnet as mx

CHUNK = 16
OPERATOR = "gluon_amp_float16_sums"


def product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Multiply stacks of matrices of float16 values, rounding the sum after each 16 products."""
    left, right = left.astype(np.float64), right.astype(np.float64)
    total = np.zeros(1, np.float16)
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(0, left.shape[-1], CHUNK):
            chunk = left[..., k : k + CHUNK] @ right[..., k : k + CHUNK, :]
            total = (total + chunk).astype(np.float16)
    return total


def node(op: str, attrs: dict) -> dict:
    """Return operator and attributes of the node that replaces one of `graph.ACCUMULATING`."""
    return {"op": "Custom", "attrs": {"op_type": OPERATOR, "of": op, **attrs}}


# ---------------------------------------------------- operators as products of two matrices
#
# Each class describes how an operator of certain shapes is a matrix product:
#   operands(data, weight)  the matrices to multiply
#   output(result)          the operator's output from their product
#   result(gradient)        the gradient of the product from the gradient of the output
#   gradients(left, right)  the gradients of data and weight from those of the two matrices
#   bias_axis               the axis of the output that a bias belongs to


class _View:
    def __init__(self, attrs: dict, shapes: List[tuple]) -> None:
        self.data, self.weight, self.out = shapes
        self.flips = [flag(attrs, f"transpose_{which}") for which in "ab"]

    def output(self, result):
        return result.reshape(self.out)


class _FullyConnected(_View):
    """Data (N, K) times the transposed weight (M, K)."""

    @property
    def bias_axis(self) -> int:
        return len(self.out) - 1

    def operands(self, data, weight) -> tuple:
        return data.reshape(-1, self.weight[1]), weight.T

    def result(self, gradient):
        return gradient.reshape(-1, self.weight[0])

    def gradients(self, left, right) -> tuple:
        return left.reshape(self.data), right.T


class _Dot(_View):
    """The left tensor's last axis times the right one's first; both may be transposed before."""

    def __init__(self, attrs: dict, shapes: List[tuple]) -> None:
        super().__init__(attrs, shapes)
        if any(flip and len(shape) != 2 for flip, shape in zip(self.flips, shapes)):
            raise ValueError(
                f"dot() of shapes {self.data} and {self.weight} with a transpose cannot accumulate "
                "in float16: transpose matrices only, or pin dot to float32."
            )

    def operands(self, left, right) -> tuple:
        left, right = self._flipped(left, right)
        return left.reshape(-1, left.shape[-1]), right.reshape(right.shape[0], -1)

    def result(self, gradient):
        left, right = self._flipped(np.empty(self.data), np.empty(self.weight))
        return gradient.reshape(left.size // left.shape[-1], right.size // right.shape[0])

    def gradients(self, left, right) -> tuple:
        shapes = (s[::-1] if flip else s for s, flip in zip((self.data, self.weight), self.flips))
        return self._flipped(*(x.reshape(shape) for x, shape in zip((left, right), shapes)))

    def _flipped(self, *pair) -> tuple:
        return tuple(x.T if flip else x for x, flip in zip(pair, self.flips))


class _BatchDot(_View):
    """Stacks of matrices, which may be transposed before."""

    def operands(self, left, right) -> tuple:
        pairs = zip((left, right), self.flips)
        return tuple(np.swapaxes(x, -1, -2) if flip else x for x, flip in pairs)

    gradients = operands

    def result(self, gradient):
        return gradient


class _Convolution(_View):
    """Weight (G, O/G, K) times the data's windows (G, K, positions); K: channels × kernel."""

    bias_axis = 1

    def __init__(self, attrs: dict, shapes: List[tuple]) -> None:
        super().__init__(attrs, shapes)
        self.kernel = self.weight[2:]
        dims = len(self.kernel)
        self.stride, self.dilate = (
            integers(attrs, name, (1,) * dims) for name in ("stride", "dilate")
        )
        self.pad = integers(attrs, "pad", (0,) * dims)
        self.groups = integer(attrs, "num_group", 1)

    def operands(self, data, weight) -> tuple:
        """Return the weight and the unfolded windows (im2col)."""
        padded = np.pad(data, [(0, 0), (0, 0), *((p, p) for p in self.pad)])
        windows = np.stack([padded[at] for at in self._positions()], axis=2)
        windows = windows.reshape(len(data), self.groups, -1, int(np.prod(self.out[2:])))
        depth = windows.shape[2]
        right = windows.transpose(1, 2, 0, 3).reshape(self.groups, depth, -1)
        return weight.reshape(self.groups, -1, depth), right

    def output(self, result):
        out = result.reshape(self.out[1], self.out[0], *self.out[2:])
        return out.swapaxes(0, 1)

    def result(self, gradient):
        return gradient.swapaxes(0, 1).reshape(self.groups, self.out[1] // self.groups, -1)

    def gradients(self, left, right) -> tuple:
        """Return the gradients of data and weight; overlapping windows are added (col2im)."""
        batch, channels = self.data[:2]
        windows = right.reshape(self.groups, -1, batch, int(np.prod(self.out[2:])))
        windows = windows.transpose(2, 0, 1, 3).astype(np.float32)
        windows = windows.reshape(batch, channels, -1, *self.out[2:])
        sizes = [size + 2 * p for size, p in zip(self.data[2:], self.pad)]
        padded = np.zeros((batch, channels, *sizes), np.float32)
        for k, at in enumerate(self._positions()):
            padded[at] += windows[:, :, k]
        inner = tuple(slice(p, p + size) for p, size in zip(self.pad, self.data[2:]))
        return padded[(slice(None), slice(None), *inner)], left.reshape(self.weight)

    def _positions(self) -> List[Tuple[slice, ...]]:
        """Return, for each element of the kernel, the slices of the padded data that it reads."""
        return [
            (
                slice(None),
                slice(None),
                *(
                    slice(k * d, k * d + s * (n - 1) + 1, s)
                    for k, d, s, n in zip(at, self.dilate, self.stride, self.out[2:])
                ),
            )
            for at in np.ndindex(*self.kernel)
        ]


# Operator: its description as a matrix product
PRODUCTS = {
    "Convolution": _Convolution,
    "FullyConnected": _FullyConnected,
    "dot": _Dot,
    "batch_dot": _BatchDot,
}


# ------------------------------------------------------------------------- the operator


class _Float16Sums(mx.operator.CustomOp):
    """The custom operator; `view` is one of the classes above."""

    def __init__(self, view) -> None:
        super().__init__()
        self.view = view

    def forward(self, is_train, req, in_data, out_data, aux):
        data, weight, *bias = (x.asnumpy() for x in in_data)
        result = product(*self.view.operands(data, weight))
        out = self.view.output(result).astype(np.float32)
        if bias:
            shape = [1] * out.ndim
            shape[self.view.bias_axis] = -1
            out = out + bias[0].reshape(shape)
        self.assign(out_data[0], req[0], mx.nd.array(out, dtype=np.float32))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        data, weight = (x.asnumpy() for x in in_data[:2])
        gradient = out_grad[0].asnumpy()
        left, right = self.view.operands(data, weight)
        result = self.view.result(gradient)
        of_left = product(result, np.swapaxes(right, -1, -2))
        of_right = product(np.swapaxes(left, -1, -2), result)
        grads = [*self.view.gradients(of_left, of_right)]
        if len(in_data) > 2:
            others = tuple(k for k in range(gradient.ndim) if k != self.view.bias_axis)
            grads.append(gradient.sum(axis=others))
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
        _, outs, _ = self.symbol.infer_shape(**dict(zip(self.names, map(tuple, shapes))))
        view = PRODUCTS[self.of](self.attrs, [tuple(shapes[0]), tuple(shapes[1]), outs[0]])
        return _Float16Sums(view)
