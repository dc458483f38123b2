"""The state of a learning rate scheduler as plain data.

MXNet's FactorScheduler and MultiFactorScheduler change their own base rate and position when they
are called, so the number of updates alone does not rewind them.

The state is the attributes that are numbers, names, None or numpy arrays, or lists, tuples and
dicts of these, or schedulers. Attributes of other kinds, such as functions, are not saved: a
scheduler keeps its own.
"""

import copy
from numbers import Real

import numpy as np

from gluon_amp.files.schema import ARRAY, NAME, PLAIN, Leaf, Mapping, allows, brief

from mxnet.lr_scheduler import LRScheduler


def _is_state(value) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_state, value))
    if isinstance(value, dict):
        return all(allows(PLAIN, key) and _is_state(item) for key, item in value.items())
    plain = value.item() if isinstance(value, np.generic) else value
    return allows(PLAIN, plain) or allows(ARRAY, value) or isinstance(value, LRScheduler)


# What `collect` returns.
SCHEMA = Mapping(
    NAME,
    Leaf(
        "made of numbers, names and arrays",
        lambda value: _is_state(value) and not isinstance(value, LRScheduler),
    ),
)


def collect(scheduler: LRScheduler) -> dict:
    """Return the state of a scheduler, which later updates do not change."""
    return {name: _saved(value) for name, value in vars(scheduler).items() if _is_state(value)}


def _saved(value):
    if isinstance(value, LRScheduler):
        return collect(value)
    if isinstance(value, (list, tuple)):
        return list(map(_saved, value))
    if isinstance(value, dict):
        return {key: _saved(item) for key, item in value.items()}
    return value.item() if isinstance(value, np.generic) else copy.copy(value)


def restore(scheduler: LRScheduler, saved: dict) -> None:
    """Set the attributes that `collect` returned."""
    for name, value in saved.items():
        setattr(scheduler, name, _restored(getattr(scheduler, name), value))


def _restored(own, saved):
    if isinstance(own, LRScheduler):
        restore(own, saved)
        return own
    if isinstance(own, (list, tuple)) and isinstance(saved, (list, tuple)):
        if len(own) == len(saved):
            saved = map(_restored, own, saved)
        return type(own)(saved)
    return copy.deepcopy(saved)


def check_fit(scheduler: LRScheduler, saved: dict) -> None:
    """Raise `ValueError` unless a scheduler can have this saved state."""
    for name, value in saved.items():
        if name not in vars(scheduler) or not _fits(vars(scheduler)[name], value):
            raise ValueError(
                f"a {type(scheduler).__name__} cannot have {brief(name)} = {brief(value)}; build "
                "the trainer with the saved one."
            )


def _fits(own, saved) -> bool:
    if isinstance(own, LRScheduler):
        names = vars(own)
        return isinstance(saved, dict) and all(
            name in names and _fits(names[name], value) for name, value in saved.items()
        )
    if isinstance(own, (list, tuple)) and isinstance(saved, (list, tuple)):
        holds_schedulers = any(isinstance(one, LRScheduler) for one in own)
        return not holds_schedulers or (len(own) == len(saved) and all(map(_fits, own, saved)))
    if own is None or saved is None:
        return _is_state(own)
    return any(
        isinstance(own, kind) and isinstance(saved, kind) for kind in (Real, str, dict, np.ndarray)
    )
