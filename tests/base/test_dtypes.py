"""The table's figures are IEEE 754's, and `bits` rounds once, to nearest even."""

import math
from fractions import Fraction

import numpy as np
import pytest

import gluon_amp as amp

from mxnet import nd
from mxnet.contrib.amp.amp import bfloat16

TABLE = """\
format      exponent significand    largest    normal subnormal  epsilon digits
float16            5          10      65504  6.10e-05  5.96e-08 9.77e-04      3
bfloat16           8           7 3.3895e+38  1.18e-38  9.18e-41 7.81e-03      2
float32            8          23 3.4028e+38  1.18e-38  1.40e-45 1.19e-07      6
tfloat32           8          10 3.4012e+38  1.18e-38  1.15e-41 9.77e-04      3
float8_e4m3        4           3        448  1.56e-02  1.95e-03 1.25e-01      0
float8_e5m2        5           2      57344  6.10e-05  1.53e-05 2.50e-01      0"""


def test_the_table_prints_in_80_columns():
    assert str(amp.float_table()) == TABLE
    assert repr(amp.float_table()) == TABLE


@pytest.mark.parametrize(
    "x, dtype, text",
    [
        (1, "float16", "0 01111 0000000000 = +1.0 × 2^0 = 1.0"),
        (0.1, "float16", "0 01011 1001100110 = +1.599609375 × 2^-4 = 0.0999755859375"),
        (0.1, "bfloat16", "0 01111011 1001101 = +1.6015625 × 2^-4 = 0.10009765625"),
        (65504, "float16", "0 11110 1111111111 = +1.9990234375 × 2^15 = 65504.0"),
        (65520, "float16", "0 11111 0000000000 = +infinity = inf"),
        (2**-24, "float16", "0 00000 0000000001 = +0.0009765625 × 2^-14 = 5.960464477539063e-08"),
        (2**-25, "float16", "0 00000 0000000000 = +zero = 0.0"),
        (-(2**-26), "float16", "1 00000 0000000000 = -zero = -0.0"),
        (2049, "float16", "0 11010 0000000000 = +1.0 × 2^11 = 2048.0"),  # a tie, to even
        (4095.9, "float16", "0 11011 0000000000 = +1.0 × 2^12 = 4096.0"),  # a carry
        (math.nan, "float16", "0 11111 1000000000 = not a number = nan"),
        (-0.0, "float32", f"1 00000000 {'0' * 23} = -zero = -0.0"),
        (448, "float8_e4m3", "0 1111 110 = +1.75 × 2^8 = 448.0"),
        (-480, "float8_e4m3", "1 1111 111 = not a number = nan"),
        (2**-16, "float8_e5m2", "0 00000 01 = +0.25 × 2^-14 = 1.52587890625e-05"),
        (10**400, "float32", f"0 11111111 {'0' * 23} = +infinity = inf"),
    ],
)
def test_bits_of(x, dtype, text):
    assert str(amp.bits(x, dtype)) == text


def test_any_number_is_rounded_once_not_through_float32():
    tie = 1 + 2.0**-8  # between 1 and its successor, so it goes to even, but
    above = tie + 2.0**-40  # that is above the tie, and float32 would lose it
    assert amp.bits(tie, "bfloat16").value == 1.0
    assert amp.bits(above, "bfloat16").value == 1.0078125
    assert amp.bits(np.float32(above), "bfloat16").value == 1.0
    assert amp.bits(Fraction(1, 3), "float16").value == 0.333251953125
    # 2^24 + 1 is a tie in float32; 2^60 more digits lift a large integer above one
    assert amp.bits(2**24 + 1, "float32").value == 2.0**24
    assert amp.bits(2**80 + 2**56 + 1, "float32").value == 2.0**80 + 2.0**57


def test_scalars_arrays_and_dtypes_that_users_have(arrays):
    assert amp.bits(np.float32(0.5)).value == 0.5
    assert amp.bits(np.int64(3)).value == 3.0
    assert amp.bits(arrays.array([0.25]), np.float16).exponent == "01101"
    one = amp.bits(1.5, bfloat16)
    assert (one.dtype, one.sign, one.significand, one.meaning) == (
        "bfloat16",
        "0",
        "1000000",
        "+1.5 × 2^0",
    )


def test_errors_are_one_sentence():
    with pytest.raises(ValueError) as error:
        amp.bits(1, "float64")
    assert str(error.value) == (
        "bits() got the dtype 'float64', expected one of float16, bfloat16, float32, tfloat32, "
        "float8_e4m3, float8_e5m2."
    )
    for wrong in ("0.5", [1, 2], None, nd.ones(2)):
        with pytest.raises(TypeError) as error:
            amp.bits(wrong)
        assert str(error.value) == f"bits() got a {type(wrong).__name__}, expected one number."
