"""A trainer with the operators that a GPU would run: what they compute, and how often it waits."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.base import host
from gluon_amp.optimizer import arrays
from tests.trainer.helpers import TWO, losses_on, parameter, values

import mxnet as mx
from mxnet import autograd, nd


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(host, "_as_on_a_gpu", True)


@pytest.fixture
def reads(monkeypatch):
    """The list of arrays that were read so far."""
    found = []
    original = nd.NDArray.asnumpy

    def asnumpy(array):
        found.append(array.shape)
        return original(array)

    monkeypatch.setattr(nd.NDArray, "asnumpy", asnumpy)
    return found


def trainer_of(parameters, optimizer="sgd", **options):
    settings = {"learning_rate": 0.25}
    if optimizer in ("sgd", "nag", "lars"):
        settings["momentum"] = 0.5
    return amp.Trainer(parameters, optimizer, settings, loss_scale=8.0, **options)


# --------------------------------------------------------------------------------------- arithmetic


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_power_of_two_multiplies_arrays_of_all_shapes_exactly(dtype):
    rows = [np.arange(7.0) - 3, np.full((2, 3), -1.5), np.array([[[2.0**-14, 0.0, 1.0]]])]
    rows *= 40  # so that it takes two operators
    gradients = [nd.array(row, dtype=dtype) for row in rows]
    arrays.multiply(gradients, 0.25)
    for row, gradient in zip(rows, gradients):
        np.testing.assert_array_equal(gradient.asnumpy(), (0.25 * row).astype(dtype))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_stays_so_when_it_is_multiplied(bad):
    gradient = nd.array([1.0, bad], dtype="float16")
    arrays.multiply([gradient], 0.5)
    assert arrays.finite([gradient, gradient[:1]]) == [False, True]


def test_square_sums_are_one_number_for_each_array():
    dtypes = ("float32", "float16")
    many = [nd.full((2,), k % 32, dtype=dtype) for k in range(70) for dtype in dtypes]
    assert arrays.square_sums(many) == [2.0 * (k % 32) ** 2 for k in range(70) for _ in dtypes]
    assert arrays.square_sums([]) == []


@pytest.mark.parametrize("exponent", [-80, -60, 60, 90])
def test_squares_outside_float32_are_summed_in_float64(exponent):
    (total,) = arrays.square_sums([nd.full((4,), 2.0**exponent)])
    assert total == 4 * 2.0 ** (2 * exponent)


# -------------------------------------------------------------------------------------------- reads


def test_a_step_reads_once(reads):
    p = [parameter(name, [1.0, 2.0], dtype) for name, dtype in (("a", "float16"), ("b", "float32"))]
    trainer = trainer_of(p)
    for _ in range(3):
        with autograd.record():
            losses = [(one.data().astype("float32") * 0.5).sum() for one in p]
        trainer.backward(losses)
        del reads[:]
        assert trainer.step(1).applied
        assert reads == [(1,)]


@pytest.mark.parametrize("zero", ["float16", "float32"])
def test_a_clipped_step_reads_once_though_a_gradient_is_all_zero(reads, zero):
    one, other = parameter("one", [1.0], "float32"), parameter("other", [1.0], zero)
    trainer = trainer_of([one, other])
    for _ in range(3):
        with autograd.record():
            loss = one.data() * 0.5 + other.data().astype("float32") * 0
        trainer.backward(loss)
        del reads[:]
        assert trainer.clip_global_norm(0.25) == 0.5
        assert trainer.step(1).applied
        assert reads == [(2,)]


def test_gradients_that_were_written_after_the_norm_are_checked_again(reads):
    p = parameter("p", [1.0], "float16")
    trainer = trainer_of([p])
    trainer.backward(losses_on(p, [0.5], [mx.cpu()]))
    trainer.clip_global_norm(1.0)
    p.grad()[:] = np.inf
    report = trainer.step(1)
    assert (report.applied, report.overflow) == (False, ("p",))
    assert values(p)[0] == 1.0


def test_a_skip_reads_once_more_for_all_names(reads):
    p = [parameter(f"p{index:02d}", [1.0], "float16") for index in range(12)]
    trainer = trainer_of(p)
    with autograd.record():
        loss = sum(one.data().astype("float32") * (1e6 if one is p[7] else 1.0) for one in p)
    trainer.backward(loss)
    del reads[:]
    report = trainer.step(1)
    assert report.overflow == ("p07",)
    # the flag, the names, whether parameters are finite, whether losses are
    assert reads == [(1,), (12,), (12,), (1,)]


# ------------------------------------------------------------------------------------------ masters


@pytest.mark.parametrize("optimizer", amp.optimizer.OPTIMIZERS)
def test_a_written_weight_sets_its_master_and_another_one_keeps_its_bits(optimizer, monkeypatch):
    kept, written = parameter("kept", [1.0], "float16"), parameter("written", [1.0], "float16")
    trainer = trainer_of([kept, written], optimizer)
    synced = []
    sync_master = amp.optimizer.masters.sync_master

    def spy(weight, master):
        synced.append(weight)
        sync_master(weight, master)

    def step():
        with autograd.record():
            loss = sum(p.data().astype("float32") * 2.0**-6 for p in (kept, written))
        trainer.backward(loss)
        del synced[:]
        assert trainer.step(1).applied

    monkeypatch.setattr(amp.optimizer.masters, "sync_master", spy)
    for _ in range(3):
        step()
    assert synced == []
    written.data()[:] = 3.0
    step()
    assert len(synced) == 1 and synced[0] is written.data()
    step()
    assert synced == []
    masters = {name: master.asnumpy()[0] for name, master in trainer.master_params().items()}
    assert masters["kept"] < 1.0 < masters["written"] < 3.0


def test_a_weight_that_was_left_out_and_written_once_sets_its_master():
    used, stale = parameter("used", [1.0], "float16"), parameter("stale", [1.0], "float16")
    trainer = trainer_of([used, stale])

    def step(*parameters):
        with autograd.record():
            loss = sum(p.data().astype("float32") * 0.5 for p in parameters)
        trainer.backward(loss)
        assert trainer.step(1, ignore_stale_grad=True).applied

    for _ in range(3):
        step(used, stale)
    step(used)
    stale.data()[:] = 5.0  # as many writes as an update would have made
    step(used, stale)
    assert trainer.master_params()["stale"].asnumpy()[0] > 4


def test_two_devices_hold_equal_weights_and_read_once_each(reads):
    p = parameter("p", [1.0, 2.0], "float16", ctx=TWO)
    trainer = trainer_of([p])
    for _ in range(3):
        trainer.backward(losses_on(p, [1.5, 0.5], TWO))
        del reads[:]
        assert trainer.clip_global_norm(np.inf) == np.sqrt(8)
        assert trainer.step(2).applied
        assert reads == [(1,), (1,)]
    first, second = (array.asnumpy().tolist() for array in p.list_data())
    assert first == second != [1.0, 2.0]
