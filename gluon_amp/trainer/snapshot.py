"""Running statistics as they were before a pass, so that a skipped step can undo it.

BatchNorm's running mean and variance include a batch before anyone can know that its gradients
overflow: MXNet's CPU operators write them in the backward pass, cuDNN in the forward pass. A skip
would leave them infinite or half moved, and only validation would show it.

A pass is undone, whoever owns the parameters, and nothing else: a value that differs from what the
pass left was written by the user since then, and stays.
"""

import threading
import weakref
from collections import defaultdict
from typing import Iterable, List, NamedTuple, Optional, Tuple

from gluon_amp.casting import statistics
from gluon_amp.casting.statistics import arrays_of

from mxnet import autograd, gluon, nd
from mxnet.ndarray import NDArray


class Copy(NamedTuple):
    """Arrays of one device and dtype, with their values before and after a pass.

    Attributes
    ----------
    arrays : tuple of NDArray
    before, after : NDArray
        The values of all of them in one vector; `after` is None where the end of the pass is not
        known; everything written since `before` is then attributed to the pass.
    """

    arrays: Tuple[NDArray, ...]
    before: NDArray
    after: Optional[NDArray] = None

    def ended(self) -> "Copy":
        """Return the copy with the current values as those after the pass."""
        return self._replace(after=_joined(self.arrays))

    def without(self, current: NDArray) -> NDArray:
        """Return what these current values would be without the pass."""
        if self.after is None:
            return self.before
        # NaN equals nothing, itself included, and only a pass writes it.
        written_since = (current != self.after) * (current == current)
        return nd.where(written_since, current, self.before)

    def undo(self) -> None:
        """Put the values before the pass back in place."""
        values, start = self.without(_joined(self.arrays)), 0
        for array in self.arrays:
            own = values[start : start + array.size].reshape(array.shape)
            own.copyto(array.as_nd_ndarray())
            start += array.size


Pass = Tuple[Copy, ...]


def copies(arrays: Iterable[NDArray]) -> Pass:
    """Copy arrays as a pass begins, with one operator for each device and dtype.

    A ResNet-50 has 106 statistics, and a call from Python for each would cost more time than the
    rest of loss scaling.
    """
    groups = defaultdict(list)
    for array in arrays:
        groups[array.context, array.dtype].append(array)
    return tuple(Copy(tuple(group), _joined(group)) for group in groups.values())


def followed_by(passes: Tuple[Pass, ...], latest: Pass) -> Tuple[Pass, ...]:
    """Return passes with one more, which replaces the last one if both wrote the same arrays.

    So the micro-batches of a step need no more memory than one of them.
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
        for copy in one:
            copy.undo()


def _same_arrays(one: Pass, other: Pass) -> bool:
    def identities(copies):
        return [[id(array) for array in copy.arrays] for copy in copies]

    return identities(one) == identities(other)


def _joined(arrays: Iterable[NDArray]) -> NDArray:
    with autograd.pause():
        arrays = [array.as_nd_ndarray() for array in arrays]
        flat = [array if array.ndim == 1 else array.reshape(-1) for array in arrays]
        return nd.concat(*flat, dim=0)


# ---------------------------------------------------------------------- pending passes


class _Pending(threading.local):
    """Statistics of this thread's forward passes, each with its copies from GPUs."""

    def __init__(self):
        self.copies = weakref.WeakKeyDictionary()


_pending = _Pending()
_scaling_trainers = weakref.WeakSet()  # without one, nothing is ever undone


def undo_skips_of(trainer: gluon.Trainer) -> None:
    """Copy statistics from now on, as long as this trainer, which undoes skipped steps, lives."""
    _scaling_trainers.add(trainer)


def _before_training_pass(parameters: Iterable[gluon.Parameter]) -> None:
    for parameter in parameters if _scaling_trainers else ():
        if parameter not in _pending.copies:
            on_gpu = [array for array in arrays_of([parameter]) if not writes_in_backward(array)]
            _pending.copies[parameter] = copies(on_gpu)


statistics.listeners.append(_before_training_pass)


def begin_backward(own: Iterable[gluon.Parameter]) -> Pass:
    """Return the copies that undo the backward pass which is about to begin.

    Parameters
    ----------
    own : iterable of Parameter
        Statistics to copy in any case, whether a forward pass of theirs is pending or not.
    """
    pending = _pending.copies
    parameters = {id(parameter): parameter for parameter in (*own, *pending)}
    taken: List[Copy] = []
    for parameter, held in list(pending.items()):
        if held:
            taken += held
            del pending[parameter]  # its next forward pass is to be copied again
    held = {id(array) for copy in taken for array in copy.arrays}
    rest = [array for array in arrays_of(parameters.values()) if id(array) not in held]
    return (*copies(rest), *taken)


def end_step(undoes: bool) -> None:
    """Forget the forward passes of a step that is over.

    Parameters
    ----------
    undoes : bool
        Whether the step's trainer undoes skipped steps. The step of another trainer only makes
        copies obsolete: the backward pass of a pending forward pass may still follow.
    """
    for parameter, held in list(_pending.copies.items()):
        if undoes or held:
            del _pending.copies[parameter]


def writes_in_backward(array: NDArray) -> bool:
    """Return whether operators on the array's device write statistics in the backward pass only.

    On a CPU they do (src/operator/nn/batch_norm.cc, mkldnn_batch_norm-inl.h);
    cudnnBatchNormalizationForwardTraining writes them in the forward pass.
    """
    return array.context.device_type.startswith("cpu")
