"""States of learning rate schedulers: rewound, continued, and refused."""

import numpy as np
import pytest

from gluon_amp.trainer import schedules, state_files
from tests.trainer.state_helpers import own, refuse, train

from mxnet.lr_scheduler import (
    CosineScheduler,
    FactorScheduler,
    LRScheduler,
    MultiFactorScheduler,
    PolyScheduler,
)


class Plateau(LRScheduler):
    """A user's scheduler: another one inside, a list, an array, a function, and None at first."""

    def __init__(self):
        super().__init__(0.5)
        self.inner = [FactorScheduler(2, 0.5, base_lr=0.5)]
        self.seen, self.best = [], None
        self.rates = np.array([1.0, 0.5], "float32")
        self.measure = abs

    def __call__(self, num_update):
        self.seen.append(num_update)
        self.best = np.float32(max(self.seen))
        self.rates *= 0.5
        return self.inner[0](num_update) * (1 + float(self.rates[0]) + len(self.seen) / 64)


SCHEDULES = {
    "factor": lambda: FactorScheduler(2, 0.5, base_lr=0.5, warmup_steps=3),
    "multi": lambda: MultiFactorScheduler([2, 5, 7], 0.5, base_lr=0.5),
    "poly": lambda: PolyScheduler(8, 0.5, warmup_steps=2),
    "cosine": lambda: CosineScheduler(5, 0.5),
    "custom": Plateau,
}


def rates(trainer, steps=5):
    return [train(trainer, 1).learning_rate for _ in range(steps)]


def with_schedule(kind):
    return own("sgd", lr_scheduler=SCHEDULES[kind](), learning_rate=None)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_an_earlier_state_rewinds_a_schedule_of_the_same_and_of_a_new_trainer(kind, path):
    trainer = with_schedule(kind)
    rates(trainer, 3)
    trainer.save_states(path)
    expected = rates(trainer)
    for again in (trainer, with_schedule(kind)):
        again.load_states(path)
        assert rates(again) == expected


def test_a_scheduler_of_another_class_keeps_its_state(path):
    train(with_schedule("factor")).save_states(path)
    trainer = with_schedule("cosine")
    with pytest.warns(UserWarning, match="had lr_scheduler='FactorScheduler'; this trainer keeps"):
        trainer.load_states(path)
    same = SCHEDULES["cosine"]()
    assert rates(trainer) == [same(count) for count in range(4, 9)]


def test_a_state_from_before_schedules_were_saved(path):
    saved = train(with_schedule("factor")).state_dict()
    del saved["schedule"]
    trainer = with_schedule("factor")
    trainer.load_state_dict(saved)
    assert trainer.learning_rate == 0.25


@pytest.mark.parametrize("field, value", [("base_lr", "x"), ("other", 1), ("__class__", None)])
def test_a_forged_schedule_is_refused(field, value, path):
    trainer = train(with_schedule("factor"))
    saved = trainer.state_dict()
    saved["schedule"][1][field] = value
    state_files.write(path, saved)
    refuse(trainer, path, "schedule that does not fit: a FactorScheduler cannot have ")


def test_what_was_collected_does_not_change():
    schedule = Plateau()
    saved = schedules.collect(schedule)
    schedule(3)
    schedules.restore(schedule, saved)
    schedule(3)
    assert saved["seen"] == []
    assert saved["rates"].tolist() == [1, 0.5]
    assert "measure" not in saved
    assert saved["inner"] == [schedules.collect(FactorScheduler(2, 0.5, base_lr=0.5))]
