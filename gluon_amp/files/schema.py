"""Schemas for data from files: which values are allowed, checked before they are used.

A schema is plain data:

- a `Leaf`: a single value, with a test, and a description for error messages;
- ``[schema]``: a list or tuple of any length, with items of one schema;
- ``(schema, ...)``: a list or tuple of exactly these items;
- ``{"name": schema, ...}``: a dict of exactly these fields, which may lack an `Optional` one;
- a `Mapping`: a dict of any size, with keys of one schema and values of one schema;
- an `Either`: a value of one of several schemas.
"""

import math
import reprlib
from numbers import Integral, Real
from typing import Any, Callable, NamedTuple, Tuple, Type, Union

import numpy as np

MAX_NAME = 2000  # characters; names are part of error messages


class Leaf(NamedTuple):
    """A single value."""

    words: str
    test: Callable[[Any], bool]


class Mapping(NamedTuple):
    """A dict with keys of one schema and values of one schema."""

    keys: Any
    values: Any


class Optional(NamedTuple):
    """A field of a dict that may be missing."""

    schema: Any


class Either(NamedTuple):
    """A value of one of several schemas."""

    words: str
    schemas: Tuple[Any, ...]

    def test(self, value: Any) -> bool:
        return any(allows(one, value) for one in self.schemas)


def _is_count(value: Any) -> bool:
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    return whole and 0 <= value < 2**63


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and len(value) <= MAX_NAME


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return _is_name(value)
    if isinstance(value, Integral):
        return abs(int(value)) < 2**63
    return value is None or isinstance(value, float)


# Integers beyond 64 bits are not allowed: they overflow in arithmetic with floats.
COUNT = Leaf("a whole number of at least 0", _is_count)
NUMBER = Leaf(
    "a finite number", lambda v: _is_plain(v) and isinstance(v, Real) and math.isfinite(v)
)
NAME = Leaf("a name", _is_name)
PLAIN = Leaf("a number, a name or None", _is_plain)
TEXT = Leaf("text", lambda v: isinstance(v, str))
NONE = Leaf("None", lambda v: v is None)
ARRAY = Leaf(
    "an array of floating point numbers",
    lambda v: isinstance(v, np.ndarray) and v.dtype.kind == "f",
)
ANYTHING = Leaf("anything", lambda v: True)


def check(value: Any, schema: Any, where: str) -> None:
    """Raise `ValueError` unless a schema allows a value; the message calls the value `where`.

    It is about the first wrong part, without a full stop.
    """
    if isinstance(schema, (Leaf, Either)):
        if not schema.test(value):
            raise ValueError(f"{where} is {brief(value)} and not {schema.words}")
    elif isinstance(schema, Mapping):
        _check_type(value, dict, where)
        for key, item in value.items():
            check(key, schema.keys, f"a key of {where}")
            check(item, schema.values, f"{where}[{brief(key)}]")
    elif isinstance(schema, dict):
        _check_type(value, dict, where)
        for name, field in schema.items():
            if name not in value and not isinstance(field, Optional):
                raise ValueError(f"{where} has no {name}")
        for name, item in value.items():
            if name not in schema:
                raise ValueError(f"{where} has the unknown field {brief(name)}")
            field = schema[name]
            one = field.schema if isinstance(field, Optional) else field
            check(item, one, f"{where}[{name!r}]")
    else:
        _check_type(value, (list, tuple), where)
        schemas = schema * len(value) if isinstance(schema, list) else schema
        if len(value) != len(schemas):
            raise ValueError(f"{where} has {len(value)} items and not {len(schemas)}")
        for k, (item, one) in enumerate(zip(value, schemas)):
            check(item, one, f"{where}[{k}]")


def allows(schema: Any, value: Any) -> bool:
    """Return whether a schema allows a value."""
    try:
        check(value, schema, "")
    except ValueError:
        return False
    return True


def brief(value: object) -> str:
    """Return a description of any value in a few words on one line."""
    if isinstance(value, int) and value.bit_length() > 64:
        return "a number beyond 64 bits"
    if value is None or isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return _REPR.repr(value) if value.isprintable() else "unprintable text"
    return f"a {type(value).__name__}"


_REPR = reprlib.Repr()
_REPR.maxstring = 60


def _check_type(value: Any, types: Union[Type[Any], Tuple[Type[Any], ...]], where: str) -> None:
    words = "a dict" if types is dict else "a list"
    check(value, Leaf(words, lambda v: isinstance(v, types)), where)
