"""Sums of gradients over devices and workers: who adds them up, and how many.

MXNet's kvstore does, or a class with a reduction of its own, such as Horovod's trainer. The kvstore
adds float16 on CPUs in a scalar loop, so `allreduce` adds these gradients up itself.
"""

import math
from typing import Iterable, List

import numpy as np

from gluon_amp.base.host import on_cpu
from gluon_amp.optimizer.arrays import add_up

import mxnet as mx
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


def added_here(trainer: gluon.Trainer) -> List[gluon.Parameter]:
    """Return the parameters whose gradients `allreduce` adds up: float16, on this process's CPUs.

    The bits are those of the kvstore. One that is not of the kind "device" adds more than two
    gradients in another order, so it keeps them.
    """
    store, trained = trainer._kvstore, trainer.trained()
    if has_own(trainer) or type(store) is not mx.kvstore.KVStore or crosses_workers(trainer):
        return []
    in_order = len(trainer.contexts) == 2 or "device" in store.type
    dense = all(grad.stype == "default" for param in trained for grad in param.list_grad())
    if trainer._compression_params or not in_order or not dense:
        return []
    return [p for p in trained if all(on_cpu(g) and g.dtype == np.float16 for g in p.list_grad())]


def allreduce(trainer: gluon.Trainer, divisor: float) -> None:
    """Reduce the gradients; divide those of `added_here` first, as the others are already."""
    here = added_here(trainer)
    if not here:
        trainer._allreduce_grads()
        return
    add_up([param.list_grad() for param in here], 1 / divisor)
    others = set(trainer.trained()).difference(here)
    for index, param in enumerate(trainer._params):
        if param in others:
            trainer._kvstore.pushpull(index, param.list_grad(), priority=-index)


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
