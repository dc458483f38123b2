"""Optimizer states that stock MXNet has pickled, read without executing anything.

`gluon.Trainer.save_states` and `Module.save_optimizer_states` write pickles, and loading a pickle
runs whatever the file asks for. Here its opcodes are interpreted one by one: numbers, strings and
containers are built, NDArrays are decoded from their bytes, optimizers and learning rate schedulers
become records of their fields. A pickle that asks for anything else is refused, and nothing that it
names is imported or called.
"""

import itertools
import math
import pickletools
import struct
import sys
from dataclasses import dataclass
from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np

from gluon_amp.files.schema import brief

import mxnet as mx

MAGIC = b"\x80"  # the opcode PROTO, with which pickles begin since protocol 2


@dataclass(frozen=True)
class Record:
    """The fields of an object that is not built.

    Attributes
    ----------
    module, name : str
        Of its class.
    fields : dict
    """

    module: str
    name: str
    fields: Dict[Any, Any]

    @property
    def class_name(self) -> str:
        """Module and name of the class."""
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class Global:
    """The name of a class or function, which is not imported."""

    module: str
    name: str


class StockStates(NamedTuple):
    """What a file of stock MXNet holds.

    Attributes
    ----------
    states : dict
        By the parameter's index, or its name if the update was made on a kvstore: numpy arrays,
        None, and tuples and lists of them.
    optimizer : Record or None
        Module's files have none.
    """

    states: Dict[Any, Any]
    optimizer: Optional[Record]


def read(data: bytes) -> StockStates:
    """Read a pickle of states, or of states and optimizer.

    Parameters
    ----------
    data : bytes
        As pickled by Python 3, on a CPU or a GPU.

    Raises
    ------
    ValueError
        One sentence without a full stop, for anything else.
    """
    try:
        content = _Machine().run(data)
        optimizer = None
        if type(content) is tuple and len(content) == 2:
            content, optimizer = content
        # Lists can hold one list many times, and even themselves; MXNet pickles no such thing. So
        # everything takes up a byte at least.
        states = _arrays(content, itertools.count(), len(data))
        if not isinstance(states, dict):
            raise ValueError("it holds no dict of states")
        if not (optimizer is None or _is_kind(optimizer, mx.optimizer.Optimizer)):
            raise ValueError("it holds something else than an optimizer")
    except (ValueError, LookupError, RecursionError, MemoryError, OverflowError) as error:
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
    """Decode the bytes of a dense NDArray; memory is allocated only once they are all present.

    Raises
    ------
    ValueError
        One sentence without a full stop.
    """
    try:
        magic, storage, dimensions = struct.unpack_from("<Iii", data)
        if magic not in (NDARRAY_V2, NDARRAY_V3) or storage != DENSE:
            raise ValueError("an NDArray is sparse or of an unknown version")
        # Of version 2, an array without dimensions is one without a value.
        if not (1 if magic == NDARRAY_V2 else 0) <= dimensions <= MAX_DIMENSIONS:
            raise ValueError(f"an NDArray has {dimensions} dimensions")
        shape = struct.unpack_from(f"<{dimensions}q", data, 12)
        # The device that it was on does not matter here.
        _, _, dtype = struct.unpack_from("<iii", data, 12 + 8 * dimensions)
    except struct.error:
        raise ValueError("an NDArray is truncated") from None
    if dtype not in DTYPES:
        raise ValueError(f"an NDArray has the unknown dtype {dtype}")
    dtype, start = np.dtype(DTYPES[dtype]), 24 + 8 * dimensions
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(data) - start:
        raise ValueError("an NDArray has not the size that it says")
    return np.ndarray(shape, dtype, data, start).copy()


# ----------------------------------------------------------------------------------- the pickle

