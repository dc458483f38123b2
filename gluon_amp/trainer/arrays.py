"""Functions of many arrays at once: are all elements finite, and what is their norm.

On a GPU, MXNet's multi-tensor operators compute both. They run once for each device and dtype, in
chunks within their limits: `multi_all_finite` aborts the process above 200 arrays, and rejects
mixed dtypes. On a CPU that operator takes 10 ns per element. There our kernel tests the bits of all
arrays in one pass, at the speed of memory. Without the kernel numpy does, at half that speed
(docs/benchmarks/overflow_check.md).
"""

import math
from collections import defaultdict
from contextlib import contextmanager
from typing import Iterable, Iterator, List

import numpy as np

from gluon_amp.host import host_view, on_cpu
from gluon_amp.lowering.native import updates
from gluon_amp.optimizer.base import chunks

import mxnet as mx
from mxnet import autograd, nd
from mxnet.ndarray import NDArray

FINITE_LIMIT = 200  # above it, multi_all_finite reads past its parameter block
SUM_SQUARES_LIMIT = 60
BLOCK = 1 << 16  # elements of a block that stays in the cache

# The bits of +inf and of positive NaNs are the largest signed integers; those of -inf and of
# negative NaNs are the largest unsigned ones.
_BITS = {
    np.dtype("float16"): (np.int16, 0x7C00, np.uint16, 0xFC00),
    np.dtype("float32"): (np.int32, 0x7F800000, np.uint32, 0xFF800000),
    np.dtype("float64"): (np.int64, 0x7FF0000000000000, np.uint64, 0xFFF0000000000000),
}


def flatten(arrays) -> Iterator[NDArray]:
    """Yield all arrays in nested lists and tuples."""
    if isinstance(arrays, (list, tuple)):
        for item in arrays:
            yield from flatten(item)
    else:
        yield arrays


def dense_part(array: NDArray) -> NDArray:
    """Return the stored values: a dense array itself, or the rows of a row_sparse one."""
    return array if array.stype == "default" else array.data


@contextmanager
def restored(arrays: Iterable[NDArray]) -> Iterator[None]:
    """Restore the present values of arrays at the end."""
    arrays = list(arrays)
    before = [array.copy() for array in arrays]
    try:
        yield
    finally:
        for array, values in zip(arrays, before):
            values.copyto(array)


def head_gradients(losses: Iterable[NDArray], scale: float) -> List[NDArray]:
    """Return arrays of `mx.nd` in the losses' shapes and dtypes, on their devices, of one value."""
    # An array of `mx.np` can have the shape (), which is unknown to `mx.nd` without `np_shape`.
    with autograd.pause(), mx.util.np_shape(True):
        return [nd.full(one.shape, scale, ctx=one.context, dtype=one.dtype) for one in losses]


def all_zero(arrays: Iterable) -> bool:
    """Return whether no element is above or below zero, where NaN is neither."""
    return not any((np.abs(dense_part(one).asnumpy()) > 0).any() for one in arrays)


def all_finite(arrays: Iterable) -> bool:
    """Return whether no element of any array is infinite or NaN, with one host read per device.

    The arrays can be dense or row_sparse, float16, float32 or float64, on any devices.
    """
    flags = {}
    for group in _grouped(arrays):
        if on_cpu(group[0]):
            if not _all_finite_in_host_memory(group):
                return False
            continue
        for chunk in chunks(group, FINITE_LIMIT):
            context = chunk[0].context
            first = context not in flags
            if first:
                flags[context] = nd.empty((1,), ctx=context)
            nd.multi_all_finite(
                *chunk, num_arrays=len(chunk), init_output=first, out=flags[context]
            )
    return all(flag.asscalar() != 0 for flag in flags.values())


def global_norm(arrays: Iterable) -> float:
    """Return the Euclidean norm over all elements of all arrays; inf or NaN if one of them is.

    Squares are summed in float32, which represents the square of any float16. If squares of float32
    elements overflow or underflow, they are summed again in float64. If every element is multiplied
    by a power of two, the result is multiplied by exactly this power (Law 2 with clipping).
    """
    total = 0.0
    for group in _grouped(arrays):
        if on_cpu(group[0]):
            total += sum(_host_sum_squares(host_view(array)) for array in group)
        else:
            total += sum(_device_sum_squares(chunk) for chunk in chunks(group, SUM_SQUARES_LIMIT))
    return math.sqrt(total)


def _grouped(arrays):
    """Return non-empty dense arrays, as those of `mx.nd`, in one list for each device and dtype."""
    groups = defaultdict(list)
    for array in map(dense_part, arrays):
        if array.size:
            groups[array.context, np.dtype(array.dtype)].append(array.as_nd_ndarray())
    return groups.values()


def _all_finite_in_host_memory(arrays: List) -> bool:
    if updates.supported(arrays):
        return bool(updates.finite(arrays).all())
    return all(_host_finite(host_view(array)) for array in arrays)


def _host_finite(values: np.ndarray) -> bool:
    signed, positive_inf, unsigned, negative_inf = _BITS[values.dtype]
    for start in range(0, values.size, BLOCK):
        block = values[start : start + BLOCK]
        if block.view(signed).max() >= positive_inf or block.view(unsigned).max() >= negative_inf:
            return False
    return True


# Below this a float32 sum of squares may have lost small terms to underflow.
_TINY = 1e-24


def _host_sum_squares(values: np.ndarray) -> float:
    total = 0.0
    for start in range(0, values.size, BLOCK):
        block = values[start : start + BLOCK].astype(np.float32, copy=False)
        square = float(np.dot(block, block))
        if not _TINY < square < math.inf:
            exact = values[start : start + BLOCK].astype(np.float64)
            square = float(np.dot(exact, exact))
        total += square
    return total


def _device_sum_squares(arrays) -> float:
    squares = nd.multi_sum_sq(*arrays, num_arrays=len(arrays)).asnumpy().astype(np.float64)
    for index, square in enumerate(squares):
        if not _TINY < square < math.inf:
            squares[index] = nd.square(arrays[index].astype("float64")).sum().asscalar()
    return float(squares.sum())
