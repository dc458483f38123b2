"""Law 2: without over- or underflow, any schedule of power-of-two scales gives the same bits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gluon_amp as amp
from tests.laws.training import OPTIMIZERS, Scheduled, Training
from tests.trainer.helpers import parameter, run

law = settings(deadline=None, derandomize=True, max_examples=8)
names = st.sampled_from(sorted(OPTIMIZERS))


@law
@given(names, st.lists(st.integers(-24, 24), min_size=1, max_size=5), st.sampled_from([6, 7, 3]))
def test_any_schedule_with_clipping(name, exponents, batch_size):
    results = []
    for loss_scale in (Scheduled([0]), Scheduled(exponents)):
        training = Training(name, loss_scale, policy="bfloat16")
        for index in range(4):
            training.backward(index)
            training.trainer.clip_global_norm(0.5, 1)
            training.trainer.step(batch_size)
        results.append(training.everything())
    assert results[0] == results[1]


@law
@given(names, st.lists(st.integers(-17, 12), min_size=1, max_size=5), st.sampled_from([1, 7, 100]))
def test_float16_gradients(name, exponents, batch_size):
    # multiples of 1/128 up to 1 are exact in float16 at every one of these scales
    factors = np.random.RandomState(3).randint(-128, 129, (6, 5)) / 128.0
    results = []
    for loss_scale in (Scheduled([0]), Scheduled(exponents)):
        p = parameter("p", np.linspace(-1, 1, 5))
        trainer = amp.Trainer([p], name, OPTIMIZERS[name], loss_scale=loss_scale)
        for factor in factors:
            assert run(trainer, [(p, factor)], batch_size).applied
        results.append(trainer.master_params()["p"].asnumpy())
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("policy", ["float32", "bfloat16"])  # in which nothing underflows
def test_no_scale_is_a_scale_of_one_and_any_other(policy):
    results = []
    for loss_scale in (None, 1, 2.0**13):
        training = Training("adam", loss_scale, policy=policy)
        for index in range(3):
            training.step(index)
        results.append(training.everything())
    assert results[0] == results[1] == results[2]