NDARRAYS = {
    Global("mxnet.ndarray.ndarray", "NDArray"),
    Global("mxnet.numpy.multiarray", "ndarray"),
}
BYTEARRAY = Global("builtins", "bytearray")
NUMPY_DTYPE = Global("numpy", "dtype")
NUMPY_SCALARS = {
    Global("numpy.core.multiarray", "scalar"),
    Global("numpy._core.multiarray", "scalar"),
}
FUNCTIONS = {*NDARRAYS, BYTEARRAY, NUMPY_DTYPE, *NUMPY_SCALARS}
NUMBERS = ("f8", "f4", "f2", "i8", "i4", "b1")  # dtypes of numpy scalars, as pickles write them


class _Machine:
    """The stack machine of pickles, for the opcodes that protocols 2 to 5 use for plain data."""

    def __init__(self):
        self.stack: List[Any] = []
        self.marks: List[List[Any]] = []
        self.memo: Dict[int, Any] = {}

    def run(self, data: bytes):
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                if self.marks or len(self.stack) != 1:
                    raise ValueError("its stack is not empty at the end")
                return self.stack[0]
            step = STEPS.get(opcode.name)
            if step is None:
                raise ValueError(f"it uses the opcode {opcode.name}")
            step(self, argument)
        raise ValueError("it is truncated")

    def push(self, value):
        self.stack.append(value)

    def pop(self):
        if not self.stack:
            raise ValueError("its stack is empty")
        return self.stack.pop()

    def top(self, kind):
        if not self.stack or type(self.stack[-1]) is not kind:
            raise ValueError(f"it adds items to something else than a {kind.__name__}")
        return self.stack[-1]

    def pop_mark(self) -> List[Any]:
        if not self.marks:
            raise ValueError("it has no mark")
        items, self.stack = self.stack, self.marks.pop()
        return items

    def mark(self, _):
        self.marks.append(self.stack)
        self.stack = []

    def tuple_of(self, size):
        items = [self.pop() for _ in range(size)]
        self.push(tuple(reversed(items)))

    def append(self, items):
        self.top(list).extend(items)

    def set_items(self, items):
        target = self.top(dict)
        if len(items) % 2:
            raise ValueError("a key has no value")
        for key, value in zip(items[::2], items[1::2]):
            if not isinstance(key, (int, float, str, bytes, type(None))):
                raise ValueError(f"{brief(key)} is a key")
            if key in target:
                raise ValueError(f"the key {brief(key)} is there twice")
            target[key] = value

    def set_item(self, _):
        value, key = self.pop(), self.pop()
        self.set_items([key, value])

    def memoize(self, position):
        if not self.stack:
            raise ValueError("its stack is empty")
        self.memo[len(self.memo) if position is None else position] = self.stack[-1]

    def recall(self, position):
        if position not in self.memo:
            raise ValueError(f"it recalls what it has not stored ({position})")
        self.push(self.memo[position])

    def stack_global(self, _):
        name, module = self.pop(), self.pop()
        if not (isinstance(name, str) and isinstance(module, str)):
            raise ValueError("the name of a class is no text")
        self.push_global(module, name)

    def push_global(self, module, name):
        found = Global(module, name)
        kinds = (mx.optimizer.Optimizer, mx.lr_scheduler.LRScheduler)
        if found not in FUNCTIONS and not any(_is_kind(found, kind) for kind in kinds):
            raise ValueError(f"it asks for {brief(module + '.' + name)}")
        self.push(found)

    def new_object(self, _):
        arguments, kind = self.pop(), self.pop()
        self.push(_record(kind, arguments))

    def reduce(self, _):
        """Stand in for the calls that pickles of arrays and numbers make."""
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            raise ValueError("it calls something else than a function")
        if function in NDARRAYS and arguments == (None,):
            self.push(_Array())
        elif function == BYTEARRAY and len(arguments) <= 1:
            (data,) = arguments or (b"",)
            if not isinstance(data, bytes):
                raise ValueError("the bytes of an array are something else")
            self.push(data)
        elif function == NUMPY_DTYPE and arguments[:1] and arguments[0] in NUMBERS:
            self.push(_Dtype(arguments[0]))
        elif function in NUMPY_SCALARS and len(arguments) == 2:
            self.push(_number(*arguments))
        else:
            self.push(_record(function, arguments))

    def build(self, _):
        """Stand in for `__setstate__`."""
        state = self.pop()
        target = self.stack[-1] if self.stack else None
        if isinstance(target, _Array) and isinstance(state, dict) and set(state) == {"handle"}:
            target.set(state["handle"])
        elif isinstance(target, Record) and isinstance(state, dict):
            target.fields.update(state)
        elif not (isinstance(target, _Dtype) and isinstance(state, tuple) and "<" in state[1:2]):
            raise ValueError("it gives a state to something that has none")


