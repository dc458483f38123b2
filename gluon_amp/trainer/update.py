"""The update of a trainer's weights: MXNet's, or one with float32 sums, from masters in sync."""

from typing import Callable, Iterator, Optional, Tuple

import numpy as np

from gluon_amp.optimizer import masters
from gluon_amp.optimizer.base import round_master
from gluon_amp.trainer.gradients import clear_fresh

from mxnet import gluon, nd

# (number of the device, number of the parameter), weight, master
Master = Tuple[Tuple[int, int], nd.NDArray, nd.NDArray]


def masters_of(trainer: gluon.Trainer) -> Iterator[Master]:
    """Yield each float16 weight that has a master, on each device."""
    for device, updater in enumerate(trainer._updaters):
        for index, state in updater.states.items():
            param = trainer._params[index]
            if np.dtype(param.dtype) != np.float16 or param._data is None:
                continue
            weight = param.list_data()[device]
            master, _ = masters.split(trainer.optimizer, weight, state)
            if master is not None:
                yield (device, index), weight, master


def update(
    trainer: gluon.Trainer, writes: masters.WriteDetector, stock: Optional[Callable[[], None]]
) -> None:
    """Update the weights whose gradients are fresh.

    Before that, masters of weights that were written since the last update are synced, unless the
    update does so itself. `stock` is the update of `gluon.Trainer`, or None if float32 sums are in
    the place of the gradients.
    """
    optimizer = trainer.optimizer
    _adopt_masters(trainer)
    syncs = getattr(optimizer, "syncs_master", lambda weight: False)
    fresh = (entry for entry in masters_of(trainer) if entry[1]._fresh_grad)
    seen = writes.sync_written([entry for entry in fresh if not syncs(entry[1])])
    if stock is None:
        _update_with_sums(trainer, syncs)
        writes.record(seen, lambda weight: 1)
    else:
        stock()
        writes.record(seen, getattr(optimizer, "weight_writes", lambda weight: None))


def _adopt_masters(trainer: gluon.Trainer) -> None:
    """Make the parameters' own masters those of the states that the update changes."""
    for device, updater in enumerate(trainer._updaters):
        for index, param in enumerate(trainer._params):
            if param.grad_req == "null" or np.dtype(param.dtype) != np.float16:
                continue
            weight = param.list_data()[device]
            if weight._fresh_grad:
                masters.adopt(param, weight, updater, index)


def _update_with_sums(trainer: gluon.Trainer, syncs: Callable[[nd.NDArray], bool]) -> None:
    """Update with the sums: where an update takes no float32 gradient of a float16 weight, the
    master as a float32 weight, which is then rounded.
    """
    optimizer = trainer.optimizer
    for device, updater in enumerate(trainer._updaters):
        fresh, narrow = [], {}
        for index, param in enumerate(trainer._params):
            if param.grad_req == "null" or not param.list_data()[device]._fresh_grad:
                continue
            weight, gradient = param.list_data()[device], param.list_grad()[device]
            clear_fresh([weight])
            if np.dtype(weight.dtype) == np.float16 and not syncs(weight):
                state = updater.states[index]
                master, rest = masters.split(optimizer, weight, state)
                narrow[index] = weight, master, state
                updater.states[index] = masters.join(optimizer, master, None, rest)
                weight = master
            fresh.append((index, gradient, weight))
        try:
            if fresh:
                updater(*zip(*fresh))
        finally:
            for index, (weight, master, state) in narrow.items():
                updater.states[index] = state
                round_master(master, weight)
