"""Pooling of blocked images computes what MXNet's Pooling computes in float32, rounded once."""

import numpy as np
import pytest

from tests.lowering.test_blocked_moves import (
    DTYPES,
    integers,
    rounded,
    run,
    to_blocked,
    to_plain,
)
from tests.marks import needs_library

import mxnet as mx
from mxnet import autograd, nd

pytestmark = needs_library


def stock(plain, head_seed, **attrs):
    """Return the result of MXNet's pooling, a gradient of it, and the gradient of the data."""
    pooling = nd.contrib.AdaptiveAvgPooling2D if "output_size" in attrs else nd.Pooling
    data = nd.array(plain)
    data.attach_grad()
    with autograd.record():
        out = pooling(data, **attrs)
    head = integers(*out.shape, seed=head_seed)
    out.backward(nd.array(head))
    return out.asnumpy(), head, data.grad.asnumpy()


def compare(plain, lanes, dtype, seed=0, **attrs):
    """Compare forward and backward pass with MXNet's."""
    channels = plain.shape[1]
    out, head, grad = stock(plain, seed, **attrs)
    texts = {name: str(value) for name, value in attrs.items()}
    (actual,), (actual_grad,) = run(
        "_gluon_amp_pool",
        {"pool_type": "avg", **texts, "channels": str(channels)},
        [to_blocked(plain, lanes)],
        dtype,
        [to_blocked(head, lanes)],
    )
    # Averages and their gradients, which may cancel, differ in the last bits of float32. That
    # rarely changes the last bit of the low precision.
    tolerance = {"rtol": {"bfloat16": 2.0**-8, "float32": 2.0**-11}[dtype], "atol": 1e-5}
    if attrs.get("pool_type") == "max":
        tolerance = {"rtol": 0, "atol": 0}
    for blocked, expected in ((actual, out), (actual_grad, grad)):
        with np.errstate(over="ignore"):
            expected = to_blocked(rounded(expected, dtype), lanes)
        np.testing.assert_allclose(blocked, expected, **tolerance)
    return actual, actual_grad


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


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_windows(instruction_set, dtype):
    random = np.random.RandomState(0)
    compared = 0
    for i in range(60):
        attrs, shape = random_case(random)
        plain = integers(*shape, seed=i)
        try:
            stock(plain, i, **attrs)
        except mx.MXNetError:  # oneDNN refuses some averages of windows in the padding
            continue
        compare(plain, [16, 8, 0][i % 3], dtype, i, **attrs)
        compared += 1
    assert compared > 50


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pool_type", ["max", "avg"])
@pytest.mark.parametrize(
    "shape, lanes", [((2, 17, 7, 7), 16), ((1, 24, 20, 15), 0), ((3, 5, 1, 1), 8)]
)
def test_global_pooling(instruction_set, dtype, pool_type, shape, lanes):
    compare(integers(*shape), lanes, dtype, kernel=(2, 2), global_pool=True, pool_type=pool_type)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lanes", [16, 0])
@pytest.mark.parametrize("output_size", [1, (3, 2), (7, 5), (13, 11)])
def test_adaptive_averages(instruction_set, dtype, lanes, output_size):
    compare(integers(2, 18, 10, 7), lanes, dtype, output_size=output_size)


@pytest.mark.parametrize("dtype", DTYPES)
def test_windows_of_more_than_256_values(instruction_set, dtype):
    plain = integers(1, 17, 20, 40)
    compare(plain, 16, dtype, kernel=(16, 17), stride=(2, 3), pad=(3, 0), pool_type="max")


def test_a_maximum_is_the_first_of_equals():
    plain = np.zeros((1, 1, 2, 4), np.float32)
    plain[0, 0, :, 2:] = -np.inf
    out, grad = compare(plain, 16, "float32", kernel=(2, 2), stride=(2, 2), pool_type="max")
    # -inf is not greater than the value that the search starts with, as in oneDNN.
    np.testing.assert_array_equal(out[0, 0, 0, :, 0], [0, -np.inf])
    assert grad[0, 0, :, :, 0].tolist()[0][1] == 0 and grad[0, 0, 1].sum() == 0


def test_nan_is_ignored_by_maxima_and_spread_by_averages():
    plain = integers(1, 3, 4, 4)
    plain[0, 0, 1, 1] = np.nan
    for pool_type in ("max", "avg"):
        compare(
            plain, 16, "bfloat16", kernel=(3, 3), stride=(1, 1), pad=(1, 1), pool_type=pool_type
        )


def test_padding_stays_zero_where_a_window_is_empty():
    plain = integers(1, 3, 3, 3)
    attrs = {"kernel": (2, 2), "stride": (2, 2), "pad": (1, 1), "pool_type": "max"}
    out, _ = compare(plain, 16, "float32", pooling_convention="full", **attrs)
    assert out[0, 0, 2, 2, 0] == -np.inf and not out[..., 3:].any()


def test_inference_has_the_same_result_without_indices():
    plain = integers(2, 17, 9, 9)
    attrs = {"kernel": "(3, 3)", "stride": "(2, 2)", "pool_type": "max", "channels": "17"}
    (out,), _ = run("_gluon_amp_pool", attrs, [to_blocked(plain, 16)])
    expected = nd.Pooling(nd.array(plain), kernel=(3, 3), stride=(2, 2), pool_type="max")
    np.testing.assert_array_equal(to_plain(out, 17), expected.asnumpy())


@pytest.mark.parametrize(
    "attrs",
    [
        {"pool_type": "sum"},
        {"pooling_convention": "same"},
        {"kernel": "(2,)"},
        {"kernel": "(0, 2)"},
        {"kernel": "(9, 2)"},
        {"pad": "(2, 0)"},
        {"stride": "(0, 1)"},
        {"stride": "(1, 1, 1)"},
        {"kernel": "(1000000000, 1000000000)"},
        {"channels": "0"},
        {"channels": "17"},
        {"output_size": "(2, 2)", "pool_type": "max"},
        {"output_size": "(2, 2, 2)", "pool_type": "avg"},
        {"output_size": "(-1, 2)", "pool_type": "avg"},
        {"output_size": "(1000000, 1000000)", "pool_type": "avg"},
    ],
)
def test_wrong_attributes_are_refused(attrs):
    attrs = {"kernel": "(2, 2)", "channels": "16", **attrs}
    with pytest.raises(mx.MXNetError, match="_gluon_amp_pool"):
        run("_gluon_amp_pool", attrs, [np.zeros((1, 1, 4, 4, 16))])
