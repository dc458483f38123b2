"""Snapshots of running statistics before a pass, so that a skipped step can undo the pass.

BatchNorm's running mean and variance include a batch before its gradients are known to overflow:
MXNet's CPU operators write them in the backward pass, cuDNN in the forward pass. Without a snapshot
a skip would leave them infinite or partly updated, and only validation would show it.

A skip undoes what a pass wrote, even if the statistics belong to another trainer's network. A value
that differs from what the pass wrote was written by the user since, and stays.
"""

from collections import defaultdict
from typing import Iterable, NamedTuple, Optional, Tuple

from gluon_amp.graph.tape import memory_of

from mxnet import autograd, nd
from mxnet.ndarray import NDArray


class Snapshot(NamedTuple):
    """Arrays of one device and dtype, with vectors of all their values before and after a pass.

    If the end of the pass is not known, `after` is None, and all later writes count as the pass's
    own.
    """

    arrays: Tuple[NDArray, ...]
    before: NDArray
    after: Optional[NDArray] = None

    def without(self, current: NDArray) -> NDArray:
        """Return these current values, with those that the pass wrote replaced."""
        if self.after is None:
            return self.before
        # NaN is not equal to itself. Only a pass writes it, so it counts as the pass's.
        written_since = (current != self.after) * (current == current)
        return nd.where(written_since, current, self.before)

    def undo(self) -> None:
        """Restore the values before the pass, in place."""
        values, start = self.without(_joined(self.arrays)), 0
        for array in self.arrays:
            own = values[start : start + array.size].reshape(array.shape)
            own.copyto(array.as_nd_ndarray())
            start += array.size


Snapshots = Tuple[Snapshot, ...]  # those of one pass


def take(arrays: Iterable[NDArray]) -> Snapshots:
    """Return snapshots as a pass begins, with one operator for each device and dtype.

    A ResNet-50 has 106 statistics. One call from Python for each would cost more time than the rest
    of loss scaling.
    """
    groups = defaultdict(list)
    for array in arrays:
        groups[array.context, array.dtype].append(array)
    return tuple(Snapshot(tuple(group), _joined(group)) for group in groups.values())


def ended(written: Snapshots) -> Snapshots:
    """Return snapshots with the current values as those after the pass."""
    return tuple(one._replace(after=_joined(one.arrays)) for one in written)


def followed_by(passes: Tuple[Snapshots, ...], latest: Snapshots) -> Tuple[Snapshots, ...]:
    """Return passes with one more, which is merged with the last one if both wrote the same arrays.

    The micro-batches of a step then need no more memory than one of them.
    """
    if not latest:
        return passes
    if not passes or not _same_arrays(passes[-1], latest):
        return (*passes, latest)
    merged = (new._replace(before=old.without(new.before)) for old, new in zip(passes[-1], latest))
    return (*passes[:-1], tuple(merged))


def undo(passes: Tuple[Snapshots, ...]) -> None:
    """Undo passes, the last one first."""
    for one in reversed(passes):
        for snapshot in one:
            snapshot.undo()


def _same_arrays(one: Snapshots, other: Snapshots) -> bool:
    first, second = ([list(map(memory_of, s.arrays)) for s in passed] for passed in (one, other))
    return first == second


def _joined(arrays: Iterable[NDArray]) -> NDArray:
    with autograd.pause():
        arrays = [array.as_nd_ndarray() for array in arrays]
        flat = [array if array.ndim == 1 else array.reshape(-1) for array in arrays]
        return nd.concat(*flat, dim=0)
