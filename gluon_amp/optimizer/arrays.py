"""Functions of many arrays at once: are all elements finite, and what are their square sums.

On a GPU, MXNet's multi-tensor operators compute both. They run once for each device and dtype, in
chunks within their limits: `multi_all_finite` aborts the process above 200 arrays, and rejects
mixed dtypes. On a CPU that operator takes 10 ns per element. There our kernel tests the bits of all
arrays in one pass, at the speed of memory. Without the kernel numpy does, at half that speed
(docs/speed.md).
"""

import functools
import math
from collections import defaultdict
from contextlib import contextmanager
from itertools import chain
from typing import Any, Callable, DefaultDict, Iterable, Iterator, List, Sequence, Tuple, Union

import numpy as np

from gluon_amp.base.host import host_view, on_cpu
from gluon_amp.kernels import updates
from gluon_amp.optimizer.base import add_multiples, cast, chunks, rounded, sum_squares

import mxnet as mx
from mxnet import autograd, nd
from mxnet.ndarray import NDArray

FINITE_LIMIT = 200  # above it, multi_all_finite reads past its parameter block
BLOCK = 1 << 16  # elements of a block that stays in the cache

# The bits of +inf and of positive NaNs are the largest signed integers; those of -inf and of
# negative NaNs are the largest unsigned ones.
_BITS = {
    np.dtype("float16"): (np.int16, 0x7C00, np.uint16, 0xFC00),
    np.dtype("float32"): (np.int32, 0x7F800000, np.uint32, 0xFF800000),
    np.dtype("float64"): (np.int64, 0x7FF0000000000000, np.uint64, 0xFFF0000000000000),
}


Values = Union["np.ndarray[Any, Any]"]
Group = Tuple[List[int], List[NDArray]]  # positions, and the arrays there of one device and dtype


def flatten(arrays: Any) -> Iterator[NDArray]:
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


def all_zero(arrays: Iterable[NDArray]) -> bool:
    """Return whether no element is above or below zero, where NaN is neither."""
    return not any(map(_has_number, chain.from_iterable(map(_blocks, arrays))))


def _blocks(array: NDArray) -> Iterator[Values]:
    array = dense_part(array)
    values: Values = host_view(array) if on_cpu(array) else array.asnumpy().ravel()
    return chunks(values, BLOCK)


def _has_number(values: Values) -> bool:
    # numpy's loops over float16 are as slow as MXNet's, so zeros are seen by their bits.
    bits = values.view(_BITS[values.dtype][2])
    return bool((bits << 1).any() and (np.abs(values) > 0).any())


def doublings(arrays: Iterable[NDArray]) -> float:
    """Return how often finite float16 arrays on CPUs can be doubled, which is infinite for others.

    It is approximate for subnormal numbers.
    """
    halves = [one for one in arrays if np.dtype(one.dtype) == np.float16]
    if not halves or not all(map(on_cpu, halves)):
        return math.inf
    blocks = (one.view(np.uint16) & 0x7FFF for array in halves for one in _blocks(array))
    return 30 - max((int(one.max()) >> 10 for one in blocks), default=0)


def all_finite(arrays: Iterable[NDArray]) -> bool:
    """Return whether no element of any array is infinite or NaN, with one host read per device.

    The arrays can be dense or row_sparse, float16, float32 or float64, on any devices.
    """
    flags = {}
    for _, group in _grouped(arrays):
        if on_cpu(group[0]):
            if not _finite_in_host_memory(group).all():
                return False
            continue
        for chunk in chunks(group, FINITE_LIMIT):
            context = chunk[0].context
            first = context not in flags
            if first:
                flags[context] = nd.empty((1,), ctx=context)
            with autograd.pause():  # users may call backward() while recording
                nd.multi_all_finite(
                    *chunk, num_arrays=len(chunk), init_output=first, out=flags[context]
                )
    return all(flag.asscalar() != 0 for flag in flags.values())


