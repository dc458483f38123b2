"""The seeds of all random numbers."""

import random

import numpy as np

from gluon_amp.training.runs.seeds import set_seed, step_seed

from mxnet import nd


def test_each_step_of_each_worker_has_a_seed_of_its_own():
    seeds = [step_seed(*at) for at in np.ndindex(3, 4, 5, 6)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert step_seed(7, 0, 1, 3) == 1014317233  # of runs with one worker before there were ranks


def test_all_generators_are_seeded():
    def drawn(seed):
        set_seed(seed)
        return random.random(), np.random.rand(), nd.random.uniform(shape=1).asscalar()

    assert drawn(2**40) == drawn(2**40)
    assert not {*drawn(2**40)} & {*drawn(2**40 + 1)}
