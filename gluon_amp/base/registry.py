"""MXNet's registry of operators: their names, and which names belong to one operator."""

import ctypes
import functools
from typing import List, Optional

from gluon_amp.base.mxnet_internals import LIB, check_call

from mxnet.base import OpHandle, c_str, py_str


def handle(name: str) -> Optional[OpHandle]:
    """Return MXNet's handle of an operator, None if this build of MXNet does not have it."""
    result = OpHandle()
    return None if LIB.NNGetOpHandle(c_str(name), ctypes.byref(result)) else result


@functools.lru_cache(maxsize=None)
def canonical(name: str) -> str:
    """Return the name that a symbol's JSON has for an operator: `'Concat'` for `'concat'`.

    A name that this build of MXNet does not have is returned unchanged.
    """
    operator = handle(name)
    if operator is None:
        return name
    result = ctypes.c_char_p()
    check_call(LIB.MXSymbolGetAtomicSymbolName(operator, ctypes.byref(result)))
    found: str = py_str(result.value)
    return found


def names() -> List[str]:
    """Return the names of all registered operators, aliases included."""
    size, array = ctypes.c_uint(), ctypes.POINTER(ctypes.c_char_p)()
    check_call(LIB.MXListAllOpNames(ctypes.byref(size), ctypes.byref(array)))
    return [py_str(array[i]) for i in range(size.value)]
