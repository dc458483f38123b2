"""Trainer states of stock MXNet: read without executing anything, and converted to ours.

`gluon.Trainer.save_states` and `Module.save_optimizer_states` write pickles, for parameters of any
dtype. In their values, NDArrays are decoded from their bytes, and optimizers and learning rate
schedulers become records of their fields. Anything else is an error: see `gluon_amp.files.pickles`.
"""

import itertools
import math
import struct
import sys
from dataclasses import dataclass, field
from typing import Any, Dict, NamedTuple, Optional

import numpy as np

from gluon_amp.files.pickles import Global, Unpickler
from gluon_amp.files.schema import PLAIN, allows, brief
from gluon_amp.optimizer import MasterOptimizer, masters
from gluon_amp.optimizer.base import map_leaves
from gluon_amp.trainer import states

import mxnet as mx
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
        stock = read_pickle(data)
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
        if isinstance(schedule, Record):
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


# -------------------------------------------------------------------------------------- pickles


@dataclass(frozen=True)
class Record:
    """The class and the fields of an object, which is not built."""

    kind: Global
    fields: Dict[Any, Any] = field(default_factory=dict)


class StockStates(NamedTuple):
    """The contents of a file of stock MXNet."""

    # Numpy arrays, None, and tuples and lists of them. The keys are the parameters' positions, or
    # their names if a kvstore made the update.
    states: Dict[Any, Any]
    optimizer: Optional[Record]  # None in a Module's file


def read_pickle(data: bytes) -> StockStates:
    """Read a pickle of states, or of states and optimizer, that Python 3 wrote.

    Raise `ValueError` for anything else, with a message without a full stop.
    """
    try:
        content = _Unpickler(data).load()
        optimizer = None
        if type(content) is tuple and len(content) == 2:
            content, optimizer = content
        # A forged list can hold another list many times, or itself. MXNet writes no such list, so
        # each value takes at least one byte of the file.
        states = _arrays(content, itertools.count(), len(data))
        if not isinstance(states, dict):
            raise ValueError("it holds no dict of states")
        if optimizer is not None and not (
            isinstance(optimizer, Record) and _is_kind(optimizer.kind, mx.optimizer.Optimizer)
        ):
            raise ValueError("the second part is not an optimizer")
    except Exception as error:
        # Unpicklers, struct and codecs raise a dozen kinds of errors for forged bytes.
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(reason) from None
    return StockStates(states, optimizer)


# -------------------------------------------------------------------------------------- NDArrays

# MXNet's src/ndarray/ndarray.cc: NDArray::Save. Version 3 is written under `npx.set_np()`.
NDARRAY_V2, NDARRAY_V3 = 0xF993FAC9, 0xF993FACA
DENSE = 0
# 3rdparty/mshadow/mshadow/base.h, TypeFlag
DTYPES = {0: "<f4", 1: "<f8", 2: "<f2", 3: "u1", 4: "<i4", 5: "i1", 6: "<i8"}
MAX_DIMENSIONS = 32


def ndarray(data: bytes) -> np.ndarray:
    """Decode the bytes of a dense NDArray; memory is allocated only if all bytes are present.

    Raise `ValueError` for other bytes, with a message without a full stop.
    """
    try:
        magic, storage, dimensions = struct.unpack_from("<Iii", data)
        if magic not in (NDARRAY_V2, NDARRAY_V3) or storage != DENSE:
            raise ValueError("an NDArray is sparse or of an unknown version")
        # In version 2, an array without dimensions has no value.
        if not (1 if magic == NDARRAY_V2 else 0) <= dimensions <= MAX_DIMENSIONS:
            raise ValueError(f"an NDArray has {dimensions} dimensions")
        shape = struct.unpack_from(f"<{dimensions}q", data, 12)
        # The two numbers before the dtype are the device.
        _, _, dtype = struct.unpack_from("<iii", data, 12 + 8 * dimensions)
    except struct.error:
        raise ValueError("an NDArray is truncated") from None
    if dtype not in DTYPES:
        raise ValueError(f"an NDArray has the unknown dtype {dtype}")
    dtype, start = np.dtype(DTYPES[dtype]), 24 + 8 * dimensions
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(data) - start:
        raise ValueError("the size of an NDArray is not that of its shape")
    return np.ndarray(shape, dtype, data, start).copy()


