"""Binary floating-point formats as data, and the reference that rounds a number to one of them.

This is the one place that names formats: the emulation, the policies and the reports read it.

=================  ==================================================================
format             specification
=================  ==================================================================
float16, float32   IEEE 754-2019, binary16 and binary32
bfloat16           a float32 without its last 16 bits (Intel 338302, "BFLOAT16 -
                   Hardware Numerics Definition")
tfloat32           NVIDIA's TF32: the exponent of float32, the significand of float16
                   (NVIDIA A100 Tensor Core GPU Architecture). It is stored as float32.
float8_e4m3,       OCP 8-bit Floating Point Specification (OFP8), revision 1.0: E4M3,
float8_e5m2        elsewhere called E4M3FN, and E5M2
=================  ==================================================================
"""

import math
from fractions import Fraction
from typing import Any, Dict, NamedTuple, Tuple, Union

import numpy as np


class FloatFormat(NamedTuple):
    """A binary floating-point format.

    A number's sign bit is followed by its magnitude: exponent and significand, read as one integer,
    its *code*. Codes are in the order of the magnitudes: zero, the finite numbers, infinity if
    there is one, and those that are not numbers.
    """

    name: str
    # Stored bits; the leading 1 of a normal number's significand is not stored.
    exponent_bits: int
    significand_bits: int
    bias: int  # what is added to an exponent when it is stored
    infinities: bool  # whether the code after the largest finite number is infinity
    nans: int  # how many codes, the last ones, are not numbers: at least 1
    # Whether a stored exponent of 0 stands for numbers without the leading 1. Without them, what is
    # rounded to less than the smallest normal number is zero.
    subnormals: bool = True

    @property
    def bits(self) -> int:
        """Bits of a number, including its sign."""
        return 1 + self.exponent_bits + self.significand_bits

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next larger number."""
        return 2.0**-self.significand_bits

    @property
    def largest_code(self) -> int:
        """Code of the largest finite number."""
        return (1 << (self.bits - 1)) - 1 - self.nans - self.infinities

    @property
    def largest(self) -> float:
        """Largest finite number."""
        return self.value(self.largest_code)

    @property
    def smallest_exponent(self) -> int:
        """Exponent of the smallest normal number, and of the subnormal ones."""
        return 1 - self.bias

    @property
    def smallest_normal(self) -> float:
        """Smallest positive number with full precision."""
        return 2.0**self.smallest_exponent

    @property
    def smallest_subnormal(self) -> float:
        """Smallest positive number; with subnormals, half of it rounds to zero."""
        return self.smallest_normal * (self.epsilon if self.subnormals else 1)

    @property
    def digits(self) -> int:
        """Decimal digits that survive conversion to the format and back (C's FLT_DIG)."""
        return math.floor(self.significand_bits * math.log10(2))

    @property
    def nan_code(self) -> int:
        """Code of the quiet NaN without a payload."""
        quiet = 1 << (self.significand_bits - 1)
        return self.largest_code + 1 + quiet if self.infinities else (1 << (self.bits - 1)) - 1

    def value(self, code: int) -> float:
        """Return the magnitude that a code stands for; infinity and NaN are among them."""
        if code > self.largest_code:
            is_infinite = self.infinities and code == self.largest_code + 1
            return math.inf if is_infinite else math.nan
        exponent, significand = divmod(code, 1 << self.significand_bits)
        # A stored exponent of 0 means that of the smallest normal number, without the leading 1.
        mantissa = (exponent > 0) + significand * self.epsilon
        return mantissa * 2.0 ** (max(exponent, 1) - self.bias)

    def encode(self, magnitude: Union[Fraction, float, None], saturates: bool = False) -> int:
        """Return the code that a magnitude is rounded to: to nearest, ties to even.

        The magnitude is at least 0; None is not a number. What is too large, infinity included,
        becomes infinity, or NaN in a format without infinity. If it `saturates`, it becomes the
        largest finite number (OFP8's saturating mode).
        """
        if magnitude is None:
            return self.nan_code
        code = self.largest_code + 1
        if magnitude != math.inf:
            exact, exponent = Fraction(magnitude), self.smallest_exponent
            if exact:
                exponent = max(exponent, _floor_log2(exact))
            unit = Fraction(2) ** (exponent - self.significand_bits)
            units = round(exact / unit)  # of Fractions: exact, ties to even
            # One integer, so that a carry of the rounding reaches the exponent
            code = (exponent - self.smallest_exponent) * 2**self.significand_bits + units
        if code > self.largest_code:
            if saturates:
                return self.largest_code
            return self.largest_code + 1 if self.infinities else self.nan_code
        if not self.subnormals and code < 2**self.significand_bits:
            return 0
        return code


def _ieee(name: str, exponent_bits: int, significand_bits: int) -> FloatFormat:
    """Return a format as IEEE 754 has it: the last exponent is for infinity and NaNs."""
    bias = 2 ** (exponent_bits - 1) - 1
    return FloatFormat(name, exponent_bits, significand_bits, bias, True, 2**significand_bits - 1)


FORMATS: Dict[str, FloatFormat] = {
    format_.name: format_
    for format_ in (
        _ieee("float16", 5, 10),
        _ieee("bfloat16", 8, 7),
        _ieee("float32", 8, 23),
        _ieee("tfloat32", 8, 10),
        FloatFormat("float8_e4m3", 4, 3, 7, infinities=False, nans=1),
        _ieee("float8_e5m2", 5, 2),
    )
}


def rounded(x: Union[int, float, Fraction], format_: FloatFormat, saturates: bool = False) -> float:
    """Return a number rounded once to a format: the reference of all other roundings.

    >>> [rounded(x, FORMATS["float8_e4m3"]) for x in (0.3, 464, 465)]
    [0.3125, 448.0, nan]
    """
    negative, magnitude = magnitude_of(x)
    value = format_.value(format_.encode(magnitude, saturates))
    return -value if negative else value


def rounded_array(
    values: "np.ndarray[Any, Any]", format_: FloatFormat, saturates: bool = False
) -> "np.ndarray[Any, Any]":
    """Return float32 values rounded to a format: the same as `rounded` returns for each."""
    wide = values.astype(np.float64)  # exact here, whatever the exponent is
    exponent = np.maximum(np.frexp(wide)[1] - 1, format_.smallest_exponent)
    unit = exponent - format_.significand_bits
    result = np.ldexp(np.rint(np.ldexp(wide, -unit)), unit)
    beyond = math.inf if format_.infinities else math.nan
    overflow = np.copysign(format_.largest if saturates else beyond, wide)
    result = np.where(np.abs(result) > format_.largest, overflow, result)
    if not format_.subnormals:
        result = np.where(np.abs(result) < format_.smallest_normal, np.copysign(0, wide), result)
    return result.astype(values.dtype)


def exponent_for(format_: FloatFormat, largest: float) -> int:
    """Return the exponent of the largest power of two that keeps a magnitude in a format."""
    if not 0 < largest < math.inf:
        return 0
    # The quotient may be rounded to the next power of two, so this compares exactly.
    exponent = math.floor(math.log2(format_.largest / largest))
    exponent -= largest * 2.0**exponent > format_.largest
    return min(exponent, 126)  # so that the scale is a float32


def magnitude_of(x: Union[int, float, Fraction]) -> Tuple[bool, Union[Fraction, float, None]]:
    """Return whether a number is negative, and its exact magnitude (inf, or None for NaN)."""
    if isinstance(x, (int, Fraction)):
        return x < 0, abs(Fraction(x))
    magnitude = Fraction(abs(x)) if math.isfinite(x) else abs(x)
    return math.copysign(1, x) < 0, None if math.isnan(x) else magnitude


def _floor_log2(exact: Fraction) -> int:
    guess = exact.numerator.bit_length() - exact.denominator.bit_length()
    return guess if exact >= Fraction(2) ** guess else guess - 1
