"""Float32 masters: where an optimizer's state holds them, and how they stay in sync with weights.

A master belongs to its parameter, which holds it (`hold`). Trainers of one parameter share it: it
is the master in each of their states.

A float16 weight is the rounding of a float32 master, and the update changes the master. Code that
writes the weight (`set_data`, `load_parameters`, a broadcast) does not know the master, and the
next update would revert the write. So the weight decides: wherever the master does not round to the
weight, `sync_master` sets the master to the weight. Elsewhere the master keeps its extra bits.
"""

import functools
import operator
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np

from gluon_amp.base.array_kinds import of_kind
from gluon_amp.base.writes import version
from gluon_amp.optimizer.base import MasterOptimizer, cast, rounded, sync_master

import mxnet as mx
from mxnet import gluon, nd

# The optimizers here whose namesakes in MXNet put the master second in a state.
_MASTER_SECOND_IN_MXNET = ("SGD", "NAG", "LARS")


HELD = "_amp_masters"  # the attribute of a parameter with the masters that it holds


class _Place(NamedTuple):
    positions: Tuple[int, ...]  # of the master in nested tuples
    of_pair: bool  # whether it is one of a pair


# By optimizer and number of dimensions
_places: "weakref.WeakKeyDictionary[Any, Dict[int, _Place]]" = weakref.WeakKeyDictionary()


def keeps_master_second(optimizer: mx.optimizer.Optimizer, ndim: int) -> bool:
    """Return whether MXNet's optimizer of this name puts the master second in its state."""
    if isinstance(optimizer, MasterOptimizer):
        return type(optimizer).__name__ in _MASTER_SECOND_IN_MXNET
    try:
        return _place(optimizer, ndim) == _Place((1,), of_pair=True)
    except ValueError:  # it has no masters
        return False


def check_optimizer(optimizer: mx.optimizer.Optimizer, dimensions: Iterable[int]) -> None:
    """Raise `ValueError` unless an optimizer keeps a master of float16 weights of these `ndim`."""
    if not isinstance(optimizer, MasterOptimizer):
        for ndim in dimensions:
            _place(optimizer, ndim)


def _place(optimizer: mx.optimizer.Optimizer, ndim: int) -> _Place:
    """Return where an optimizer's state of a float16 weight has the master.

    A weight of distinct values shows it: other arrays of a new state are zero or random. Copies of
    the weight (DCASGD's previous weight) are deeper than the master.
    """
    known = _places.setdefault(optimizer, {})
    if ndim not in known:
        shape = (2,) * max(ndim, 1)
        probe = nd.arange(1, 1 + 2 ** len(shape)).reshape(shape).astype("float16") / 7
        multi_precision, optimizer.multi_precision = optimizer.multi_precision, True
        try:
            state = optimizer.create_state_multi_precision(0, probe)
        finally:
            optimizer.multi_precision = multi_precision
        found = list(_equal_arrays(state, probe))
        shallow = [place for place in found if len(place) == min(map(len, found))]
        if len(shallow) != 1:
            raise ValueError(
                f"{type(optimizer).__name__} keeps {len(shallow) or 'no'} float32 "
                f"{'copies' if shallow else 'copy'} of a float16 weight where one master is "
                "expected: return (master, state) from its create_state_multi_precision."
            )
        known[ndim] = _Place(shallow[0], len(shallow[0]) == 1 and len(state) == 2)
    return known[ndim]


def _equal_arrays(
    state: Any, weight: nd.NDArray, place: Tuple[int, ...] = ()
) -> Iterator[Tuple[int, ...]]:
    """Yield the places of float32 arrays that are equal to a float16 weight."""
    if isinstance(state, (list, tuple)):
        for position, item in enumerate(state):
            yield from _equal_arrays(item, weight, (*place, position))
    elif (
        isinstance(state, nd.NDArray)
        and state.dtype == np.float32
        and np.array_equal(state.asnumpy(), weight.asnumpy())
    ):
        yield place


def split(optimizer: mx.optimizer.Optimizer, weight: nd.NDArray, state: Any) -> Tuple[Any, Any]:
    """Split an optimizer's state of a weight into (master or None, the rest)."""
    if isinstance(optimizer, MasterOptimizer):
        return state[0], tuple(state[1:])
    if not _is_low(optimizer, weight):
        return None, state
    positions, of_pair = _place(optimizer, weight.ndim)
    master = functools.reduce(operator.getitem, positions, state)
    if of_pair:
        return master, state[1 - positions[0]]
    return master, _replaced(state, positions, None)


def join(
    optimizer: mx.optimizer.Optimizer, weight: nd.NDArray, master: Optional[nd.NDArray], rest: Any
) -> Any:
    """Return the state of which `split` returned the two parts."""
    if isinstance(optimizer, MasterOptimizer):
        return (master, *rest)
    if not _is_low(optimizer, weight):
        return rest
    positions, of_pair = _place(optimizer, weight.ndim)
    if of_pair:
        return (master, rest) if positions == (0,) else (rest, master)
    return _replaced(rest, positions, master)


def _is_low(optimizer: mx.optimizer.Optimizer, weight: nd.NDArray) -> bool:
    return bool(optimizer.multi_precision) and np.dtype(weight.dtype) == np.float16


def _replaced(state: Any, positions: Tuple[int, ...], item: Any) -> Any:
    """Return nested tuples and lists with one item replaced."""
    if not positions:
        return item
    items = list(state)
    items[positions[0]] = _replaced(items[positions[0]], positions[1:], item)
    return type(state)(items)


