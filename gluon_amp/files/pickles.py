"""Pickles that are read without executing anything.

`pickle.load` calls any function that a file names. `Unpickler` is the standard library's, with only
the opcodes of plain data in protocols 2 to 5. Classes and functions are only names, and a subclass
decides what they stand for. Nothing that a file names is imported or called.
"""

import io
import pickle
from dataclasses import dataclass
from typing import Any, BinaryIO, Callable, Dict, List, Tuple, Union

from gluon_amp.files.schema import brief

MAGIC = pickle.PROTO  # the opcode with which pickles of protocol 2 and later begin
# Each opcode takes at most a few hundred bytes of memory, its argument aside. The optimizer's
# states of a thousand parameters on eight devices have about half a million.
MAX_OPCODES = 2**22
KEYS = (int, float, str, bytes, type(None))  # other keys, such as nested tuples, can be deep

# The standard library's own unpickler in Python: that in C has no table of opcodes.
_BASE: Any = pickle._Unpickler  # noqa: SLF001

# Not among them: opcodes that build sets, that look up registered extensions (EXT1, EXT2 and EXT4),
# that read buffers beside the pickle (NEXT_BUFFER), and those of protocols 0 and 1.
_PLAIN = """
    PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT
    SHORT_BINUNICODE BINUNICODE BINUNICODE8 SHORT_BINBYTES BINBYTES BINBYTES8
    EMPTY_DICT EMPTY_LIST EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 TUPLE APPEND APPENDS
    MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET GLOBAL STACK_GLOBAL BINPERSID
""".split()


@dataclass(frozen=True)
class Global:
    """The name of a class or function, which is not imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class _Opcodes:
    """The table of opcodes, with `[]` as a dict has it; it counts them."""

    def __init__(self, steps: Dict[int, Callable[..., None]]) -> None:
        self.steps, self.left = steps, MAX_OPCODES

    def __getitem__(self, code: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise ValueError(f"it has more than {MAX_OPCODES} opcodes")
        if code not in self.steps:
            raise ValueError(f"it uses the opcode {code:#04x}")
        return self.steps[code]


class Unpickler(_BASE):  # type: ignore[misc]  # a private class, without types
    """Reads one pickle after the other with `load`.

    A subclass defines what the names, the calls, the states and the persistent ids of its kind of
    file stand for. Its methods return values, and raise `ValueError` for all that they do not know.
    `load` raises errors of a dozen kinds for forged bytes. A file is read up to the end of each
    pickle.
    """

    def __init__(self, data: Union[bytes, BinaryIO]) -> None:
        super().__init__(io.BytesIO(data) if isinstance(data, bytes) else data)
        self.dispatch = _Opcodes(self.STEPS)

    def find_class(self, module: str, name: str) -> Global:
        """Return the name of a class or function, if files of this kind name it."""
        named = Global(module, name)
        if not self.is_known(named):
            raise ValueError(f"it names {brief(str(named))}")
        return named

    def is_known(self, named: Global) -> bool:
        """Return whether files of this kind name that class or function."""
        raise NotImplementedError

    def call(self, function: Global, arguments: Tuple[Any, ...]) -> Any:
        """Return the value of a call, or a new object of a class."""
        raise NotImplementedError

    def set_state(self, target: Any, state: Any) -> None:
        """Set the state of an object, as `__setstate__` does."""
        raise NotImplementedError

    def load_reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            raise ValueError("it calls an object that is not a function")
        self.append(self.call(function, arguments))

    def load_build(self) -> None:
        state = self.stack.pop()
        self.set_state(self.stack[-1], state)

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set_items([key, value])

    def load_setitems(self) -> None:
        self._set_items(self.pop_mark())

    def _set_items(self, items: List[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise ValueError("it sets items of an object that is not a dict")
        for key, value in zip(items[::2], items[1::2]):
            if not isinstance(key, KEYS) or key in target:
                raise ValueError(f"{brief(key)} is used as a key, or twice as one")
            target[key] = value

    STEPS = {  # noqa: RUF012
        **{getattr(pickle, name)[0]: _BASE.dispatch[getattr(pickle, name)[0]] for name in _PLAIN},
        pickle.BYTEARRAY8[0]: _BASE.dispatch[pickle.BINBYTES8[0]],  # its own allocates any size
        pickle.REDUCE[0]: load_reduce,
        pickle.NEWOBJ[0]: load_reduce,
        pickle.BUILD[0]: load_build,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
    }
