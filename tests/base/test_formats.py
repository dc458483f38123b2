"""The formats are those of their specifications, and the reference rounds as `ml_dtypes` does."""

import math

import numpy as np
import pytest

from gluon_amp.base.formats import FORMATS, rounded, rounded_array
from tests.float_values import beside, every_value

# Names in ml_dtypes, where OFP8's E4M3 is E4M3FN
ML_DTYPES = {
    "bfloat16": "bfloat16",
    "float8_e4m3": "float8_e4m3fn",
    "float8_e5m2": "float8_e5m2",
}
EVERY = {"float16": 61, "bfloat16": 61, "float8_e4m3": 1, "float8_e5m2": 1}  # steps over the codes

# bits, bias, largest, smallest normal, smallest subnormal, codes of infinity and of NaNs.
# OFP8: table 1 of the OCP specification; TF32: 19 bits of a float32.
SPECIFIED = {
    "float32": (32, 127, (2 - 2**-23) * 2.0**127, 2.0**-126, 2.0**-149, 0x7F800000, 2**23 - 1),
    "tfloat32": (19, 127, (2 - 2**-10) * 2.0**127, 2.0**-126, 2.0**-136, 0x3FC00, 1023),
    "bfloat16": (16, 127, (2 - 2**-7) * 2.0**127, 2.0**-126, 2.0**-133, 0x7F80, 127),
    "float16": (16, 15, 65504.0, 2.0**-14, 2.0**-24, 0x7C00, 1023),
    "float8_e5m2": (8, 15, 57344.0, 2.0**-14, 2.0**-16, 0x7C, 3),
    "float8_e4m3": (8, 7, 448.0, 2.0**-6, 2.0**-9, None, 1),
}


def reference(name):
    """Return the dtype of numpy or of ml_dtypes."""
    if name == "float16":
        return np.float16
    return getattr(pytest.importorskip("ml_dtypes"), ML_DTYPES[name])


@pytest.mark.parametrize("name", FORMATS)
def test_the_figures_are_those_of_the_specification(name):
    bits, bias, largest, normal, subnormal, infinity, nans = SPECIFIED[name]
    format_ = FORMATS[name]
    assert (format_.bits, format_.bias, format_.largest) == (bits, bias, largest)
    assert (format_.smallest_normal, format_.smallest_subnormal) == (normal, subnormal)
    last = 2 ** (bits - 1) - 1
    assert [format_.value(code) for code in (0, 1)] == [0.0, subnormal]
    assert math.isnan(format_.value(last)) and math.isnan(format_.value(last - nans + 1))
    assert not math.isnan(format_.value(last - nans))
    if infinity:
        assert format_.value(infinity) == math.inf and format_.value(infinity - 1) == largest
    else:
        assert format_.value(last - nans) == largest


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid")
def test_values_midpoints_and_neighbours_round_as_in_ml_dtypes(name):
    values = beside(every_value(FORMATS[name])[:: EVERY[name]])
    expected = values.astype(reference(name)).astype(np.float64)
    actual = np.array([rounded(float(x), FORMATS[name]) for x in values])
    assert np.array_equal(actual, expected, equal_nan=True)
    number = ~np.isnan(expected)
    assert np.array_equal(np.signbit(actual[number]), np.signbit(expected[number]))


@pytest.mark.parametrize(
    "name, x, overflowed, saturated",
    [
        ("float8_e4m3", 464, 448.0, 448.0),  # a tie, to even
        ("float8_e4m3", 464 + 2**-40, math.nan, 448.0),
        ("float8_e4m3", -math.inf, math.nan, -448.0),
        ("float8_e4m3", math.nan, math.nan, math.nan),
        ("float8_e5m2", 61439.99, 57344.0, 57344.0),
        ("float8_e5m2", -61440, -math.inf, -57344.0),
        ("float8_e5m2", math.inf, math.inf, 57344.0),
        ("float8_e5m2", math.nan, math.nan, math.nan),
        ("float16", 65520, math.inf, 65504.0),
        ("bfloat16", 10**400, math.inf, (2 - 2**-7) * 2.0**127),
    ],
)
def test_what_is_too_large_overflows_or_saturates(name, x, overflowed, saturated):
    assert np.array_equal(rounded(x, FORMATS[name]), overflowed, equal_nan=True)
    assert np.array_equal(rounded(x, FORMATS[name], saturates=True), saturated, equal_nan=True)


def test_a_format_without_subnormals_has_zero_there():
    """As the instructions of AVX512_BF16 have it."""
    flushed = FORMATS["bfloat16"]._replace(subnormals=False)
    assert rounded(2.0**-127, flushed) == 0.0 and rounded(2.0**-126, flushed) == 2.0**-126
    assert rounded(2.0**-126 * (1 - 2**-9), flushed) == 2.0**-126  # it is rounded first
    assert flushed.smallest_subnormal == 2.0**-126


@pytest.mark.parametrize("saturates, subnormals", [(False, True), (True, True), (False, False)])
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float8_e4m3"])
def test_arrays_are_rounded_as_numbers(name, subnormals, saturates):
    format_ = FORMATS[name]._replace(subnormals=subnormals)
    few = FORMATS["bfloat16" if format_.bits > 16 else name]
    values = beside(every_value(few)[:: 8 * EVERY.get(name, 61)])
    with np.errstate(over="ignore"):
        expected = np.array([rounded(float(x), format_, saturates) for x in values], np.float32)
    actual = rounded_array(values, format_, saturates)
    assert actual.dtype == np.float32
    number = ~np.isnan(expected)
    assert np.array_equal(np.isnan(actual), ~number)
    assert np.array_equal(actual[number].view("u4"), expected[number].view("u4"))