def finite(arrays: Iterable[NDArray]) -> List[bool]:
    """Return for each array whether all its elements are finite, with one host read per device."""
    flags = _each(arrays, _finite_in_host_memory, _device_finite, empty=1.0)
    return [flag != 0 for flag in flags]


def square_sums(arrays: Iterable[NDArray]) -> List[float]:
    """Return the sum of squares of each array, with one host read per device; inf or NaN if one is.

    If every element is multiplied by a power of two, each sum is multiplied by exactly its square
    (Law 2 with clipping).

    Squares are summed in float32, which represents the square of any float16. Where squares of
    float32 elements overflow or underflow, they are summed again in float64. On a GPU that is a
    second read, so a sum stays 0 if what underflowed is below 2**-100 of the whole: a gradient that
    is all zero would cost it in each step.
    """
    arrays = list(map(dense_part, arrays))
    sums = _each(arrays, _host_square_sums, sum_squares, empty=0.0)
    whole = sum(sums)

    def exact(array: NDArray, total: float) -> bool:
        if on_cpu(array) or not array.size or _TINY < total < math.inf:
            return True
        # The square of the smallest float16 is 2**-48, and each square that is lost below 2**-149.
        lost = 0.0 if np.dtype(array.dtype) == np.float16 else array.size * 2.0**-149
        return total == 0 and lost <= whole * 2.0**-100

    again = [index for index, total in enumerate(sums) if not exact(arrays[index], total)]
    inexact = [arrays[index] for index in again]
    precise = _each(inexact, _host_square_sums, _device_precise_sums, empty=0.0, dtype="float64")
    for index, total in zip(again, precise):
        sums[index] = total
    return sums


def mean(arrays: Iterable[NDArray]) -> float:
    """Return the mean of all elements of arrays; wait for them."""
    values = [one.asnumpy().ravel().astype(np.float64) for one in arrays]
    return float(np.concatenate(values).mean()) if values else math.nan


def add_scaled(
    arrays: List[NDArray], others: List[NDArray], factor: float, wd: float = 0.0
) -> None:
    """Set dense arrays, in place, to ``(1 + factor * wd) * array + factor * other``.

    The arrays are at least float32 and as wide as the others. On a CPU one operator does it for
    all, in one pass over the memory.
    """
    arrays, others = ([one.as_nd_ndarray() for one in group] for group in (arrays, others))
    if updates.supported([*arrays, *others]):
        pairs, count = list(chain.from_iterable(zip(arrays, others))), len(arrays)
        if pairs:
            updates.sgd_update(pairs, 2, [-factor] * count, [wd] * count, 0.0, 1.0, None)
        return
    with autograd.pause():
        for positions, group in _grouped(arrays):
            wide = [cast(others[k], arrays[k].dtype) for k in positions]
            add_multiples(group, wide, factor, out=group, wd=wd)


def multiply(arrays: Iterable[NDArray], power_of_two: float) -> None:
    """Multiply arrays by a power of two, in place and exactly, apart from underflow.

    Dense arrays take one operator for each device, dtype and 60 arrays.
    """
    dense = []
    for array in arrays:
        if array.stype == "default":
            dense.append(array)
        else:
            array *= power_of_two
    with autograd.pause():
        for _, group in _grouped(dense):
            if on_cpu(group[0]) and np.dtype(group[0].dtype) == np.float16:
                add_up([[array] for array in group], power_of_two)
                continue
            longest = max(array.size for array in group)
            zeros = nd.zeros((longest,), ctx=group[0].context, dtype=group[0].dtype)
            nothing = [zeros[: array.size].reshape(array.shape) for array in group]
            add_multiples(nothing, group, power_of_two, out=group)


