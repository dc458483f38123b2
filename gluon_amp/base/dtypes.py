"""Names of dtypes, the table of the floating-point formats, and the bits of a number."""

import functools
import math
import numbers
from fractions import Fraction
from typing import Any, List, NamedTuple, Union

import numpy as np

from gluon_amp.base.formats import FORMATS, FloatFormat, magnitude_of

import mxnet as mx


@functools.lru_cache(maxsize=None)  # a step asks for the dtypes of all parameters
def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype of numpy, or of MXNet's structured dtype for bfloat16."""
    dtype = np.dtype(dtype)
    return "bfloat16" if dtype.names == ("bfloat16",) else dtype.name


# heading, attribute of FloatFormat, width and number format of each column
COLUMNS = (
    ("format", "name", 11, "<11"),
    ("exponent", "exponent_bits", 8, "8d"),
    ("significand", "significand_bits", 11, "11d"),
    ("largest", "largest", 10, "10.5g"),
    ("normal", "smallest_normal", 9, "9.2e"),
    ("subnormal", "smallest_subnormal", 9, "9.2e"),
    ("epsilon", "epsilon", 8, "8.2e"),
    ("digits", "digits", 6, "6d"),
)


class FloatTable:
    """The result of `float_table`: `rows` is a list of `FloatFormat`, `str()` is a table."""

    def __init__(self, rows: List[FloatFormat]) -> None:
        self.rows = rows

    def __str__(self) -> str:
        head = " ".join(f"{title:>{width}}" for title, _, width, _ in COLUMNS)
        lines = [f"{COLUMNS[0][0]:<11}{head[11:]}"]
        for row in self.rows:
            lines.append(" ".join(format(getattr(row, name), spec) for _, name, _, spec in COLUMNS))
        return "\n".join(lines)

    __repr__ = __str__  # what a notebook shows


def float_table() -> FloatTable:
    """Return range, precision and limits of all formats of `gluon_amp.base.formats`.

    Returns
    -------
    FloatTable
        `rows` has a `FloatFormat` for each format. `str()` is a table with the bits of exponent and
        significand, the largest number, the smallest normal and subnormal numbers, the distance
        from 1 to the next number, and the decimal digits that are preserved.

    Examples
    --------
    >>> import gluon_amp as amp
    >>> [row.largest for row in amp.float_table().rows if row.name == 'float16']
    [65504.0]
    """
    return FloatTable(list(FORMATS.values()))


class Bits(NamedTuple):
    """A number as a format stores it, the result of `bits`."""

    dtype: str
    # The stored bits, as '0' and '1'
    sign: str
    exponent: str
    significand: str
    value: float  # the number that they represent
    meaning: str  # as in '+1.5 × 2^-1', or '+zero', '+infinity', 'not a number'

    def __str__(self) -> str:
        return f"{self.sign} {self.exponent} {self.significand} = {self.meaning} = {self.value!r}"

    def __repr__(self) -> str:
        return str(self)


def bits(x: Union[int, float, Fraction], dtype: str = "float16") -> Bits:
    """Round a number to a format once, to nearest even, and return the bits that are stored.

    Parameters
    ----------
    x : number
        An int, float or Fraction, a numpy scalar, or an array of one element.
    dtype : str or dtype
        A format of `float_table`, such as 'float16' or 'float8_e4m3'.

    Raises
    ------
    ValueError
        `dtype` is not one of the formats.
    TypeError
        `x` is not one number.

    Examples
    --------
    >>> import gluon_amp as amp
    >>> amp.bits(0.1, 'float16')
    0 01011 1001100110 = +1.599609375 × 2^-4 = 0.0999755859375
    >>> amp.bits(70000, 'float16')
    0 11111 0000000000 = +infinity = inf
    """
    format_ = _format(dtype)
    negative, magnitude = magnitude_of(_number(x))
    code = format_.encode(magnitude)
    sign, plus = ("1", "-") if negative else ("0", "+")
    stored = format(code, f"0{format_.bits - 1}b")
    fields = sign, stored[: format_.exponent_bits], stored[format_.exponent_bits :]
    value = format_.value(code)
    if math.isnan(value):
        return Bits(format_.name, *fields, value, "not a number")
    if math.isinf(value) or not value:
        meaning = f"{plus}infinity" if value else f"{plus}zero"
        return Bits(format_.name, *fields, float(f"{plus}{value}"), meaning)
    power = max(int(fields[1], 2), 1) - format_.bias
    meaning = f"{plus}{value / 2.0**power!r} × 2^{power}"
    return Bits(format_.name, *fields, float(f"{plus}{value}"), meaning)


def _format(dtype: Any) -> FloatFormat:
    try:
        name = dtype_name(dtype)
    except TypeError:
        name = str(dtype)
    if name not in FORMATS:
        raise ValueError(f"bits() got the dtype {name!r}, expected one of {', '.join(FORMATS)}.")
    return FORMATS[name]


def _number(x: Any) -> Union[int, float, Fraction]:
    if isinstance(x, numbers.Integral):
        return int(x)
    if isinstance(x, Fraction):
        return x
    try:
        if not isinstance(x, str):
            return float(x.asnumpy().item() if isinstance(x, mx.nd.NDArray) else x)
    except (TypeError, ValueError):
        pass
    raise TypeError(f"bits() got a {type(x).__name__}, expected one number.")
