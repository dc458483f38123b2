"""Pooling of blocked images computes what MXNet's Pooling computes in float32, rounded once."""

import numpy as np
import pytest

from tests.kernels.images import (
    ELEMENTS,
    PRECISION,
    compute,
    integers,
    operator,
    reference,
    rounded,
    to_blocked,
    to_plain,
)
from tests.marks import needs_library

import mxnet as mx
from mxnet import nd

pytestmark = needs_library


def stock(plain, seed, **attrs):
    """Return the result and the gradient of MXNet's pooling, and the gradient of the result."""
    pooling = nd.contrib.AdaptiveAvgPooling2D if "output_size" in attrs else nd.Pooling
    return reference(pooling, {"x": plain}, lambda shape: integers(*shape, seed=seed), **attrs)


def compare(plain, lanes, seed=0, **attrs):
    """Compare forward and backward pass with MXNet's, in every element type."""
    expected, head = stock(plain, seed, **attrs)
    for element in ELEMENTS:
        channels = plain.shape[1]
        options = {"pool_type": "avg", **attrs, "channels": channels}
        symbol = operator("_gluon_amp_pool", ["x"], element, **options)
        blocked = {"x": to_blocked(plain, lanes)}
        results = compute(symbol, blocked, to_blocked(head, lanes))
        # which is computed without indices
        np.testing.assert_array_equal(compute(symbol, blocked)["result"], results["result"])
        # Averages and their gradients, which may cancel, differ in the last bits of float32. That
        # rarely changes the last bit of the low precision.
        exact = attrs.get("pool_type") == "max"
        rtol, atol = (0, 0) if exact else (PRECISION[element], 1e-5)
        for name, wanted in expected.items():
            actual, wanted = to_plain(results[name], channels), rounded(wanted, element)
            np.testing.assert_allclose(actual, wanted, rtol, atol, err_msg=name)
    return results["result"], results["x"]


def random_case(random):
    """Return random attributes, and a shape that MXNet accepts with them."""
    kernel = tuple(int(k) for k in random.randint(1, 4, 2))
    attrs = {
        "kernel": kernel,
        "stride": tuple(int(s) for s in random.randint(1, 4, 2)),
        "pad": tuple(int(random.randint(0, k)) for k in kernel),
        "pool_type": ["max", "avg"][random.randint(2)],
        "pooling_convention": ["valid", "full"][random.randint(2)],
        "count_include_pad": bool(random.randint(2)),
    }
    shape = (random.randint(1, 4), random.randint(1, 40), *random.randint(3, 12, 2))
    return attrs, shape


def test_random_windows(instruction_set):
    random, compared = np.random.RandomState(0), 0
    for i in range(40):
        attrs, shape = random_case(random)
        plain = integers(*shape, seed=i)
        try:
            stock(plain, i, **attrs)
        except mx.MXNetError:  # oneDNN refuses some averages of windows in the padding
            continue
        compare(plain, [16, 8, 0][i % 3], i, **attrs)
        compared += 1
    assert compared > 30


@pytest.mark.parametrize("pool_type", ["max", "avg"])
def test_global_pooling(instruction_set, pool_type):
    for shape, lanes in [((2, 17, 7, 7), 16), ((1, 24, 20, 15), 0), ((3, 5, 1, 1), 8)]:
        compare(integers(*shape), lanes, kernel=(2, 2), global_pool=True, pool_type=pool_type)


def test_adaptive_averages(instruction_set):
    for output_size in (1, (3, 2), (7, 5), (13, 11)):
        for lanes in (16, 0):
            compare(integers(2, 18, 10, 7), lanes, output_size=output_size)


def test_windows_of_more_than_256_values(instruction_set):
    attrs = {"kernel": (16, 17), "stride": (2, 3), "pad": (3, 0), "pool_type": "max"}
    compare(integers(1, 17, 20, 40), 16, **attrs)


def test_a_maximum_is_the_first_of_equals():
    plain = np.zeros((1, 1, 2, 4), np.float32)
    plain[0, 0, :, 2:] = -np.inf
    out, grad = compare(plain, 16, kernel=(2, 2), stride=(2, 2), pool_type="max")
    # -inf is not greater than the value that the search starts with, as in oneDNN.
    np.testing.assert_array_equal(out[0, 0, 0, :, 0], [0, -np.inf])
    assert grad[0, 0, :, :, 0].tolist()[0][1] == 0 and grad[0, 0, 1].sum() == 0


def test_nan_is_ignored_by_maxima_and_spread_by_averages():
    plain = integers(1, 3, 4, 4)
    plain[0, 0, 1, 1] = np.nan
    for pool_type in ("max", "avg"):
        compare(plain, 16, kernel=(3, 3), stride=(1, 1), pad=(1, 1), pool_type=pool_type)


def test_padding_stays_zero_where_a_window_is_empty():
    attrs = {"kernel": (2, 2), "stride": (2, 2), "pad": (1, 1), "pool_type": "max"}
    out, _ = compare(integers(1, 3, 3, 3), 16, pooling_convention="full", **attrs)
    assert out[0, 0, 2, 2, 0] == -np.inf and not out[..., 3:].any()
