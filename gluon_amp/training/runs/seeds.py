"""What makes a run repeatable: the seeds of all random numbers, and deterministic algorithms."""

import os
import random

import numpy as np

from gluon_amp.training.workers import stores

import mxnet as mx

# MXNet reads these before its first kernel on a GPU, and Horovod the last one when it starts.
DETERMINISTIC = {
    "MXNET_ENFORCE_DETERMINISM": "1",
    "MXNET_CUDNN_AUTOTUNE_DEFAULT": "0",
    stores.FUSION: "0",
}


def use_deterministic_algorithms() -> None:
    """Use only algorithms that repeat bit for bit; call it before anything runs on a GPU."""
    os.environ.update(DETERMINISTIC)


def set_seed(seed: int) -> None:
    """Seed the generators of Python, numpy and MXNet."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    mx.random.seed(seed % 2**31)


def step_seed(seed: int, rank: int, epoch: int, number: int) -> int:
    """Return the seed of all generators for one step of one worker.

    The state of MXNet's generator cannot be read, so no checkpoint can hold it. A resumed run seeds
    it from the seed and the position, as the first run did. Each worker has its own dropout masks.
    """
    generator = np.random.default_rng((seed, epoch, number, 2))
    return int(generator.integers(2**31, size=rank + 1)[rank])