# ----------------------------------------------------------------------------------- the pickle

NDARRAYS = {Global("mxnet.ndarray.ndarray", "NDArray"), Global("mxnet.numpy.multiarray", "ndarray")}
BYTEARRAY = Global("builtins", "bytearray")
NUMPY_DTYPE = Global("numpy", "dtype")
NUMPY_SCALARS = {Global(f"numpy.{core}.multiarray", "scalar") for core in ("core", "_core")}
FUNCTIONS = {*NDARRAYS, BYTEARRAY, NUMPY_DTYPE, *NUMPY_SCALARS}
NUMBERS = ("f8", "f4", "f2", "i8", "i4", "b1")  # dtypes of numpy scalars, as pickles write them


class _Unpickler(Unpickler):
    """Builds the objects in pickles of states."""

    def __init__(self, data):
        super().__init__(data)
        self.left = len(data)  # bytes that arrays may take: each is in the file once

    def is_known(self, named):
        kinds = (mx.optimizer.Optimizer, mx.lr_scheduler.LRScheduler)
        return named in FUNCTIONS or any(_is_kind(named, kind) for kind in kinds)

    def call(self, function, arguments):
        """Return the value of a call in pickles of arrays and numbers, or a record."""
        if function in NDARRAYS and arguments == (None,):
            return _Array()
        if function == BYTEARRAY and len(arguments) == 1 and isinstance(arguments[0], bytes):
            return arguments[0]
        if function == NUMPY_DTYPE and arguments[:1] and arguments[0] in NUMBERS:
            return _Dtype(arguments[0])
        if function in NUMPY_SCALARS and len(arguments) == 2:
            return _number(*arguments)
        if function in FUNCTIONS or arguments:
            raise ValueError(f"it calls {function} in an unknown way")
        return Record(function)

    def set_state(self, target, state):
        if isinstance(target, _Array) and isinstance(state, dict) and set(state) == {"handle"}:
            target.value = self.array(state["handle"])
        elif isinstance(target, Record) and isinstance(state, dict):
            target.fields.update(state)
        elif not (isinstance(target, _Dtype) and isinstance(state, tuple) and "<" in state[1:2]):
            raise ValueError("it sets the state of an object that has none")

    def array(self, handle):
        """Return the array of an NDArray's bytes."""
        if handle is None:
            return None
        if not isinstance(handle, bytes):
            raise ValueError("the bytes of an NDArray have another type")
        self.left -= len(handle)
        if self.left < 0:
            raise ValueError("it holds the same bytes in several arrays")
        return ndarray(handle)


class _Array:
    """An NDArray whose state has not been read yet."""

    value: Optional[np.ndarray] = None


class _Dtype(str):
    """A numpy dtype, by its name."""


def _number(dtype, data):
    """Return the Python number of a numpy scalar, such as a learning rate."""
    if not isinstance(dtype, _Dtype) or not isinstance(data, bytes):
        raise ValueError("a numpy scalar has no dtype")
    dtype = np.dtype(f"<{dtype}")
    if len(data) != dtype.itemsize:
        raise ValueError("the size of a numpy scalar is not that of its dtype")
    return np.frombuffer(data, dtype)[0].item()


def _is_kind(named: Global, base: type) -> bool:
    """Return whether a class of this name is imported already, and is a subclass."""
    value = vars(sys.modules.get(named.module, object)).get(named.name)
    return isinstance(value, type) and issubclass(value, base)


def _arrays(state, counter, most: int) -> Any:
    """Return a state with numpy arrays in place of NDArrays; raise above `most` values."""
    if next(counter) > most:
        raise ValueError("it holds more values than bytes")
    if isinstance(state, _Array):
        return state.value
    if isinstance(state, dict):
        return {key: _arrays(value, counter, most) for key, value in state.items()}
    if type(state) in (tuple, list):
        return type(state)(_arrays(value, counter, most) for value in state)
    if state is None or isinstance(state, (bool, int, float)):
        return state
    raise ValueError(f"a state is {brief(state)}")
