"""The C++ operators round to any format as the reference does, on every instruction set."""

import numpy as np
import pytest

from gluon_amp import kernels
from gluon_amp.base.formats import FORMATS, FloatFormat, rounded
from gluon_amp.lowering.emulation import ROUND, ROUND_RELU, rounding_attrs
from tests.float_values import beside, every_value
from tests.kernels.test_kernels import operator
from tests.marks import needs_library

import mxnet as mx

pytestmark = needs_library

# (format, whether it saturates), and which share of its values is tested
CASES = {
    "float16": (FORMATS["float16"], False, 31),
    "bfloat16": (FORMATS["bfloat16"], False, 31),
    "float8_e4m3": (FORMATS["float8_e4m3"], False, 1),
    "float8_e4m3 saturating": (FORMATS["float8_e4m3"], True, 1),
    "float8_e5m2": (FORMATS["float8_e5m2"], False, 1),
    "float8_e5m2 saturating": (FORMATS["float8_e5m2"], True, 1),
    "bfloat16 saturating": (FORMATS["bfloat16"], True, 61),
    "bfloat16 without subnormals": (FORMATS["bfloat16"]._replace(subnormals=False), False, 61),
    "float8_e5m2 without subnormals": (FORMATS["float8_e5m2"]._replace(subnormals=False), False, 1),
    "float6_e3m2": (FloatFormat("float6_e3m2", 3, 2, 3, infinities=True, nans=3), False, 1),
    "float4_e2m1": (FloatFormat("float4_e2m1", 2, 1, 1, infinities=False, nans=1), True, 1),
}


def any_bits():
    """Float32 values of every exponent, subnormals and NaNs with payloads among them."""
    random = np.random.RandomState(0)
    bits = random.randint(0, 2**32, 3000, np.uint64).astype(np.uint32)
    nans = [0x7F800001, 0x7FBFFFFF, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF, 0x7FFFF000]
    return np.concatenate([bits, np.array(nans, np.uint32)]).view(np.float32)


def expected_of(values, format_, saturates):
    with np.errstate(over="ignore"):
        return np.array([rounded(float(x), format_, saturates) for x in values], np.float32)


_references = {}


def case(name):
    """Return float32 values, what they are rounded to, and the operator's attributes."""
    format_, saturates, step = CASES[name]
    if name not in _references:
        values = np.concatenate([beside(every_value(format_)[::step]), any_bits()])
        _references[name] = values, expected_of(values, format_, saturates)
    return (*_references[name], rounding_attrs(format_, saturates))


def same(actual, expected):
    """Assert equal bits, apart from those of NaNs."""
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(actual), nan)
    assert np.array_equal(actual[~nan].view("u4"), expected[~nan].view("u4"))


@pytest.mark.parametrize("name", CASES)
def test_values_midpoints_and_neighbours(name, instruction_set):
    values, expected, attrs = case(name)
    same(operator(ROUND, values, attrs=attrs), expected)
    same(operator(ROUND, np.ones_like(values), head=values, attrs=attrs), expected)
    number = ~np.isnan(values) & ~np.isnan(expected)
    relu = np.where(expected > 0, expected, np.float32(0))[number]
    same(operator(ROUND_RELU, values[number], attrs=attrs), relu)


def test_tfloat32(instruction_set):
    values, attrs = any_bits(), rounding_attrs(FORMATS["tfloat32"])
    same(operator(ROUND, values, attrs=attrs), expected_of(values, FORMATS["tfloat32"], False))


@pytest.mark.parametrize("name", CASES)
def test_all_instruction_sets_compute_the_same_bits_of_nan_too(name):
    values, _, attrs = case(name)
    found = []
    for instructions in kernels.INSTRUCTION_SETS:
        if kernels.select(instructions):
            found.append(operator(ROUND, values, attrs=attrs).view("u4"))
    kernels.select(None)
    assert all(np.array_equal(bits, found[0]) for bits in found)
    if name == "float16":  # without attributes, too
        assert np.array_equal(operator(ROUND, values).view("u4"), found[0])


@pytest.mark.parametrize(
    "changes",
    [
        {"significand_bits": "23"},
        {"significand_bits": "0"},
        {"bias": "0"},
        {"bias": "128"},
        {"largest": "inf"},
        {"largest": "nan"},
        {"largest": "-1"},
        {"overflow": "1"},
    ],
    ids=str,
)
def test_a_forged_format_is_an_error(changes):
    attrs = {**rounding_attrs(FORMATS["float8_e4m3"]), **changes}
    with pytest.raises(mx.MXNetError, match="expects"):
        operator(ROUND, np.ones(3, np.float32), attrs=attrs)
