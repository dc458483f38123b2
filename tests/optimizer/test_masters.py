"""Float32 masters: weights that somebody overwrites, and where an optimizer's state has them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_amp.optimizer import masters

import mxnet as mx
from mxnet import nd

law = settings(deadline=None, derandomize=True, max_examples=40)


def entry(weight, master):
    return [(0, weight, master)]


def test_a_master_follows_its_weight_where_it_was_written_and_keeps_its_bits_elsewhere(arrays):
    weight = arrays.array([1.0, 2.0, 3.0], dtype="float16")
    master = nd.array([1.0001, 2.0002, 3.0003])
    weight[1] = 5.0
    masters.sync_master(weight, master)
    np.testing.assert_array_equal(master.asnumpy(), np.float32([1.0001, 5.0, 3.0003]))


def test_a_float32_weight_takes_its_masters_bits_where_it_is_their_rounding(arrays):
    weight = arrays.array([1.0, 2.0, 3.0])
    masters.widen(weight, nd.array([1.0001, 2.5, 3.0003]))
    np.testing.assert_array_equal(weight.asnumpy(), np.float32([1.0001, 2.0, 3.0003]))


def test_a_master_follows_an_infinite_weight_and_keeps_a_zero():
    weight = nd.array([np.inf, 0.0, -0.0], dtype="float16")
    master = nd.array([1.0, 1e-9, 1e-9])
    masters.sync_master(weight, master)
    np.testing.assert_array_equal(master.asnumpy(), np.float32([np.inf, 1e-9, 1e-9]))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 16383, 16384, 16385, 16391])
def test_every_byte_is_in_the_fingerprint(size):
    weight = nd.zeros((size,), dtype="float16")
    seen = {masters.fingerprint(weight)}
    for where in sorted({0, size // 2, size - 1}):
        weight[where] = 1.0
        seen.add(masters.fingerprint(weight))
    assert len(seen) == 1 + len({0, size // 2, size - 1})


@law
@given(st.integers(1, 20000), st.data())
def test_a_write_of_one_element_anywhere_is_detected(size, data):
    where = data.draw(st.integers(0, size - 1))
    weight = nd.random.normal(shape=(size,)).astype("float16")
    master = weight.astype("float32")
    detector = masters.WriteDetector()
    detector.record(entry(weight, master))
    weight[where] = 7.0
    detector.sync_written(entry(weight, master))
    assert master[where].asscalar() == 7.0


def test_a_permutation_and_a_change_of_sign_change_the_fingerprint():
    for change in (
        lambda w: w[::-1],
        lambda w: -w,
        lambda w: np.roll(w, 4),
        lambda w: np.roll(w, 4096 * 4),
    ):
        weight = nd.random.normal(shape=(70000,)).astype("float16")
        before = masters.fingerprint(weight)
        weight[:] = nd.array(change(weight.asnumpy()), dtype="float16")
        assert masters.fingerprint(weight) != before


def test_masters_of_unwritten_weights_are_not_touched():
    weight = nd.array([1.0], dtype="float16")
    wrong = nd.array([9.0])  # a sync would set it to 1
    detector = masters.WriteDetector()
    detector.record(entry(weight, wrong))
    detector.sync_written(entry(weight, wrong))
    assert wrong.asscalar() == 9.0
    detector.clear()
    detector.sync_written(entry(weight, wrong))
    assert wrong.asscalar() == 1.0


def test_masters_of_mxnet_optimizers_are_found_in_both_layouts():
    for name in ("sgd", "nag", "lars", "rmsprop", "adagrad", "lamb", "ftml", "adam"):
        known = mx.optimizer.create(name, multi_precision=True, learning_rate=0.125)
        updater = mx.optimizer.get_updater(known)
        weight = nd.array([1.0, 2.0], dtype="float16")
        updater(0, nd.array([0.5, 0.5], dtype="float16"), weight)
        master, rest = masters.split(known, weight, updater.states[0])
        assert master.dtype == np.float32
        np.testing.assert_array_equal(master.asnumpy().astype("float16"), weight.asnumpy())
        joined = masters.join(known, weight, master, rest)
        assert len(joined) == len(updater.states[0])
        assert all(a is b for a, b in zip(joined, updater.states[0]))
