"""The arguments of a call: nested lists and dicts of arrays and of constants, such as flags.

Gluon traces nested lists of arrays and None. In a cast net, other arguments are constants of the
trace, and each combination of them has a trace of its own.
"""

import enum
from typing import Any, Callable, Iterator, Optional, Tuple

import numpy as np

import mxnet as mx

# Arguments of these classes are constants: equal text means equal effect.
CONSTANTS: Tuple[type, ...] = (bool, bytes, enum.Enum, float, int, slice, str, type, type(None))
CONSTANTS += (mx.Context, np.dtype, np.generic)


def is_array(x: Any) -> bool:
    """Return whether an argument is an NDArray or a Symbol."""
    return isinstance(x, (mx.nd.NDArray, mx.sym.Symbol))


def is_sparse(array: mx.nd.NDArray) -> bool:
    """Return whether an array is stored as csr or row_sparse."""
    return isinstance(array, mx.nd.sparse.BaseSparseNDArray)


def arrays_in(x: Any) -> Iterator[Any]:
    """Yield the arrays or symbols in nested lists and dicts."""
    if isinstance(x, (list, tuple, dict)):
        for item in _items(x):
            yield from arrays_in(item)
    elif is_array(x):
        yield x


def map_arrays(x: Any, change: Callable) -> Any:
    """Return nested lists and dicts with a function applied to each array or symbol."""
    if isinstance(x, dict):
        return {key: map_arrays(item, change) for key, item in x.items()}
    if isinstance(x, (list, tuple)):
        items = [map_arrays(item, change) for item in x]
        return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
    return change(x) if is_array(x) else x


def for_gluon(x: Any) -> Any:
    """Return arguments as Gluon flattens them: nested lists of arrays and, for constants, None."""
    if isinstance(x, (list, tuple, dict)):
        return [for_gluon(item) for item in _items(x)]
    return x if is_array(x) else None


def constants_of(x: Any) -> Optional[tuple]:
    """Return all of the arguments but the arrays' values, to compare with other calls'.

    It is None if an argument is neither an array nor a constant, as a NumPy array or an object.
    """
    if is_array(x):
        return ("array",)
    if isinstance(x, (list, tuple, dict)):
        items = tuple(constants_of(item) for item in _items(x))
        keys = repr(list(x)) if isinstance(x, dict) else ""
        return None if None in items else (type(x), keys, items)
    return (type(x), repr(x)) if isinstance(x, CONSTANTS) else None


def value_of(x: Any) -> Any:
    """Return what two attributes have in common only if they have the same effect on a trace.

    For arrays and for objects that are not constants it is new each time, as these may change.
    """
    constants = constants_of(x)
    return object() if constants is None or any(True for _ in arrays_in(x)) else constants


def _items(x: Any) -> list:
    return list(x.values()) if isinstance(x, dict) else list(x)
