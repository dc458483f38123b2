"""Trainer states of stock MXNet, converted to those of gluon_amp.

Stock files hold the states that `gluon.Trainer.save_states` and `Module.save_optimizer_states` have
pickled, for parameters of any dtype.
"""

import numpy as np

from gluon_amp.files.schema import PLAIN, allows
from gluon_amp.optimizer import MasterOptimizer, masters
from gluon_amp.optimizer.base import map_leaves
from gluon_amp.trainer import states, stock_pickle

from mxnet import gluon


def convert(path: str, data: bytes, trainer: gluon.Trainer) -> dict:
    """Convert the bytes of a file to what `states.collect` returns.

    What the file does not hold is the trainer's. Raise `ValueError`, with the path in the message,
    if stock MXNet did not write the file, or if it is damaged or of other parameters.
    """
    if states.FORMAT.encode() in data[:100]:
        raise ValueError(
            f"{path} is of a gluon_amp that pickled its trainer states, which this one does not "
            "read, as a pickle can execute anything: save them with amp.save_checkpoint there."
        )
    try:
        stock = stock_pickle.read(data)
    except ValueError as error:
        raise ValueError(
            f"{path} is a pickle that stock MXNet's save_states did not write or that is damaged "
            f"({error}): load another file."
        ) from None
    saved = states.collect(trainer)
    optimizer = trainer.optimizer
    fields, own_layout, order = {}, False, trainer.stock_order
    if stock.optimizer is None:
        own_layout = _are_own(stock.states, trainer)
        order = trainer.parameters if own_layout else order
    else:
        fields, saved_class = stock.optimizer.fields, str(stock.optimizer.kind)
        if saved_class == states.class_name(optimizer):
            own_layout = isinstance(optimizer, MasterOptimizer)
        elif saved_class != f"mxnet.optimizer.optimizer.{type(optimizer).__name__}":
            saved["optimizer"] = saved_class  # `check_fit` raises on it
        schedule = fields.get("lr_scheduler")
        if isinstance(schedule, stock_pickle.Record):
            fields = {**fields, "lr_scheduler": schedule.kind.name}
            fields.pop("lr", None)  # the schedule sets the rate
            saved["schedule"] = schedule.kind.name, schedule.fields
        saved["counts"] = _by_position(path, fields.get("_index_update_count"), trainer, order)
        saved["progress"] = {name: fields.get(name) for name in states.progress_fields(optimizer)}
    # The states show whether multi_precision was on. For float32 weights it changes no result.
    names = [name for name in saved["settings"] if name in fields and name != "multi_precision"]
    saved["settings"] = {name: fields[name] for name in names if allows(PLAIN, fields[name])}
    saved["states"] = {
        index: _split(state, trainer, index, own_layout)
        for index, state in _by_position(path, stock.states, trainer, order).items()
    }
    return saved


def _by_position(path, values, trainer, order) -> dict:
    """Return values under this trainer's positions; the file has those in `order`, or names."""
    params = trainer.parameters
    position = {id(param): k for k, param in enumerate(params)}
    keys = {param.name: k for k, param in enumerate(params)}
    keys.update((k, position[id(param)]) for k, param in enumerate(order))
    unknown = [key for key in values if key not in keys] if isinstance(values, dict) else [None]
    if unknown:
        raise ValueError(
            f"{path} has states of other parameters than the {len(params)} of this trainer: load "
            "it for the same network."
        )
    return {keys[key]: value for key, value in values.items()}


def _are_own(found, trainer) -> bool:
    """Return whether states that a file holds without their optimizer are of an `amp.Trainer`.

    Sockeye pickles ``updater.get_states(dump_optimizer=False)`` of any trainer.
    """
    if not (isinstance(trainer.optimizer, MasterOptimizer) and isinstance(found, dict)):
        return False
    positions = range(len(trainer.parameters))
    return all(key in positions and _is_own(state, trainer, key) for key, state in found.items())


def _is_own(state, trainer, index) -> bool:
    if not isinstance(state, tuple):
        return False
    master, *rest = state
    if states.layout(tuple(rest)) != states.layout(states.new_state(trainer, index)):
        return False
    if master is None or len(rest) != 1:
        return True
    # It is (master, momentum) here, (momentum, master) in MXNet. The master rounds to the weight.
    weight = trainer.parameters[index].list_data()[0].asnumpy().astype(np.float16)
    return not np.array_equal(rest[0].astype(np.float16), weight)


def _split(state, trainer, index, own_layout: bool) -> tuple:
    """Split a state into (master or None, the rest).

    A stock Trainer can have saved one of gluon_amp's optimizers, in their own layout. In MXNet's, a
    state of a float16 weight has two parts, the master and the rest. The file does not say which
    weights were float16, so a state is compared with a new one.
    """
    if own_layout:
        return (state[0], tuple(state[1:])) if isinstance(state, tuple) and state else (None, state)
    new = states.new_state(trainer, index)
    # MXNet's SGD keeps its momentum without a tuple around it, and None if there is none.
    bare = isinstance(trainer.optimizer, MasterOptimizer) and len(new) < 2
    rest = (new[0] if new else None) if bare else new
    master = np.zeros(trainer.parameters[index].shape, np.float32)
    second = masters.keeps_master_second(trainer.optimizer, master.ndim)
    with_master = (rest, master) if second else (master, rest)
    saved_master = None
    if states.layout(state, dtypes=False) == states.layout(with_master, dtypes=False):
        saved_master, state = reversed(state) if second else state
    elif states.layout(state, dtypes=False) != states.layout(rest, dtypes=False):
        return None, state  # `check_fit` raises on it
    if bare:
        state = () if state is None else (state,)
    return _as_float32(saved_master), map_leaves(_as_float32, state)


def _as_float32(value):
    # Float16 weights without masters had a state in float16.
    low = isinstance(value, np.ndarray) and value.dtype == np.float16
    return value.astype(np.float32) if low else value