# What each opcode does, given its argument: see `pickletools`.
STEPS = {
    "PROTO": lambda machine, _: None,
    "FRAME": lambda machine, _: None,
    "MARK": _Machine.mark,
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    **dict.fromkeys(
        (
            *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
            *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
            *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
        ),
        _Machine.push,
    ),
    "BYTEARRAY8": lambda machine, data: machine.push(bytes(data)),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.pop_mark())),
    "APPEND": lambda machine, _: machine.append([machine.pop()]),
    "APPENDS": lambda machine, _: machine.append(machine.pop_mark()),
    "SETITEM": _Machine.set_item,
    "SETITEMS": lambda machine, _: machine.set_items(machine.pop_mark()),
    "MEMOIZE": _Machine.memoize,
    "BINPUT": _Machine.memoize,
    "LONG_BINPUT": _Machine.memoize,
    "BINGET": _Machine.recall,
    "LONG_BINGET": _Machine.recall,
    # pickletools joins the two lines of the opcode with a blank.
    "GLOBAL": lambda machine, names: machine.push_global(*names.split(" ", 1)),
    "STACK_GLOBAL": _Machine.stack_global,
    "NEWOBJ": _Machine.new_object,
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
}


class _Array:
    """An NDArray whose state has not been read yet."""

    value: Optional[np.ndarray] = None

    def set(self, handle):
        if not isinstance(handle, (bytes, type(None))):
            raise ValueError("the bytes of an NDArray are something else")
        self.value = None if handle is None else ndarray(handle)


class _Dtype(str):
    """A numpy dtype, by its name."""


def _number(dtype, data):
    """Return the Python number of a numpy scalar, such as a learning rate."""
    if not isinstance(dtype, _Dtype) or not isinstance(data, bytes):
        raise ValueError("a numpy scalar has no dtype")
    dtype = np.dtype(f"<{dtype}")
    if len(data) != dtype.itemsize:
        raise ValueError("a numpy scalar has not the size of its dtype")
    return np.frombuffer(data, dtype)[0].item()


def _record(kind, arguments) -> Record:
    if not isinstance(kind, Global) or arguments != ():
        raise ValueError("it makes an object from something else than a class")
    if kind in FUNCTIONS:
        raise ValueError(f"it calls {kind.module}.{kind.name} in an unknown way")
    return Record(kind.module, kind.name, {})


def _is_kind(named, base) -> bool:
    """Whether a class of this name is imported already, and is a subclass."""
    if not isinstance(named, (Global, Record)) or "." in named.name:
        return False
    found = vars(sys.modules.get(named.module, object)).get(named.name)
    return isinstance(found, type) and issubclass(found, base)


def _arrays(state, counter, most: int) -> Any:
    """Replace NDArrays by numpy arrays, in at most `most` values."""
    if next(counter) > most:
        raise ValueError("it holds more than its size allows")
    if isinstance(state, _Array):
        return state.value
    if isinstance(state, dict):
        return {key: _arrays(value, counter, most) for key, value in state.items()}
    if type(state) in (tuple, list):
        return type(state)(_arrays(value, counter, most) for value in state)
    if state is None or isinstance(state, (bool, int, float)):
        return state
    raise ValueError(f"a state is {brief(state)}")
