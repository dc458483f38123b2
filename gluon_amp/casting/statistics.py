"""Running statistics: which arrays operators write, and what undoes the passes that write them.

The graph that autograd has recorded says which arrays a pass writes (`graph/tape.py`), whatever
block, parameter or trainer they belong to. On a CPU operators write them in the backward pass, and
their snapshots are taken when that begins. A GPU, and the operator `Custom`, write them in the
forward pass too, of which nothing is recorded before it runs. Each forward pass calls
`Parameter.data`, so the class `Watched` takes these snapshots there. It is that of the parameters
of a cast net, and of those of a trainer, whose net need not be cast.
"""

import threading
import weakref
from typing import Iterable, List, Optional, Union

from gluon_amp.casting.classes import Mixin, change_class
from gluon_amp.casting.snapshots import Snapshot, Snapshots, take
from gluon_amp.graph.tape import Tape, memory_of

import mxnet as mx
from mxnet import Context, autograd, gluon
from mxnet.ndarray import NDArray


class _Pending(threading.local):
    """Snapshots from before the pending forward passes of this thread, by parameter.

    They are kept by thread, as MXNet records forward passes. Those of parameters that are kept
    together are held by the first of them.
    """

    def __init__(self):
        self.snapshots = weakref.WeakKeyDictionary()


_pending = _Pending()
_keeping = False  # until there is a trainer that can skip a step

# Parameters that an operator was seen to write, and those that no forward pass writes
_written: "weakref.WeakSet[gluon.Parameter]" = weakref.WeakSet()
_spared: "weakref.WeakSet[gluon.Parameter]" = weakref.WeakSet()


def is_statistic(parameter: gluon.Parameter) -> bool:
    """Return whether operators, and not the optimizer, write this parameter.

    Gluon's layers declare it. Parameters of imported nets and of a user's own blocks do not, and
    are known after the first trace or backward pass.
    """
    frozen = parameter.grad_req == "null"
    return frozen and (not parameter._differentiable or parameter in _written)


def look(parameters: Iterable[gluon.Parameter], symbol: mx.sym.Symbol) -> None:
    """Record which of the parameters of a graph its operators write."""
    states = set(symbol.list_auxiliary_states())
    for parameter in parameters:
        (_written if parameter.name in states else _spared).add(parameter)


class Watched(Mixin):
    """Mixed into the class of a parameter, which operators may write if it has no gradient."""

    def data(self, ctx: Optional[Context] = None) -> NDArray:
        """As `gluon.Parameter.data`."""
        data = super().data(ctx)
        if self._grad is None and autograd.is_recording() and autograd.is_training():
            keep([self])
        return data

    def reset_ctx(self, ctx: Union[Context, List[Context]]) -> None:
        """As `gluon.Parameter.reset_ctx`; on another device, forward passes may write it."""
        _spared.discard(self)
        super().reset_ctx(ctx)


def watch(parameters: Iterable[gluon.Parameter]) -> None:
    """Watch the parameters without a gradient among these; those of a cast net are watched."""
    for parameter in parameters:
        if parameter.grad_req == "null" and type(parameter) is gluon.Parameter:
            change_class(parameter, Watched)


def arrays_of(parameters: Iterable[gluon.Parameter]) -> List[NDArray]:
    """Return the arrays of the initialized ones of these parameters, on all devices."""
    return [array for p in parameters if p._data is not None for array in p.list_data()]


# ---------------------------------------------------------------------- passes


def start_keeping() -> None:
    """Keep forward passes from now on: there is a trainer that can skip a step."""
    global _keeping
    _keeping = True


def keep(parameters: Iterable[gluon.Parameter]) -> None:
    """Keep what undoes a forward pass that is about to use these parameters."""
    if not _keeping:
        return
    new = [p for p in parameters if p not in _spared and p not in _pending.snapshots]
    for place, parameter in enumerate(new):
        _pending.snapshots[parameter] = () if place else take(arrays_of(new))


def begin_backward(tape: Optional[Tape], own: Iterable[gluon.Parameter]) -> Snapshots:
    """Return the snapshots that undo the backward pass which begins now, with its forward passes.

    They contain all that the pass writes, as far as `tape` shows, and the statistics in `own`.
    """
    before: List[Snapshot] = []
    for parameter, snapshots in list(_pending.snapshots.items()):
        arrays = arrays_of([parameter])
        if tape and not any(map(tape.reads, arrays)):
            continue  # of another pass
        del _pending.snapshots[parameter]  # so that its next forward pass gets new snapshots
        if tape and any(map(tape.writes, arrays)):
            _written.add(parameter)
        if tape and not any(map(tape.writes_early, arrays)):
            _spared.add(parameter)
        else:
            before += snapshots
    covered = {memory_of(array) for snapshot in before for array in snapshot.arrays}
    written = [*arrays_of(own), *(tape.written if tape else ())]
    others = {memory_of(array): array for array in written}
    return (*take(array for at, array in others.items() if at not in covered), *before)


def forget() -> None:
    """Forget the forward passes of a step that is over."""
    _pending.snapshots.clear()
