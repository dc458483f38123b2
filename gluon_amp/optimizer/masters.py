"""Float32 masters: where an optimizer's state holds them, and how they stay in sync with weights.

A float16 weight is the rounding of a float32 master, and the update changes the master. Code that
writes the weight (`set_data`, `load_parameters`, a broadcast) does not know the master, and the
next update would revert the write. So the weight decides: wherever the master does not round to the
weight, `sync_master` sets the master to the weight. Elsewhere the master keeps its extra bits.
"""

from typing import Any, Callable, Dict, Iterable, Optional, Tuple

import numpy as np

from gluon_amp.array_kinds import of_kind
from gluon_amp.optimizer.base import MasterOptimizer, sync_master
from gluon_amp.writes import version

import mxnet as mx
from mxnet import nd

# MXNet's optimizers have two layouts of a float16 weight's state. These put the master second.
_MASTER_SECOND = (mx.optimizer.SGD, mx.optimizer.NAG, mx.optimizer.LARS)


def keeps_master_second(optimizer) -> bool:
    """Return whether MXNet's optimizer of this name puts the master second in its state."""
    kind = getattr(mx.optimizer, type(optimizer).__name__, type(optimizer))
    return issubclass(kind, _MASTER_SECOND)


def split(optimizer, weight, state) -> Tuple[Any, Any]:
    """Split an optimizer's state of a weight into (master or None, the rest)."""
    if isinstance(optimizer, MasterOptimizer):
        return state[0], tuple(state[1:])
    if not (optimizer.multi_precision and np.dtype(weight.dtype) == np.float16):
        return None, state
    first, second = state
    return (second, first) if isinstance(optimizer, _MASTER_SECOND) else (first, second)


def join(optimizer, weight, master, rest) -> Any:
    """Return the state of which `split` returned the two parts."""
    if isinstance(optimizer, MasterOptimizer):
        return (master, *rest)
    if not (optimizer.multi_precision and np.dtype(weight.dtype) == np.float16):
        return rest
    return (rest, master) if isinstance(optimizer, _MASTER_SECOND) else (master, rest)


def widen(weight, master) -> None:
    """Set a float32 weight, in place, to its master wherever both round to the same float16."""
    weight, master = weight.as_nd_ndarray(), master.as_nd_ndarray()
    same = nd.cast(master, dtype="float16") == nd.cast(weight, dtype="float16")
    nd.where(same.astype("float32"), master, weight, out=weight)


def master_of(param) -> Optional[nd.NDArray]:
    """Return the float32 master of a Gluon Parameter, in sync with its weight.

    It is the first device's array in the optimizer's state, as the weight's kind of array, for a
    Trainer of any class. The result is None without a Trainer, before the first update, and for a
    parameter without a master.
    """
    index = _index_of(param)
    for weight, updater in _devices(param):
        master = _master(updater, index, weight)
        if master is not None:
            sync_master(weight.as_in_context(master.context), master)
            return of_kind(master, weight)
    return None


def set_master(param, values: nd.NDArray) -> None:
    """Set the masters of an initialized Gluon Parameter on all devices.

    The values are float32 or float64, in the parameter's shape. Before the first update the
    optimizer has no state, so this function creates it. Without a Trainer it does nothing.
    """
    if param.grad_req == "null":
        return
    index = _index_of(param)
    for weight, updater in _devices(param):
        if index not in updater.states and updater.optimizer.multi_precision:
            # of `mx.nd`, as MXNet's Updater creates it
            state = updater.optimizer.create_state_multi_precision(index, weight.as_nd_ndarray())
            updater.states[index] = state
            updater.states_synced[index] = True
        master = _master(updater, index, weight)
        if master is not None:
            master[:] = values.as_nd_ndarray().astype("float32")


def _index_of(param) -> Optional[int]:
    """Return the position of a parameter in its Trainer, by identity: names may repeat."""
    params = param._trainer._params if param._trainer is not None else ()
    return next((index for index, one in enumerate(params) if one is param), None)


def _devices(param) -> list:
    """Return (weight, updater) for each device on which the Trainer updates a parameter."""
    trainer = param._trainer
    if trainer is None or param._data is None:
        return []
    updaters = trainer._updaters
    if trainer._update_on_kvstore:
        # A local kvstore updates once for all devices. A distributed one updates on its servers.
        updater = getattr(trainer._kvstore, "_updater", None)
        updaters = [updater] if updater is not None else []
    return list(zip(param.list_data(), updaters))


def _master(updater, index, weight) -> Optional[nd.NDArray]:
    """Return the master in an Updater's state; None if the state is from before a cast."""
    optimizer, state = updater.optimizer, updater.states.get(index)
    if np.dtype(weight.dtype) != np.float16 or not optimizer.multi_precision:
        return None
    # The state that one optimizer keeps of a float32 weight can have the layout of another's state
    # of a float16 weight, so the layout is compared with that of a new state.
    small = nd.zeros((1,) * weight.ndim, dtype="float16")
    if _structure(state) != _structure(optimizer.create_state_multi_precision(index, small)):
        return None
    return split(optimizer, weight, state)[0]


def _structure(state) -> Any:
    """Return a state with each array or None replaced by a type."""
    if isinstance(state, (list, tuple)):
        return tuple(_structure(item) for item in state)
    return type(state)


# An array and how often it was written; None if that is not known.
_Seen = Tuple[nd.NDArray, Optional[int]]


class WriteDetector:
    """Detects writes to weights between two updates, and syncs the masters of these weights.

    `sync_master` makes five operators for each weight, so it runs only where the engine counts more
    writes than those of the last update (see `gluon_amp.writes`). Updates that sync masters
    themselves (`MasterOptimizer.syncs_master`) need no detector.
    """

    def __init__(self):
        self._expected: Dict[Any, _Seen] = {}

    def sync_written(self, entries: Iterable) -> Dict[Any, _Seen]:
        """Sync the masters of written weights; entries are (key, weight, master).

        Return what `record` needs, right after an update.
        """
        seen = {}
        for key, weight, master in entries:
            array, expected = self._expected.get(key, (None, None))
            now = version(weight)
            if now is None or now != expected or weight is not array:
                sync_master(weight, master)
            seen[key] = weight, now
        return seen

    def record(self, seen: Dict[Any, _Seen], writes: Callable[[nd.NDArray], Optional[int]]) -> None:
        """Record that an update has written each weight as often as `writes` returns for it.

        The update may still run: its writes are not counted yet. None stands for an unknown number.
        """
        for key, (weight, before) in seen.items():
            own = writes(weight)
            known = before is not None and own is not None
            self._expected[key] = weight, before + own if known else None

    def clear(self) -> None:
        """Forget all weights, because other masters were loaded."""
        self._expected.clear()