def add_up(groups: Sequence[Sequence[NDArray]], factor: float) -> None:
    """Set the float16 arrays of each group, on CPUs, to their sum, rounded as MXNet rounds it.

    Each is multiplied by a power of two before.
    """
    groups = [[one.as_nd_ndarray() for one in group] for group in groups]
    with autograd.pause():
        if updates.supported(chain.from_iterable(groups)):
            if groups:
                updates.add_up(list(chain.from_iterable(groups)), len(groups[0]), factor)
            return
        for group in groups:  # MXNet computes in float32 much faster than in float16
            terms = [cast(one.as_in_context(group[0].context), "float32") for one in group]
            if factor != 1:
                terms = [rounded(one * factor) + 0 for one in terms]  # zeros are without a sign
            total = cast(functools.reduce(lambda a, b: rounded(a + b), terms), "float16")
            for one in group:
                total.copyto(one)


def _grouped(arrays: Iterable[NDArray]) -> Iterable[Group]:
    """Yield positions and non-empty dense arrays of `mx.nd`, by device and dtype."""
    groups: DefaultDict[Any, Group] = defaultdict(lambda: ([], []))
    for position, array in enumerate(map(dense_part, arrays)):
        if array.size:
            positions, group = groups[array.context, np.dtype(array.dtype)]
            positions.append(position)
            group.append(array.as_nd_ndarray())
    return groups.values()


def _each(
    arrays: Iterable[NDArray],
    on_host: Callable[[List[NDArray]], Iterable[float]],
    on_device: Callable[[List[NDArray], NDArray], None],
    empty: float,
    dtype: str = "float32",
) -> List[float]:
    """Return one number for each array, from a group of arrays; `empty` without elements.

    `on_device` writes the numbers to an array of `dtype` on the device, which is read once.
    """
    arrays = list(arrays)
    numbers = [empty] * len(arrays)
    pending: DefaultDict[mx.Context, List[Group]] = defaultdict(list)
    for positions, group in _grouped(arrays):
        if on_cpu(group[0]):
            for position, number in zip(positions, on_host(group)):
                numbers[position] = float(number)
        else:
            pending[group[0].context].append((positions, group))
    results = []
    for context, groups in pending.items():
        places = list(chain.from_iterable(positions for positions, _ in groups))
        out, start = nd.empty((len(places),), ctx=context, dtype=dtype), 0
        for _, group in groups:
            with autograd.pause():
                on_device(group, out[start : start + len(group)])
            start += len(group)
        results.append((places, out))
    for places, out in results:
        for position, number in zip(places, out.asnumpy().astype(np.float64)):
            numbers[position] = float(number)
    return numbers


def _finite_in_host_memory(arrays: List[NDArray]) -> Values:
    """Return for each non-empty array in host memory whether all its elements are finite."""
    if updates.supported(arrays):
        return updates.finite(arrays)
    return np.array([_host_finite(host_view(array)) for array in arrays])


def _host_finite(values: Values) -> bool:
    signed, positive_inf, unsigned, negative_inf = _BITS[values.dtype]
    return all(
        block.view(signed).max() < positive_inf and block.view(unsigned).max() < negative_inf
        for block in chunks(values, BLOCK)
    )


def _device_finite(arrays: List[NDArray], out: NDArray) -> None:
    for number, array in enumerate(arrays):
        nd.multi_all_finite(array, num_arrays=1, out=out[number : number + 1])


# Below this a float32 sum of squares may have lost small terms to underflow.
_TINY = 1e-24


def _host_square_sums(arrays: List[NDArray]) -> Iterator[float]:
    for array in arrays:
        if np.dtype(array.dtype) == np.float16 and updates.supported([array]):
            array = cast(array, "float32")  # several times as fast as numpy
        yield sum(map(_square_sum, chunks(host_view(array), BLOCK)))


def _square_sum(values: Values) -> float:
    block = values.astype(np.float32, copy=False)
    square = float(np.dot(block, block))
    if _TINY < square < math.inf:
        return square
    exact = values.astype(np.float64)
    return float(np.dot(exact, exact))


def _device_precise_sums(arrays: List[NDArray], out: NDArray) -> None:
    for number, array in enumerate(arrays):
        out[number : number + 1] = nd.square(array.astype("float64")).sum()
