"""Float32 masters: where an optimizer's state holds them, and how they follow the weights.

A float16 weight in training is the rounding of a float32 master, and the update works on the
master. Whoever writes the weight meanwhile (`set_data`, `load_parameters`, a broadcast) would be
overruled by the next update. So the weight is the authority: an element that is not the rounding of
its master becomes its master; an element that is keeps the master's extra bits.
"""

from typing import Any, Iterable, Optional, Tuple

import numpy as np

from gluon_amp.host import host_view, on_cpu
from gluon_amp.optimizer.base import MasterOptimizer, sync_master

import mxnet as mx
from mxnet import nd

# MXNet's own optimizers have two layouts for a float16 weight: these put the master second.
_MASTER_SECOND = (mx.optimizer.SGD, mx.optimizer.NAG, mx.optimizer.LARS)


def keeps_master_second(optimizer) -> bool:
    """Return whether an optimizer of MXNet's keeps the master second in its state."""
    kind = getattr(mx.optimizer, type(optimizer).__name__, type(optimizer))
    return issubclass(kind, _MASTER_SECOND)


def split(optimizer, weight, state) -> Tuple[Any, Any]:
    """Take an optimizer's state for a weight apart into (master or None, the rest)."""
    if isinstance(optimizer, MasterOptimizer):
        return state[0], tuple(state[1:])
    if not (optimizer.multi_precision and np.dtype(weight.dtype) == np.float16):
        return None, state
    first, second = state
    return (second, first) if isinstance(optimizer, _MASTER_SECOND) else (first, second)


def join(optimizer, weight, master, rest) -> Any:
    """The state that `split` took apart."""
    if isinstance(optimizer, MasterOptimizer):
        return (master, *rest)
    if not (optimizer.multi_precision and np.dtype(weight.dtype) == np.float16):
        return rest
    return (rest, master) if isinstance(optimizer, _MASTER_SECOND) else (master, rest)


def widen(weight, master) -> None:
    """Give those elements of a float32 weight, in place, the master's bits that round alike."""
    same = nd.cast(master, dtype="float16") == nd.cast(weight, dtype="float16")
    nd.where(same.astype("float32"), master, weight, out=weight)


def master_of(param) -> Optional[nd.NDArray]:
    """Return the float32 master of a Gluon Parameter, up to date, from the first device.

    Parameters
    ----------
    param : Parameter

    Returns
    -------
    NDArray or None
        The array that its Trainer's optimizer holds, of whichever class the Trainer is. None
        without a Trainer, before the first update, and for a parameter that has no master.
    """
    index = _index_of(param)
    for weight, updater in _devices(param):
        master = _master(updater, index, weight)
        if master is not None:
            sync_master(weight.as_in_context(master.context), master)
            return master
    return None


def set_master(param, values: nd.NDArray) -> None:
    """Set the masters of an initialized Gluon Parameter on all devices.

    Before the first update its Trainer's optimizer has no state yet, so it is created. A parameter
    without a Trainer has no master to set.

    Parameters
    ----------
    param : Parameter
    values : NDArray
        Float32, or wider, in the parameter's shape.
    """
    if param.grad_req == "null":
        return
    index = _index_of(param)
    for weight, updater in _devices(param):
        if index not in updater.states and updater.optimizer.multi_precision:
            state = updater.optimizer.create_state_multi_precision(index, weight)
            updater.states[index] = state
            updater.states_synced[index] = True
        master = _master(updater, index, weight)
        if master is not None:
            master[:] = values.as_nd_ndarray().astype("float32")


def _index_of(param) -> Optional[int]:
    """Return the number of a parameter in its Trainer; names may repeat, as in two nets."""
    own = param._trainer._params if param._trainer is not None else ()
    return next((index for index, one in enumerate(own) if one is param), None)


def _devices(param) -> list:
    """Return (weight, updater) for each device on which a Trainer updates this parameter."""
    trainer = param._trainer
    if trainer is None or param._data is None:
        return []
    updaters = trainer._updaters
    if trainer._update_on_kvstore:
        # a kvstore of one process updates once for all devices, others on their servers
        own = getattr(trainer._kvstore, "_updater", None)
        updaters = [own] if own is not None else []
    return list(zip((array.as_nd_ndarray() for array in param._data), updaters))


def _master(updater, index, weight) -> Optional[nd.NDArray]:
    """Return the master in an Updater's state, unless the state is of the weight before a cast."""
    optimizer, state = updater.optimizer, updater.states.get(index)
    if np.dtype(weight.dtype) != np.float16 or not optimizer.multi_precision:
        return None
    # an optimizer's state of float32 weights can look like another's of float16 ones
    like = nd.zeros((1,) * weight.ndim, dtype="float16")
    if _structure(state) != _structure(optimizer.create_state_multi_precision(index, like)):
        return None
    return split(optimizer, weight, state)[0]


def _structure(state) -> Any:
    """Return a state with each array or None replaced by a type."""
    if isinstance(state, (list, tuple)):
        return tuple(_structure(item) for item in state)
    return type(state)


class Watch:
    """Finds weights that somebody wrote since the last update, and lets their masters follow.

    On a CPU rounding a master takes 2.6 ns an element, half as much as the whole update, so the
    weight's bytes are fingerprinted after the update and before the next one: 0.12 ns each. On a
    GPU `sync_master` is cheap and runs unseen, with no wait. Updates that look at the weights
    themselves (`MasterOptimizer.syncs_master`) do not need it.
    """

    def __init__(self):
        self._fingerprints = {}

    def follow_changed(self, entries: Iterable) -> None:
        """Let the masters of changed weights follow; entries are (key, weight, master)."""
        for key, weight, master in entries:
            if not on_cpu(weight) or self._fingerprints.get(key) != fingerprint(weight):
                sync_master(weight, master)

    def remember(self, entries: Iterable) -> None:
        """Take these weights as the roundings of their masters, right after an update."""
        for key, weight, _ in entries:
            if on_cpu(weight):
                self._fingerprints[key] = fingerprint(weight)

    def forget(self) -> None:
        """Look at every master again, after new ones were loaded."""
        self._fingerprints.clear()


# One odd random factor per 64-bit word of a row: no two words of a row can be swapped unseen, and
# rows keep their order. Only this process compares the results, so the seed is free.
_FACTORS = np.random.RandomState(2017).randint(2**63, size=4096, dtype=np.uint64) | np.uint64(1)


def fingerprint(weight) -> bytes:
    """A short code of an array's bytes that a change of any element changes, bar 2**-64."""
    raw = host_view(weight).view(np.uint8)
    words = raw[: raw.size // 8 * 8].view(np.uint64)
    whole = words.size // _FACTORS.size * _FACTORS.size
    rows = words[:whole].reshape(-1, _FACTORS.size) @ _FACTORS
    last_row = words[whole:] @ _FACTORS[: words.size - whole]
    return rows.tobytes() + last_row.tobytes() + raw[words.size * 8 :].tobytes()
