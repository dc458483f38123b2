"""The C++ operators round to any format as the reference does, on every instruction set."""

import numpy as np
import pytest

from gluon_amp import kernels
from gluon_amp.base.formats import FORMATS, FloatFormat, exponent_for, rounded, rounded_array
from gluon_amp.graph.own_operators import BFLOAT16, NARROW, ROUND, ROUND_RELU, WIDEN
from gluon_amp.lowering.emulation import rounding_attrs
from tests.float_values import beside, every_value
from tests.kernels.images import assert_same_bits, compute, operator
from tests.lowering import back_through
from tests.lowering.study import studied
from tests.lowering.study.studied import E4M3, E5M2
from tests.marks import needs_bfloat16, needs_library

import mxnet as mx
from mxnet import nd

pytestmark = needs_library

# (format, whether it saturates), and which share of its values is tested
CASES = {
    "float16": (FORMATS["float16"], False, 31),
    "bfloat16": (FORMATS["bfloat16"], False, 61),
    "float8_e4m3": (FORMATS["float8_e4m3"], False, 1),
    "float8_e4m3 saturating": (FORMATS["float8_e4m3"], True, 1),
    "float8_e5m2": (FORMATS["float8_e5m2"], False, 1),
    "bfloat16 without subnormals": (FORMATS["bfloat16"]._replace(subnormals=False), False, 61),
    "float8_e5m2 without subnormals": (FORMATS["float8_e5m2"]._replace(subnormals=False), True, 1),
    "float6_e3m2": (FloatFormat("float6_e3m2", 3, 2, 3, infinities=True, nans=3), False, 1),
    "float4_e2m1": (FloatFormat("float4_e2m1", 2, 1, 1, infinities=False, nans=1), True, 1),
    "tfloat32": (FORMATS["tfloat32"], False, None),
}


def run(op, values, head=None, **attrs):
    """Return the result of an operator, with `head` the gradient of its input."""
    results = compute(operator(op, ["x"], "float16", **attrs), {"x": values}, head)
    return results["result" if head is None else "x"]


def any_bits():
    """Float32 values of every exponent, subnormals and NaNs with payloads among them."""
    random = np.random.RandomState(0)
    bits = random.randint(0, 2**32, 3000, np.uint64).astype(np.uint32)
    nans = [0x7F800001, 0x7FBFFFFF, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF, 0x7FFFF000]
    return np.concatenate([bits, np.array(nans, np.uint32)]).view(np.float32)


@pytest.fixture(scope="module", params=CASES)
def case(request):
    """Return float32 values, what they are rounded to, and the operator's attributes."""
    format_, saturates, step = CASES[request.param]
    sample = beside(every_value(format_)[::step]) if step else np.zeros(0, np.float32)
    values = np.concatenate([sample, any_bits()])
    with np.errstate(over="ignore"):
        expected = np.array([rounded(float(x), format_, saturates) for x in values], np.float32)
    return values, expected, rounding_attrs(format_, saturates)


def test_values_midpoints_and_neighbours(case):
    """On all instruction sets, which compute the same bits of NaNs, too."""
    values, expected, attrs = case
    number = ~np.isnan(values) & ~np.isnan(expected)
    relu = np.where(expected > 0, expected, np.float32(0))[number]
    found = []
    for _ in filter(kernels.select, kernels.INSTRUCTION_SETS):
        found.append(run(ROUND, values, **attrs))
        assert_same_bits(found[-1], expected)
        assert_same_bits(run(ROUND, np.ones_like(values), head=values, **attrs), expected)
        assert_same_bits(run(ROUND_RELU, values[number], **attrs), relu)
    kernels.select(None)
    assert all(np.array_equal(other.view("u4"), found[0].view("u4")) for other in found)


def test_float16_is_the_default_and_numpys(instruction_set):
    """For all values, midpoints and neighbours; the gradients, too."""
    values = beside(every_value(FORMATS["float16"]))
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    rounded_values = half.astype(np.float32)
    assert_same_bits(run(ROUND, values), rounded_values)
    assert_same_bits(run(NARROW, values), half)
    assert_same_bits(run(WIDEN, half), rounded_values)
    assert_same_bits(run(WIDEN, half, head=values), half)
    finite = values[~np.isnan(values)]
    relu, head = run(ROUND_RELU, finite), finite[::-1].copy()
    # relu's gradient comes first: oneDNN multiplies by 0 or 1, so that inf may become NaN
    with np.errstate(invalid="ignore", over="ignore"):
        expected = (head * (relu > 0)).astype(np.float16).astype(np.float32)
    assert np.array_equal(run(ROUND_RELU, finite, head=head), expected, equal_nan=True)


