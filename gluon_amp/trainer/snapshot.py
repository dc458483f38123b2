"""Snapshots of running statistics before a pass, so that a skipped step can undo the pass.

BatchNorm's running mean and variance include a batch before its gradients are known to overflow:
MXNet's CPU operators write them in the backward pass, cuDNN in the forward pass. Without a snapshot
a skip would leave them infinite or partly updated, and only validation would show it.

A skip undoes what a pass wrote, even if the statistics belong to another trainer's network. A value
that differs from what the pass wrote was written by the user since, and stays.
"""

import threading
import weakref
from collections import defaultdict
from typing import Iterable, List, NamedTuple, Optional, Tuple

from gluon_amp.casting import statistics
from gluon_amp.casting.statistics import arrays_of

from mxnet import autograd, gluon, nd
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


Pass = Tuple[Snapshot, ...]


def take(arrays: Iterable[NDArray]) -> Pass:
    """Return snapshots as a pass begins, with one operator for each device and dtype.

    A ResNet-50 has 106 statistics. One call from Python for each would cost more time than the rest
    of loss scaling.
    """
    groups = defaultdict(list)
    for array in arrays:
        groups[array.context, array.dtype].append(array)
    return tuple(Snapshot(tuple(group), _joined(group)) for group in groups.values())


def ended(written: Pass) -> Pass:
    """Return snapshots with the current values as those after the pass."""
    return tuple(one._replace(after=_joined(one.arrays)) for one in written)


def followed_by(passes: Tuple[Pass, ...], latest: Pass) -> Tuple[Pass, ...]:
    """Return passes with one more, which is merged with the last one if both wrote the same arrays.

    The micro-batches of a step then need no more memory than one of them.
    """
    if not latest:
        return passes
    if not passes or not _same_arrays(passes[-1], latest):
        return (*passes, latest)
    merged = (new._replace(before=old.without(new.before)) for old, new in zip(passes[-1], latest))
    return (*passes[:-1], tuple(merged))


def undo(passes: Tuple[Pass, ...]) -> None:
    """Undo passes, the last one first."""
    for one in reversed(passes):
        for snapshot in one:
            snapshot.undo()


def _same_arrays(one: Pass, other: Pass) -> bool:
    def identities(snapshots):
        return [[id(array) for array in snapshot.arrays] for snapshot in snapshots]

    return identities(one) == identities(other)


def _joined(arrays: Iterable[NDArray]) -> NDArray:
    with autograd.pause():
        arrays = [array.as_nd_ndarray() for array in arrays]
        flat = [array if array.ndim == 1 else array.reshape(-1) for array in arrays]
        return nd.concat(*flat, dim=0)


# ---------------------------------------------------------------------- pending passes
#
# On a GPU a forward pass writes statistics, so their snapshots are taken before it. On a CPU only
# the backward pass writes them: a forward pass records its parameters, and the snapshots are taken
# when a backward pass begins.


class _Pending(threading.local):
    """The statistics of this thread's pending forward passes, each with its snapshots on GPUs."""

    def __init__(self):
        self.snapshots = weakref.WeakKeyDictionary()


_pending = _Pending()
_scaling_trainers = weakref.WeakSet()


def enable_for(trainer: gluon.Trainer) -> None:
    """Take snapshots of forward passes from now on, for as long as this trainer lives."""
    _scaling_trainers.add(trainer)


def _before_training_pass(parameters: Iterable[gluon.Parameter]) -> None:
    for parameter in parameters if _scaling_trainers else ():
        if parameter not in _pending.snapshots:
            on_gpu = [array for array in arrays_of([parameter]) if not writes_in_backward(array)]
            _pending.snapshots[parameter] = take(on_gpu)


statistics.listeners.append(_before_training_pass)


def begin_backward(own: Iterable[gluon.Parameter]) -> Pass:
    """Return the snapshots that undo the backward pass which begins now.

    They contain the statistics in `own` even if no forward pass of these is pending.
    """
    pending = _pending.snapshots
    parameters = {id(parameter): parameter for parameter in (*own, *pending)}
    before_forward: List[Snapshot] = []
    for parameter, snapshots in list(pending.items()):
        if snapshots:
            before_forward += snapshots
            del pending[parameter]  # so that its next forward pass gets new snapshots
    covered = {id(array) for snapshot in before_forward for array in snapshot.arrays}
    others = [array for array in arrays_of(parameters.values()) if id(array) not in covered]
    return (*take(others), *before_forward)


def end_step(undoes: bool) -> None:
    """Forget the forward passes of a step that is over.

    If its trainer never undoes a step, only snapshots become obsolete: the backward pass of a
    pending forward pass may still follow.
    """
    for parameter, snapshots in list(_pending.snapshots.items()):
        if undoes or snapshots:
            del _pending.snapshots[parameter]


def writes_in_backward(array: NDArray) -> bool:
    """Return whether operators on the array's device write statistics in the backward pass only.

    They do on a CPU (src/operator/nn/batch_norm.cc, mkldnn_batch_norm-inl.h). On a GPU,
    cudnnBatchNormalizationForwardTraining writes them in the forward pass.
    """
    return array.context.device_type.startswith("cpu")
