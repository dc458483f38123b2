"""The learning rate of every batch."""

import pytest

from gluon_amp.training.runs.schedule import Schedule


def test_step_decays_at_the_first_batch_of_its_epoch():
    schedule = Schedule(1.0, 90, 5004, "step")
    for epoch, rate in ((0, 1), (29, 1), (30, 0.1), (59, 0.1), (60, 0.01), (80, 1e-3), (89, 1e-3)):
        assert [schedule(epoch, batch) for batch in (0, 5003)] == pytest.approx([rate, rate])


def test_warm_up_rises_to_the_full_rate():
    schedule = Schedule(0.8, 90, 4, "step", warmup_epochs=2)
    rates = [schedule(epoch, batch) for epoch in range(3) for batch in range(4)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.8, 0.8, 0.8, 0.8])
    schedule = Schedule(0.6, 2, 6, "constant", warmup_epochs=0.5)  # it ends within an epoch
    assert [schedule(0, n) for n in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.6, 0.6, 0.6])


def test_shapes_fall_from_the_end_of_the_warm_up():
    for mode, rates in {
        "cosine": [1, 0.853553, 0.5, 0.146447],
        "linear": [1, 0.75, 0.5, 0.25],
        "poly": [1, 0.5625, 0.25, 0.0625],
        "constant": [1, 1, 1, 1],
    }.items():
        schedule = Schedule(1.0, 4, 2, mode, warmup_epochs=2)
        assert [schedule(e, b) for e in (2, 3) for b in (0, 1)] == pytest.approx(rates, abs=1e-6)
