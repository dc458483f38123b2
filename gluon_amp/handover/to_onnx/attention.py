"""Translations of interleaved attention, in which one projection has queries, keys and values."""

from typing import Callable, Dict

import numpy as np

from gluon_amp.handover.to_onnx.writer import Node, Tensor, UntranslatableError, Writer


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
    **{f"_contrib_interleaved_matmul_{kind}_qk": scores for kind in ("selfatt", "encdec")},
    **{f"_contrib_interleaved_matmul_{kind}_valatt": values for kind in ("selfatt", "encdec")},
    "_contrib_div_sqrt_dim": lambda n, w: w.add(
        "Mul", n.data, w.scalar(1 / np.sqrt(n.data.shape[-1]), n.out.dtype)
    ),
}
