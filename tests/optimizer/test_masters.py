"""Float32 masters: weights that somebody overwrites, and where an optimizer's state has them."""

import numpy as np
import pytest

from gluon_amp import optimizer
from gluon_amp.base.writes import version
from gluon_amp.optimizer import masters

import mxnet as mx
from mxnet import nd


@pytest.mark.parametrize("kind", [nd, mx.np])
def test_a_master_follows_its_weight_where_it_was_written_and_keeps_its_bits_elsewhere(kind):
    weight = kind.array([1.0, 2.0, 3.0, np.inf, -0.0], dtype="float16")
    master = nd.array([1.0001, 2.0002, 3.0003, 1.0, 1e-9])
    weight[1] = 5.0
    masters.sync_master(weight, master)
    expected = np.float32([1.0001, 5.0, 3.0003, np.inf, 1e-9])
    np.testing.assert_array_equal(master.asnumpy(), expected)


def test_a_float32_weight_takes_its_masters_bits_where_it_is_their_rounding():
    weight = nd.array([1.0, 2.0, 3.0])
    masters.widen(weight, nd.array([1.0001, 2.5, 3.0003]))
    np.testing.assert_array_equal(weight.asnumpy(), np.float32([1.0001, 2.0, 3.0003]))


def record(detector, weight, master, writes=0):
    """Make an update that writes the weight so often."""
    seen = detector.sync_written([(0, weight, master)])
    for _ in range(writes):
        weight += 0
    detector.record(seen, lambda _: writes)


@pytest.mark.parametrize("writes", [1, 3])
def test_masters_of_unwritten_weights_are_not_touched(writes):
    weight, master = nd.array([1.0], dtype="float16"), nd.array([1.0])
    detector = masters.WriteDetector()
    record(detector, weight, master, writes)
    weight.wait_to_read()
    master[:] = 9.0  # a sync would set it to 1
    record(detector, weight, master, writes)
    weight.wait_to_read()
    record(detector, weight, master, writes)
    assert master.asscalar() == 9.0
    weight[:] = 2.0
    detector.sync_written([(0, weight, master)])
    assert master.asscalar() == 2.0
    record(detector, weight, master, writes)
    master[:] = 9.0
    detector.clear()
    detector.sync_written([(0, weight, master)])
    assert master.asscalar() == 2.0


def test_another_array_and_unknown_numbers_of_writes_count_as_written(monkeypatch):
    weight, master = nd.array([1.0], dtype="float16"), nd.array([1.0])
    detector = masters.WriteDetector()
    record(detector, weight, master)
    other = nd.array([3.0], dtype="float16")  # written as often as the first one
    detector.record(detector.sync_written([(0, other, master)]), lambda _: None)
    assert master.asscalar() == 3.0
    master[:] = 9.0
    record(detector, other, master)
    assert master.asscalar() == 3.0
    monkeypatch.setattr(masters, "version", lambda array: None)  # where nothing counts the writes
    for _ in range(2):
        master[:] = 9.0
        record(detector, other, master, writes=1)
        assert master.asscalar() == 3.0


@pytest.mark.parametrize("stype", ["default", "row_sparse"])
def test_an_update_writes_each_weight_as_often_as_its_optimizer_says(way, stype):
    for name in optimizer.OPTIMIZERS:
        settings = {"momentum": 0.9} if name in ("sgd", "nag", "lars") else {}
        built = optimizer.create(name, **settings)
        updater = mx.optimizer.get_updater(built)
        weights = [nd.ones((2, 2), dtype="float16") for _ in range(2)]
        gradients = [nd.ones((2, 2), dtype="float16").tostype(stype) for _ in weights]
        for _ in range(2):
            nd.waitall()
            before = [version(weight) for weight in weights]
            updater([0, 1], gradients, weights)
            nd.waitall()
            after = [version(weight) for weight in weights]
            expected = [built.weight_writes(weight) for weight in weights]
            assert [b - a for a, b in zip(before, after)] == expected, name


def test_masters_of_mxnet_optimizers_are_found_in_both_layouts():
    for name in ("sgd", "nag", "lars", "rmsprop", "adagrad", "lamb", "ftml", "dcasgd"):
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


class Nested(mx.optimizer.Optimizer):
    """A user's optimizer with its master wherever `layout` puts it."""

    layout = staticmethod(lambda master: master)

    def create_state_multi_precision(self, index, weight):
        return self.layout(weight.astype("float32"))


@pytest.mark.parametrize(
    "layout",
    [
        lambda master: master,
        lambda master: [nd.zeros_like(master), [nd.ones_like(master), master], None],
        lambda master: (nd.zeros_like(master), master, (master.copy(),)),
    ],
)
def test_a_master_is_found_wherever_a_state_has_it(layout):
    weight, adam = nd.zeros((2, 3), dtype="float16"), Nested(multi_precision=True)
    adam.layout = layout
    masters.check_optimizer(adam, [2])
    state = adam.create_state_multi_precision(0, weight)
    master, rest = masters.split(adam, weight, state)
    assert master.dtype == np.float32
    other = nd.ones((2, 3))
    joined = masters.join(adam, weight, other, rest)
    again, same_rest = masters.split(adam, weight, joined)
    assert again is other
    assert type(joined) is type(state)
    assert repr(same_rest) == repr(rest)


@pytest.mark.parametrize(
    "layout",
    [lambda m: (None, m * 0), lambda m: (m, m.copy()), lambda m: (None, m.astype("float16"))],
)
def test_an_optimizer_without_one_master_is_refused(layout):
    optimizer = Nested(multi_precision=True)
    optimizer.layout = layout
    with pytest.raises(ValueError, match=r"^Nested keeps (no|2) float32 .* is expected: return"):
        masters.check_optimizer(optimizer, [1])


@pytest.mark.parametrize(
    "layout, second",
    [(lambda m: (None, m), True), (lambda m: (m, None), False), (lambda m: (), False)],
)
def test_where_an_optimizer_has_its_master_is_asked_without_a_change(layout, second):
    optimizer = Nested(multi_precision=False)
    optimizer.layout = layout
    assert masters.keeps_master_second(optimizer, 1) is second
    assert optimizer.multi_precision is False
    assert masters.join(optimizer, nd.ones((1,)), None, "state") == "state"
