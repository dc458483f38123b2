"""Pickles that are read without executing anything.

`pickle.load` calls any function that a file names. Here the opcodes are interpreted one by one, and
numbers, strings and containers are built. Classes and functions are only names, and a subclass of
`Machine` decides what they stand for. Nothing that a file names is imported or called.
"""

import pickletools
from dataclasses import dataclass
from typing import Any, BinaryIO, Dict, List, Union

from gluon_amp.files.schema import brief

MAGIC = b"\x80"  # the opcode PROTO: pickles of protocol 2 and later begin with it


@dataclass(frozen=True)
class Global:
    """The name of a class or function, which is not imported."""

    module: str
    name: str


class Machine:
    """The stack machine of pickles, with the opcodes of plain data in protocols 2 to 5.

    A subclass defines what the names, the calls, the states and the persistent ids of its kind of
    file stand for. Its methods return values, and raise `ValueError` for all that they do not know.
    """

    def __init__(self):
        self.stack: List[Any] = []
        self.marks: List[List[Any]] = []
        self.memo: Dict[int, Any] = {}

    def check_name(self, named: Global) -> None:
        """Raise `ValueError` unless files of this kind name that class or function."""
        raise NotImplementedError

    def call(self, function: Global, arguments: tuple) -> Any:
        """Return the value of a call."""
        raise NotImplementedError

    def build_object(self, kind: Any, arguments: Any) -> Any:
        """Return a new object of a class."""
        raise ValueError("it uses the opcode NEWOBJ")

    def set_state(self, target: Any, state: Any) -> None:
        """Set the state of an object, as `__setstate__` does."""
        raise NotImplementedError

    def persistent(self, identifier: Any) -> Any:
        """Return the object of a persistent id, which is stored outside the pickle."""
        raise ValueError("it uses the opcode BINPERSID")

    def run(self, data: Union[bytes, BinaryIO]) -> Any:
        """Return the value of a pickle; a stream is read up to the end of the pickle."""
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
            raise ValueError(f"it adds items to an object that is not a {kind.__name__}")
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
                raise ValueError(f"{brief(key)} is used as a key")
            if key in target:
                raise ValueError(f"the key {brief(key)} occurs twice")
            target[key] = value

    def set_item(self, _):
        value, key = self.pop(), self.pop()
        self.set_items([key, value])

    def memoize(self, position):
        value = self.pop()
        self.push(value)
        self.memo[len(self.memo) if position is None else position] = value

    def recall(self, position):
        if position not in self.memo:
            raise ValueError(f"it recalls the value {position}, which it has not stored")
        self.push(self.memo[position])

    def stack_global(self, _):
        name, module = self.pop(), self.pop()
        if not (isinstance(name, str) and isinstance(module, str)):
            raise ValueError("the name of a class is not text")
        self.push_global(module, name)

    def push_global(self, module, name):
        named = Global(module, name)
        self.check_name(named)
        self.push(named)

    def new_object(self, _):
        arguments, kind = self.pop(), self.pop()
        self.push(self.build_object(kind, arguments))

    def reduce(self, _):
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            raise ValueError("it calls an object that is not a function")
        self.push(self.call(function, arguments))

    def build(self, _):
        state = self.pop()
        self.set_state(self.stack[-1] if self.stack else None, state)


# The opcodes' functions, called with the machine and the opcode's argument: see `pickletools`.
STEPS = {
    "PROTO": lambda machine, _: None,
    "FRAME": lambda machine, _: None,
    "MARK": Machine.mark,
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    **dict.fromkeys(
        (
            *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
            *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
            *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
        ),
        Machine.push,
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
    "SETITEM": Machine.set_item,
    "SETITEMS": lambda machine, _: machine.set_items(machine.pop_mark()),
    "MEMOIZE": Machine.memoize,
    "BINPUT": Machine.memoize,
    "LONG_BINPUT": Machine.memoize,
    "BINGET": Machine.recall,
    "LONG_BINGET": Machine.recall,
    # pickletools joins the two lines of the opcode with a blank.
    "GLOBAL": lambda machine, names: machine.push_global(*names.split(" ", 1)),
    "STACK_GLOBAL": Machine.stack_global,
    "NEWOBJ": Machine.new_object,
    "REDUCE": Machine.reduce,
    "BUILD": Machine.build,
    "BINPERSID": lambda machine, _: machine.push(machine.persistent(machine.pop())),
}
