"""Translations of convolutions, dense layers and matrix products, attention among them."""

from typing import Callable, Dict, List

import numpy as np

from gluon_amp.handover.to_onnx.reductions import with_axis
from gluon_amp.handover.to_onnx.writer import Node, Tensor, UntranslatableError, Value, Writer


def window(n: Node) -> dict:
    """Return the attributes of a kernel's window."""
    if n.text("layout") not in ("None", "NCW", "NCHW", "NCDHW"):
        raise UntranslatableError(f"layout {n.text('layout')}; ONNX has channels first alone")
    rank = n.data.rank - 2
    return {
        "kernel_shape": n.integers("kernel", (1,) * rank),
        "strides": n.integers("stride", (1,) * rank),
        "dilations": n.integers("dilate", (1,) * rank),
        "pads": n.integers("pad", (0,) * rank) * 2,  # before, and after
    }


def deconvolution(n: Node, w: Writer) -> str:
    """A transposed convolution; its padding follows from the output's size where that is given."""
    attributes, rank = window(n), n.data.rank - 2
    extra = n.integers("adj", (0,) * rank)
    if n.integers("target_shape"):
        keys = ("kernel_shape", "strides", "dilations")
        sizes = zip(n.out.shape[2:], n.data.shape[2:], *(attributes[key] for key in keys))
        more = [s * (i - 1) + (k - 1) * dilate + 1 - o for o, i, k, s, dilate in sizes]
        extra = tuple(one % 2 for one in more)
        attributes["pads"] = tuple((one + odd) // 2 for one, odd in zip(more, extra)) * 2
    group = n.integer("num_group", 1)
    return w.add("ConvTranspose", *n.inputs, group=group, output_padding=extra, **attributes)


def dense(n: Node, w: Writer) -> str:
    """A dense layer, on all axes but the first, or on the last axis."""
    data, weight, *bias = n.inputs
    if n.flag("flatten", True):
        flat = data if data.rank == 2 else w.add("Flatten", data, axis=1)
        return w.add("Gemm", flat, weight, *bias, transB=1)
    product = w.add("MatMul", _parted(data, data.rank, w), _matrix_transposed(weight, w))
    return w.add("Add", product, *bias) if bias else product


def _parted(factor: Value, rank: int, w: Writer) -> Value:
    """Return what a matrix is multiplied with; three axes come behind a Reshape to their own shape.

    onnxruntime ends the process when it loads some products of a matrix and a Transpose of float16
    in three axes: 1.19.2 does for `np.matmul`, 1.23.2 to 1.32.0 also for a dense layer. It loads
    other numbers of axes, and products of two arrays of three.
    """
    return w.add("Reshape", factor, w.integers([0] * rank)) if rank == 3 else factor


def _matrix_transposed(one: Tensor, w: Writer) -> str:
    """Return a tensor with its last two axes exchanged: a constant where it is one."""
    if one.value is not None:
        return w.constant(np.swapaxes(one.value, -1, -2), f"{one.name}_transposed")
    return w.transposed(one, [*range(one.rank - 2), one.rank - 1, one.rank - 2])


def _factors(n: Node, w: Writer) -> List[str]:
    """Return the two factors of a product of matrices, each transposed if the product says so."""
    return [
        _matrix_transposed(one, w) if n.flag(key) else one.name
        for one, key in zip(n.inputs, ("transpose_a", "transpose_b"))
    ]


def gemm(n: Node, w: Writer) -> str:
    """linalg.gemm2 and gemm: products of matrices times alpha, and beta times a third plus that."""
    if n.integer("axis", -2) not in (-2, n.data.rank - 2):
        raise UntranslatableError("an axis other than the last two")
    value = w.add("MatMul", *_factors(n, w))
    if n.number("alpha", 1) != 1:
        value = w.add("Mul", value, w.scalar(n.number("alpha"), n.out.dtype))
    if n.op == "_linalg_gemm2":
        return value
    third = w.add("Mul", n.inputs[2], w.scalar(n.number("beta", 1), n.out.dtype))
    return w.add("Add", value, third)


def dot(n: Node, w: Writer) -> str:
    """MXNet's dot: the last axis of the first with the first axis of the second."""
    left, right = n.inputs
    a: Value = left.name
    b: Value = right.name
    if not (left.rank and right.rank):  # scalars of mx.np
        return w.add("Mul", a, b)
    if n.flag("transpose_a"):
        a = w.transposed(a, (*range(1, left.rank), 0))
    if n.flag("transpose_b"):
        b = w.transposed(b, (right.rank - 1, *range(right.rank - 1)))
    if right.rank > 2:
        if n.op == "_np_dot":  # which sums over another axis
            raise UntranslatableError("a second factor of more than two axes")
        b = w.add("Reshape", b, w.integers([n.data.shape[0 if n.flag("transpose_a") else -1], -1]))
        return w.reshaped(w.add("MatMul", a, b), n.out)
    a = _parted(a, left.rank, w)
    return with_axis(w.add("MatMul", a, b), left.rank + right.rank - 2, n.out, w)


def tensordot(n: Node, w: Writer) -> str:
    """`mx.np.tensordot`, as an Einstein sum."""
    left, right = n.inputs
    if n.op.endswith("int_axes"):
        count = n.integer("axes")
        pairs = [(left.rank - count + k, k) for k in range(count)]
    else:
        axes = [n.integers(f"{one}_axes_summed") for one in "ab"]
        pairs = [(left.axis(a), right.axis(b)) for a, b in zip(*axes)]
    first = [chr(ord("a") + k) for k in range(left.rank)]
    second = [chr(ord("n") + k) for k in range(right.rank)]
    for a, b in pairs:
        second[b] = first[a]
    left_out = {first[a] for a, _ in pairs}
    rest = [one for one in (*first, *second) if one not in left_out]
    equation = f"{''.join(first)},{''.join(second)}->{''.join(rest)}"
    return w.add("Einsum", left, right, equation=equation)


def scores(n: Node, w: Writer) -> str:
    """Interleaved queries and keys: (T, N, heads · 3 · C) to (N · heads, T, T), times 1/sqrt(C)."""
    heads, other = n.integer("heads"), n.inputs[-1]
    encoder = "encdec" in n.op  # whose queries are alone, and keys beside values
    queries = _part(n.data, heads, 1 if encoder else 3, 0, w)
    keys = _part(other, heads, 2 if encoder else 3, 0 if encoder else 1, w)
    size = n.data.shape[2] // heads // (1 if encoder else 3)
    scaled = w.add("Mul", queries, w.scalar(1 / np.sqrt(size), n.out.dtype))
    return w.add("MatMul", scaled, w.add("Transpose", keys, perm=[0, 2, 1]))


def values(n: Node, w: Writer) -> str:
    """Interleaved values by their weights: (T, N, heads · 3 · C) to (T, N, heads · C)."""
    heads, parts = n.integer("heads"), 2 if "encdec" in n.op else 3
    product = w.add("MatMul", n.inputs[1], _part(n.data, heads, parts, parts - 1, w))
    shape = [-1, heads, n.out.shape[0], n.out.shape[2] // heads]
    split = w.add("Reshape", product, w.integers(shape))
    return w.reshaped(w.add("Transpose", split, perm=[2, 0, 1, 3]), n.out)


def _part(data: Tensor, heads: int, parts: int, which: int, w: Writer) -> str:
    """Return one part of a projection as (N · heads, T, C)."""
    length, _, width = data.shape
    size = width // heads // parts
    if data.growth[0]:
        raise UntranslatableError("a time that follows the batch")
    split = w.add("Reshape", data, w.integers([length, -1, heads, parts, size]))
    one = w.add("Gather", split, w.scalar(which, "int64"), axis=3)
    moved = w.add("Transpose", one, perm=[1, 2, 0, 3])
    return w.add("Reshape", moved, w.integers([-1, length, size]))


TRANSLATIONS: Dict[str, Callable] = {
    **dict.fromkeys(
        ["Convolution", "Convolution_v1"],
        lambda n, w: w.add("Conv", *n.inputs, group=n.integer("num_group", 1), **window(n)),
    ),
    "Deconvolution": deconvolution,
    "FullyConnected": dense,
    "batch_dot": lambda n, w: w.add("MatMul", *_factors(n, w)),
    **dict.fromkeys(["dot", "_np_dot"], dot),
    "_npi_matmul": lambda n, w: w.add("MatMul", *(_parted(one, one.rank, w) for one in n.inputs)),
    **dict.fromkeys(["_linalg_gemm", "_linalg_gemm2"], gemm),
    "_npi_einsum": lambda n, w: w.add("Einsum", *n.inputs, equation=n.text("subscripts")),
    **dict.fromkeys(["_npi_tensordot", "_npi_tensordot_int_axes"], tensordot),
    **{f"_contrib_interleaved_matmul_{kind}_qk": scores for kind in ("selfatt", "encdec")},
    **{f"_contrib_interleaved_matmul_{kind}_valatt": values for kind in ("selfatt", "encdec")},
    "_contrib_div_sqrt_dim": lambda n, w: w.add(
        "Mul", n.data, w.scalar(1 / np.sqrt(n.data.shape[-1]), n.out.dtype)
    ),
}