@pytest.mark.parametrize("size", [1, 15, 17, 4097, 100003])
def test_any_size_and_gradients_that_add_up(size):
    values = np.random.RandomState(0).normal(size=size).astype("f4") * 1e3
    expected = values.astype("f2").astype("f4")
    symbol = operator(ROUND, ["x"], "float16")
    results = compute(symbol, {"x": values}, values, "add")
    assert_same_bits(results["result"], expected)
    assert_same_bits(results["x"], expected + np.float32(1))


def test_of_rounded_values_only_the_gradient_is_rounded():
    x = mx.sym.var("x")
    symbol = operator(ROUND, ["doubled"], "float16", rounded=True)(doubled=x * 2)
    between = np.array([1 + 2**-20], np.float32)  # two float16 values
    results = compute(symbol, {"x": between}, between)
    assert results["result"] == np.float32(2 + 2**-19)
    assert results["x"] == 2


@pytest.mark.cpu_kind
@needs_bfloat16
@pytest.mark.parametrize("size", [1, 7, 4097, 100003])
def test_the_cast_to_bfloat16_is_amp_casts_and_adds(size):
    values = np.random.RandomState(0).normal(size=size).astype("f4")
    values *= np.float32(10) ** np.random.RandomState(1).randint(-30, 30, size)
    values[0] = np.inf
    heads = [nd.array(np.random.RandomState(k).normal(size=size)) for k in (1, 2, 3)]
    results = {}
    for op, attrs in ((BFLOAT16, {}), ("amp_cast", {"dtype": "bfloat16"})):
        cast = nd.CachedOp(
            mx.sym.amp_cast(operator(op, ["x"], "float16", **attrs), dtype="float32")
        )
        x, results[op] = nd.array(values), []
        for grad_req in ("write", "add"):
            x.attach_grad(grad_req)
            for head in heads:
                out = back_through(cast, x, head=head)
                results[op].append(x.grad.asnumpy())
        results[op].insert(0, out.asnumpy())
    ours, (_, *theirs) = results[BFLOAT16], results["amp_cast"]
    np.testing.assert_array_equal(ours[:4], results["amp_cast"][:4])
    np.testing.assert_array_equal(ours[4:], np.cumsum(theirs[:3], axis=0, dtype=np.float32))


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
        run(ROUND, np.ones(3, np.float32), **attrs)


# ----------------------------------------------------------------------------- scaled formats

OPERAND = "_gluon_amp_round_operand"


@pytest.mark.parametrize("scale", ["-2", "1000000000", "99999999999999999999"])
def test_a_forged_number_of_a_scale_is_an_error(scale):
    with pytest.raises(mx.MXNetError, match="expects the number of a scale"):
        run(OPERAND, np.ones(2, "f"), scaled=True, scale=scale, **rounding_attrs(E4M3, True))


@pytest.mark.parametrize("format_", [E4M3, E5M2])
def test_the_library_chooses_the_exponent_of_the_reference(format_):
    for largest in (1.0, 3.5, 447.9, 448.0, 448.1, 2.0**-140, 2.0**127, 3e38):
        x = np.array([largest, largest / 3, largest / 1000, 0], np.float32)
        scale = 2.0 ** exponent_for(format_, float(x[0]))
        expected = rounded_array(x.astype(np.float64) * scale, format_, saturates=True) / scale
        actual = run(OPERAND, x, scaled=True, **rounding_attrs(format_, saturates=True))
        np.testing.assert_array_equal(actual, expected.astype(np.float32))


def test_all_lengths_and_instruction_sets_round_alike(instruction_set):
    for size in (1, 7, 105, 2**16 + 3):
        x = np.random.RandomState(0).normal(size=size).astype(np.float32)
        x[-1] = 40  # the largest magnitude is in the last element
        actual = run(OPERAND, x, scaled=True, **rounding_attrs(E4M3, saturates=True))
        np.testing.assert_array_equal(actual, studied.rounded(x, E4M3))
