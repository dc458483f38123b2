"""BatchNorm's running statistics: which parameters they are, and what undoes the passes over them.

Each forward pass, cast or not, hybridized or not, calls `Parameter.data`. The class `Statistic`
keeps there what a trainer needs to undo the pass. On a GPU the forward pass writes statistics, so
their snapshots are taken before it. On a CPU only the backward pass writes them, so a forward pass
keeps its parameters, and the snapshots are taken when a backward pass begins.
"""

import threading
import weakref
from typing import Iterable, List, Optional

from gluon_amp.casting.snapshots import Snapshot, Snapshots, take

from mxnet import Context, autograd, gluon
from mxnet.ndarray import NDArray


class _Kept(threading.local):
    """The statistics of this thread's pending forward passes, each with its snapshots on GPUs.

    They are kept by thread, as MXNet records forward passes.
    """

    def __init__(self):
        self.snapshots = weakref.WeakKeyDictionary()


_kept = _Kept()
_keeping = False  # until there is a trainer that can skip a step


def is_statistic(parameter: gluon.Parameter) -> bool:
    """Return whether operators, and not the optimizer, write this parameter."""
    return parameter.grad_req == "null" and not parameter._differentiable


class Statistic(gluon.Parameter):
    """A running statistic; a training pass that uses it is kept, so that it can be undone."""

    def data(self, ctx: Optional[Context] = None) -> NDArray:
        """As `gluon.Parameter.data`."""
        data = super().data(ctx)
        if autograd.is_recording() and autograd.is_training():
            keep([self])
        return data


def watch(parameters: Iterable[gluon.Parameter]) -> None:
    """Change the class of the statistics among these parameters to `Statistic`."""
    for parameter in parameters:
        if is_statistic(parameter) and type(parameter) is gluon.Parameter:
            parameter.__class__ = Statistic


def unwatch(parameters: Iterable[gluon.Parameter]) -> None:
    """Undo `watch`."""
    for parameter in parameters:
        if type(parameter) is Statistic:
            parameter.__class__ = gluon.Parameter


def arrays_of(parameters: Iterable[gluon.Parameter]) -> List[NDArray]:
    """Return the arrays of the initialized ones of these parameters, on all devices."""
    return [array for p in parameters if p._data is not None for array in p.list_data()]


# ---------------------------------------------------------------------- forward passes


def start_keeping() -> None:
    """Keep forward passes from now on: there is a trainer that can skip a step."""
    global _keeping
    _keeping = True


def keep(parameters: Iterable[gluon.Parameter]) -> None:
    """Keep what undoes a training pass that is about to use these statistics."""
    for parameter in parameters if _keeping else ():
        if parameter not in _kept.snapshots:
            on_gpu = [array for array in arrays_of([parameter]) if not writes_in_backward(array)]
            _kept.snapshots[parameter] = take(on_gpu)


def begin_backward(own: Iterable[gluon.Parameter]) -> Snapshots:
    """Return the snapshots that undo the backward pass which begins now, with its forward passes.

    They contain the statistics in `own` even if no forward pass of these is pending.
    """
    pending = _kept.snapshots
    parameters = {id(parameter): parameter for parameter in (*own, *pending)}
    before_forward: List[Snapshot] = []
    for parameter, snapshots in list(pending.items()):
        if snapshots:
            before_forward += snapshots
            del pending[parameter]  # so that its next forward pass gets new snapshots
    covered = {id(array) for snapshot in before_forward for array in snapshot.arrays}
    others = [array for array in arrays_of(parameters.values()) if id(array) not in covered]
    return (*take(others), *before_forward)


def forget(undone: bool) -> None:
    """Forget the forward passes of a step that is over.

    If its trainer never undoes a step, only snapshots become obsolete: the backward pass of a
    pending forward pass may still follow.
    """
    for parameter, snapshots in list(_kept.snapshots.items()):
        if undone or snapshots:
            del _kept.snapshots[parameter]


def writes_in_backward(array: NDArray) -> bool:
    """Return whether operators on the array's device write statistics in the backward pass only.

    They do on a CPU (src/operator/nn/batch_norm.cc, mkldnn_batch_norm-inl.h). On a GPU,
    cudnnBatchNormalizationForwardTraining writes them in the forward pass.
    """
    return array.context.device_type.startswith("cpu")
