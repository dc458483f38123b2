"""Law 14: no load, second trainer, slice or copy of a net replaces a master by its rounding."""

import copy

import numpy as np
import pytest

import gluon_amp as amp
from tests.laws.training import Training


def trained():
    """Return a training whose first weight is not its master, but rounded from it."""
    training = Training("sgd", 64)
    assert training.step(0).applied
    weight = training.net[0].weight
    assert (master(training.trainer, weight) != weight.data().asnumpy()).any()
    return training, weight


def master(trainer, weight):
    return trainer.master_params()[weight.name].asnumpy()


def second_trainer(training, weight, folder):
    return amp.Trainer(training.params, "adam")


def second_trainer_of_a_slice(training, weight, folder):
    return amp.Trainer(training.net[:2].collect_params(), "sgd")


def states_first(training, weight, folder, states_last=False):
    training.trainer.save_states(str(folder / "states"))
    training.net.save_parameters(str(folder / "net"))
    for what in (states_last, not states_last):
        if what:
            training.net.load_parameters(str(folder / "net"))
        else:
            training.trainer.load_states(str(folder / "states"))
    return training.trainer


def states_last(training, weight, folder):
    return states_first(training, weight, folder, states_last=True)


def into_a_new_training(training, weight, folder):
    amp.save_checkpoint(str(folder / "checkpoint"), training.net, training.trainer)
    other = Training("sgd", 64)
    amp.load_checkpoint(str(folder / "checkpoint"), other.net, other.trainer)
    return other.trainer


def a_copy(training, weight, folder):
    copied = copy.deepcopy(training.net)
    return amp.Trainer(copied.collect_params(), "sgd")


WAYS = (
    second_trainer,
    second_trainer_of_a_slice,
    states_first,
    states_last,
    into_a_new_training,
    a_copy,
)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_master_stays(way, tmp_path):
    training, weight = trained()
    before = master(training.trainer, weight)
    trainer = way(training, weight, tmp_path)
    np.testing.assert_array_equal(master(trainer, weight), before)
    np.testing.assert_array_equal(master(training.trainer, weight), before)