def widen(weight: nd.NDArray, master: nd.NDArray) -> None:
    """Set a float32 weight, in place, to its master wherever both round to the same float16."""
    weight, master = weight.as_nd_ndarray(), master.as_nd_ndarray()
    nd.where(rounded(master) == rounded(weight), master, weight, out=weight)


def master_of(param: gluon.Parameter) -> Optional[nd.NDArray]:
    """Return the float32 master of a Gluon Parameter, in sync with its weight.

    It is the first device's array in the optimizer's state, for a Trainer of any class, or else
    the one that the parameter holds, as the weight's kind of array. The result is None before the
    first update, and for a parameter without a master.
    """
    if param._data is None or np.dtype(param._data[0].dtype) != np.float16:
        return None
    index = _index_of(param)
    in_states = (_master(updater, index, weight) for weight, updater in _devices(param))
    for master in (*in_states, *held_masters(param)):
        if master is not None:
            weight = param._data[0]
            sync_master(weight.as_in_context(master.context), master)
            return of_kind(master, weight)
    return None


def held_masters(param: gluon.Parameter) -> List[nd.NDArray]:
    """Return the list of masters that a parameter holds, one on each device; it can be changed.

    Copies of the parameter have copies. After an update they are in sync with the weights.
    """
    held: List[nd.NDArray] = vars(param).setdefault(HELD, [])
    return held


def release(param: gluon.Parameter) -> None:
    """Forget the masters that a parameter holds, as its values are new."""
    vars(param).pop(HELD, None)


def hold(param: gluon.Parameter, weight: nd.NDArray, master: nd.NDArray) -> nd.NDArray:
    """Return the master that a parameter holds for its weight on one device.

    If there is none, the parameter holds this one from now on, with the bits of another device's.
    """
    held = held_masters(param)
    own = next((one for one in held if one.context == weight.context), None)
    if own is None:
        if held:
            held[0].copyto(master)
        held.append(master)
        own = master
    return own


def adopt(
    param: gluon.Parameter, weight: nd.NDArray, updater: mx.optimizer.Updater, index: int
) -> None:
    """Make the parameter's own master that of an Updater's state, which is created if need be."""
    optimizer, state = updater.optimizer, updater.states.get(index)
    if index not in updater.states:
        # of `mx.nd`, as MXNet's Updater creates it
        state = optimizer.create_state_multi_precision(index, weight.as_nd_ndarray())
        updater.states[index] = state
        updater.states_synced[index] = True
    master, rest = split(optimizer, weight, state)
    own = None if master is None else hold(param, weight, master)
    if own is not master:
        updater.states[index] = join(optimizer, weight, own, rest)


def set_master(param: gluon.Parameter, values: nd.NDArray) -> None:
    """Set the masters of an initialized Gluon Parameter on all devices; values may be float64.

    Before the first update the optimizer has no state, so this function creates it. Without a
    Trainer it sets the masters that the parameter holds.
    """
    index = None if param.grad_req == "null" else _index_of(param)
    if index is not None:
        for weight, updater in _devices(param):
            low = _is_low(updater.optimizer, weight)
            if low and (index not in updater.states or _master(updater, index, weight) is not None):
                adopt(param, weight, updater, index)
    for master in held_masters(param):
        master[:] = cast(values.as_nd_ndarray(), "float32")


def _index_of(param: gluon.Parameter) -> Optional[int]:
    """Return the position of a parameter in its Trainer, by identity: names may repeat."""
    params = param._trainer._params if param._trainer is not None else ()
    return next((index for index, one in enumerate(params) if one is param), None)


def _devices(param: gluon.Parameter) -> List[Tuple[nd.NDArray, mx.optimizer.Updater]]:
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


def _master(
    updater: mx.optimizer.Updater, index: Optional[int], weight: nd.NDArray
) -> Optional[nd.NDArray]:
    """Return the master in an Updater's state; None if the state is from before a cast."""
    optimizer, state = updater.optimizer, updater.states.get(index)
    if not _is_low(optimizer, weight):
        return None
    # The state that one optimizer keeps of a float32 weight can have the layout of another's state
    # of a float16 weight, so the layout is compared with that of a new state.
    small = nd.zeros((1,) * weight.ndim, dtype="float16")
    new = optimizer.create_state_multi_precision(index, small)
    if _structure(state) != _structure(new):
        return None
    return split(optimizer, weight, state)[0]


def _structure(state: Any) -> Any:
    """Return a state with types in the place of its arrays; lists and tuples are alike."""
    return tuple(map(_structure, state)) if isinstance(state, (list, tuple)) else type(state)


# An array and how often it was written; None if that is not known.
_Seen = Tuple[nd.NDArray, Optional[int]]


class WriteDetector:
    """Detects writes to weights between two updates, and syncs the masters of these weights.

    `sync_master` makes five operators for each weight, so it runs only where the engine counts more
    writes than those of the last update (see `gluon_amp.base.writes`). Updates that sync masters
    themselves (`MasterOptimizer.syncs_master`) need no detector.
    """

    def __init__(self) -> None:
        self._expected: Dict[Any, _Seen] = {}

    def sync_written(
        self, entries: Iterable[Tuple[Any, nd.NDArray, nd.NDArray]]
    ) -> Dict[Any, _Seen]:
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
            known = None if before is None or own is None else before + own
            self._expected[key] = weight, known

    def clear(self) -> None:
        """Forget all weights, because other masters were loaded."""
        self._expected.clear()
