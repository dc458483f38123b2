"""Sums of gradients over devices and workers: who adds them up, and how many.

MXNet's kvstore does, or a class with a reduction of its own, such as Horovod's trainer.
"""

import math
from typing import Iterable

import numpy as np

from mxnet import gluon
from mxnet.ndarray import NDArray


def has_own(trainer: gluon.Trainer) -> bool:
    """Return whether another class, such as Horovod's, has a reduction of its own."""
    return type(trainer)._allreduce_grads is not gluon.Trainer._allreduce_grads


def exchanges(trainer: gluon.Trainer) -> bool:
    """Return whether gradients are exchanged at all, between devices or workers."""
    return trainer._kvstore is not None or has_own(trainer)


def crosses_workers(trainer: gluon.Trainer) -> bool:
    """Return whether a reduction may exchange gradients with other workers."""
    return has_own(trainer) or bool(trainer._kvstore and trainer._kvstore.num_workers > 1)


def divisor(trainer: gluon.Trainer, gradients: Iterable[NDArray]) -> float:
    """Return by what gradients are divided before the sum, so that no float16 sum overflows.

    It is a power of two at least as high as their number: exact, apart from underflow.
    """
    divisor = 2.0 ** (_summands(trainer) - 1).bit_length()
    # Another class may sum float32 gradients in float16, as Horovod does on request.
    if divisor == 1 or has_own(trainer):
        return divisor
    return divisor if any(np.dtype(grad.dtype) == np.float16 for grad in gradients) else 1.0


def _summands(trainer: gluon.Trainer) -> int:
    """Return how many gradients of each parameter are added up; 1 if that is not known."""
    if has_own(trainer):
        # Horovod's trainer adds up one gradient of each process, divided by a factor already.
        workers = getattr(trainer, "_process_set", None)
        factor = getattr(trainer, "_gradient_predivide_factor", 1)
        return math.ceil(workers.size() / factor) if workers else 1
    kvstore = trainer._kvstore
    return len(trainer.contexts) * kvstore.num_workers if kvstore else 1
