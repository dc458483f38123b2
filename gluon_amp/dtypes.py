"""The three floating-point formats side by side, and the bits of a number in one of them.

The widths of exponent and significand are those of IEEE 754-2019 (binary16, binary32) and of
bfloat16, a float32 without its last 16 bits. All other figures follow from them.
"""

import math
import numbers
from fractions import Fraction
from typing import List, NamedTuple, Union

import numpy as np

import mxnet as mx


def dtype_name(dtype: object) -> str:
    """Return the name of a dtype, such as `'float16'` or `'int32'`.

    Parameters
    ----------
    dtype : dtype, type or str
        All that numpy accepts, and MXNet's structured dtype for bfloat16.
    """
    dtype = np.dtype(dtype)
    return "bfloat16" if dtype.names == ("bfloat16",) else dtype.name


class FloatFormat(NamedTuple):
    """A binary floating-point format.

    Attributes
    ----------
    name : str
    exponent_bits, significand_bits : int
        Bits that are stored; the leading 1 of a normal number's significand is not.
    """

    name: str
    exponent_bits: int
    significand_bits: int

    @property
    def bits(self) -> int:
        """Bits of a number, including its sign."""
        return 1 + self.exponent_bits + self.significand_bits

    @property
    def bias(self) -> int:
        """The number that is added to a stored exponent; it is also the largest exponent."""
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next larger number."""
        return 2.0**-self.significand_bits

    @property
    def largest(self) -> float:
        """Largest finite number."""
        return (2.0 - self.epsilon) * 2.0**self.bias

    @property
    def smallest_normal(self) -> float:
        """Smallest positive number with full precision."""
        return 2.0 ** (1 - self.bias)

    @property
    def smallest_subnormal(self) -> float:
        """Smallest positive number; half of it rounds to zero."""
        return self.smallest_normal * self.epsilon

    @property
    def digits(self) -> int:
        """Decimal digits that survive conversion to the format and back (C's FLT_DIG)."""
        return math.floor(self.significand_bits * math.log10(2))


FORMATS = {
    "float16": FloatFormat("float16", 5, 10),
    "bfloat16": FloatFormat("bfloat16", 8, 7),
    "float32": FloatFormat("float32", 8, 23),
}

# heading, attribute of FloatFormat, width and number format of each column
COLUMNS = (
    ("format", "name", 8, "<8"),
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
        lines = [f"{COLUMNS[0][0]:<8}{head[8:]}"]
        for row in self.rows:
            lines.append(" ".join(format(getattr(row, name), spec) for _, name, _, spec in COLUMNS))
        return "\n".join(lines)

    __repr__ = __str__  # what a notebook shows


def float_table() -> FloatTable:
    """Return range, precision and limits of float16, bfloat16 and float32.

    Returns
    -------
    FloatTable
        `rows` has a `FloatFormat` for each format. `str()` is a table with the bits of exponent and
        significand, the largest number, the smallest normal and subnormal numbers, the distance
        from 1 to the next number, and the decimal digits that are preserved.

    Examples
    --------
    >>> import gluon_amp as amp
    >>> amp.float_table().rows[0].largest
    65504.0
    """
    return FloatTable(list(FORMATS.values()))


class Bits(NamedTuple):
    """A number as a format stores it, the result of `bits`.

    Attributes
    ----------
    dtype : str
    sign, exponent, significand : str
        The stored bits, as '0' and '1'.
    value : float
        The number that they represent.
    meaning : str
        The value as a product, as in '+1.5 × 2^-1', or '+zero', '+infinity', 'not a number'.
    """

    dtype: str
    sign: str
    exponent: str
    significand: str
    value: float
    meaning: str

    def __str__(self) -> str:
        return f"{self.sign} {self.exponent} {self.significand} = {self.meaning} = {self.value!r}"

    __repr__ = __str__


def bits(x: Union[int, float, Fraction], dtype: str = "float16") -> Bits:
    """Round a number to a format once, to nearest even, and return the bits that are stored.

    Parameters
    ----------
    x : number
        An int, float or Fraction, a numpy scalar, or an array of one element.
    dtype : {'float16', 'bfloat16', 'float32'}

    Raises
    ------
    ValueError
        `dtype` is not one of these.
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
    name = _name(dtype)
    format_ = FORMATS[name]
    negative, magnitude = _number(x)
    sign, plus = ("1", "-") if negative else ("0", "+")
    if magnitude is None:
        quiet = "1" + "0" * (format_.significand_bits - 1)
        return Bits(name, sign, "1" * format_.exponent_bits, quiet, math.nan, "not a number")
    stored, significand = _round(magnitude, format_)
    fields = (
        format(stored, f"0{format_.exponent_bits}b"),
        format(significand, f"0{format_.significand_bits}b"),
    )
    if stored == 2**format_.exponent_bits - 1:
        return Bits(name, sign, *fields, float(f"{plus}inf"), f"{plus}infinity")
    # A stored exponent of 0, for zero and subnormals, means 1 without the leading 1.
    power = max(stored, 1) - format_.bias
    mantissa = (stored > 0) + significand * format_.epsilon
    value = float(f"{plus}1") * mantissa * 2.0**power
    meaning = f"{plus}{mantissa!r} × 2^{power}" if mantissa else f"{plus}zero"
    return Bits(name, sign, *fields, value, meaning)


def _name(dtype) -> str:
    try:
        name = dtype_name(dtype)
    except TypeError:
        name = str(dtype)
    if name not in FORMATS:
        raise ValueError(f"bits() got the dtype {name!r}, expected one of {', '.join(FORMATS)}.")
    return name


def _number(x) -> tuple:
    """Return whether `x` is negative, and its exact magnitude (None for NaN)."""
    if isinstance(x, numbers.Integral):
        x = Fraction(int(x))
    if isinstance(x, Fraction):
        return x < 0, abs(x)
    x = _float(x)
    magnitude = Fraction(abs(x)) if math.isfinite(x) else abs(x)
    return math.copysign(1, x) < 0, None if math.isnan(x) else magnitude


def _float(x) -> float:
    try:
        if not isinstance(x, str):
            return float(x.asnumpy().item() if isinstance(x, mx.nd.NDArray) else x)
    except (TypeError, ValueError):
        pass
    raise TypeError(f"bits() got a {type(x).__name__}, expected one number.")


def _round(magnitude, format_: FloatFormat) -> tuple:
    """Return stored exponent and significand of a non-negative number."""
    overflow = (2**format_.exponent_bits - 1, 0)
    if magnitude == math.inf:
        return overflow
    exponent = 1 - format_.bias
    if magnitude:
        exponent = max(exponent, _floor_log2(magnitude))
    unit = Fraction(2) ** (exponent - format_.significand_bits)
    units = round(magnitude / unit)  # of Fractions: exact, ties to even
    # Exponent and significand as one integer, so that a carry of the rounding reaches the exponent
    stored = (exponent + format_.bias - 1) * 2**format_.significand_bits + units
    result = divmod(stored, 2**format_.significand_bits)
    return min(result, overflow)


def _floor_log2(exact: Fraction) -> int:
    guess = exact.numerator.bit_length() - exact.denominator.bit_length()
    return guess if exact >= Fraction(2) ** guess else guess - 1
