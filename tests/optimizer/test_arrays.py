"""Whether arrays are finite, and their norm."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gluon_amp.base import host
from gluon_amp.kernels import updates
from gluon_amp.optimizer.arrays import (
    all_finite,
    finite,
    head_gradients,
    multiply,
    square_sums,
)

import mxnet as mx
from mxnet import nd

law = settings(
    deadline=None,
    derandomize=True,
    max_examples=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(params=["kernels", "numpy", "as on a GPU"])
def way(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(updates, "supported", lambda arrays: False)
    monkeypatch.setattr(host, "_as_on_a_gpu", request.param == "as on a GPU")


def norm_of(arrays):
    return math.sqrt(sum(square_sums(arrays)))


@law
@given(
    st.sampled_from(["float16", "float32", "float64"]),
    st.sampled_from([np.inf, -np.inf, np.nan, -np.nan]),
    st.integers(1, 70000),
    st.data(),
)
def test_one_bad_element_is_seen_wherever_it_is(way, dtype, bad, size, data):
    array = nd.random.normal(shape=(size,)).astype(dtype)
    assert all_finite([array])
    array[data.draw(st.integers(0, size - 1))] = bad
    around = [nd.ones((3,)), array, nd.ones((2,), dtype="float16")]
    assert not all_finite(around)
    assert finite(around) == [True, False, True]


def test_many_none_and_empty_arrays(way):
    with mx.util.np_shape():
        for nothing in ([], [nd.zeros((0,))]):
            assert all_finite(nothing)
            assert finite(nothing) == [True] * len(nothing)
            assert norm_of(nothing) == 0.0
    many = [nd.ones((1,)) for _ in range(250)]  # more than one operator takes
    many[0][:], many[1][:] = 3e38, -1e-45
    assert all_finite(many)
    many[249][:] = np.inf
    assert not all_finite(many)
    assert square_sums(many)[2:] == [1.0] * 247 + [np.inf]


def test_the_norm_is_that_of_all_dtypes_and_kinds_together_in_float32(way):
    grads = [nd.full((2, 2), 3e4, dtype="float16"), mx.np.full((4,), -3e4), nd.zeros((5,))]
    assert all_finite(grads)
    np.testing.assert_allclose(norm_of(grads), 3e4 * np.sqrt(8), rtol=1e-6)
    sparse = nd.ones((3, 2)).tostype("row_sparse")
    np.testing.assert_allclose(norm_of([sparse]), np.sqrt(6), rtol=1e-6)
    multiply([*grads, sparse], 0.25)
    assert [one.asnumpy().flat[-1] for one in (*grads, sparse)] == [7500, -7500, 0, 0.25]


def test_the_norm_of_very_large_and_very_small_float32(way):
    np.testing.assert_allclose(norm_of([nd.full((4,), 1e30)]), 2e30, rtol=1e-6)
    np.testing.assert_allclose(norm_of([nd.full((4,), 1e-30)]), 2e-30, rtol=1e-6)
    assert norm_of([nd.array([np.inf])]) == np.inf
    assert np.isnan(norm_of([nd.array([np.nan])]))


@law
@given(st.integers(0, 2**31 - 1), st.integers(-14, 15))
def test_a_power_of_two_goes_through_the_norm_exactly(way, seed, exponent):
    values = np.random.RandomState(seed).randn(1000).astype(np.float32)
    norm = norm_of([nd.array(values)])
    assert norm_of([nd.array(values * 2.0**exponent)]) == norm * 2.0**exponent


def test_head_gradients_have_the_shapes_and_dtypes_of_the_losses(arrays):
    scalar = mx.np.ones((2,)).sum()
    losses = [scalar, nd.ones((2, 1), ctx=mx.cpu(1)), mx.np.ones((3,), dtype="float64")]
    heads = head_gradients(losses, 8.0)
    assert [head.shape for head in heads] == [(), (2, 1), (3,)]
    assert [head.context for head in heads] == [mx.cpu(0), mx.cpu(1), mx.cpu(0)]
    assert [head.dtype for head in heads] == [np.float32, np.float32, np.float64]
    assert all((head.asnumpy() == 8.0).all() for head in heads)
