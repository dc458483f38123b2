"""Trainer states as plain data: masters, optimizer state, counters, loss scale.

They fit networks of other dtypes, as masters and the optimizer's arrays are float32 for weights of
any dtype.
"""

import copy
import warnings
from typing import Any, Dict, Sequence, Tuple, Union

import numpy as np

from gluon_amp.files.schema import (
    ANYTHING,
    ARRAY,
    COUNT,
    NAME,
    NONE,
    NUMBER,
    PLAIN,
    Either,
    Leaf,
    Mapping,
    Optional,
    allows,
    brief,
    check,
)
from gluon_amp.lowering.study import delayed_scaling
from gluon_amp.optimizer import masters
from gluon_amp.optimizer.base import cast, map_leaves
from gluon_amp.trainer import schedules
from gluon_amp.trainer.report import Skips

import mxnet as mx
from mxnet import gluon, nd

FORMAT, VERSION = "gluon_amp trainer states", 1

AMAX_HISTORY = Leaf(
    "largest magnitudes of up to 1,024 steps",
    lambda value: allows(ARRAY, value) and delayed_scaling.is_history(value),
)

# What `collect` returns.
SCHEMA = {
    "format": NAME,
    "version": COUNT,
    "optimizer": NAME,
    "settings": Mapping(NAME, PLAIN),
    "progress": Mapping(NAME, Either("a number or None", (NUMBER, NONE))),
    "counts": Mapping(COUNT, COUNT),
    "shapes": [[COUNT]],
    "states": Mapping(COUNT, (Either("None or an array", (NONE, ARRAY)), ANYTHING)),
    "loss_scale": (NAME, Mapping(NAME, PLAIN)),
    "skips": (COUNT, COUNT),
    # The name of the class of a learning rate scheduler, and its state
    "schedule": Optional((NAME, schedules.SCHEMA)),
    # Only of nets whose policy studies 8-bit formats
    "amax_histories": Optional(Mapping(NAME, AMAX_HISTORY)),
}

# Attributes of optimizers, besides `num_update`, that change during training. All other numbers are
# settings.
PROGRESS = {"Nadam": ("m_schedule",), "LARS": ("last_lr", "cur_lr")}
NOT_SETTINGS = {"rescale_grad", "aggregate_num", "allow_np_array", "num_update"}


def collect(trainer: gluon.Trainer) -> dict:
    """Return what a resumed run needs besides the parameters, as numbers and numpy arrays."""
    optimizer = trainer.optimizer
    states = {}
    for index, state in (trainer.updaters[0].states if trainer.updaters else {}).items():
        weight = trainer.parameters[index].list_data()[0]
        states[index] = map_leaves(_to_numpy, masters.split(optimizer, weight, state))
    device = trainer.contexts[0].device_id if trainer.contexts else 0
    histories = delayed_scaling.collect(trainer.parameters)
    extra: Dict[str, Any] = {"amax_histories": histories} if histories else {}
    schedule = optimizer.lr_scheduler
    if schedule is not None:
        extra["schedule"] = type(schedule).__name__, schedules.collect(schedule)
    return {
        "format": FORMAT,
        "version": VERSION,
        "optimizer": class_name(optimizer),
        "settings": _settings(optimizer),
        "progress": {name: getattr(optimizer, name) for name in progress_fields(optimizer)},
        "counts": dict(optimizer._all_index_update_counts.get(device, {})),
        "shapes": _shapes(trainer),
        "states": states,
        "loss_scale": (class_name(trainer.loss_scale), trainer.loss_scale.state_dict()),
        "skips": (trainer.skips.total, trainer.skips.in_vain),
        **extra,
    }


def restore(trainer: gluon.Trainer, saved: dict) -> None:
    """Restore what `collect` returned, for parameters of the same or of other dtypes.

    The loss scale is restored with its settings, and so is a learning rate scheduler of the saved
    class; one of another class keeps its own state. A float16 weight without a saved master keeps
    its own, or gets one with its values. A float32 weight with a saved master is set to the master
    wherever both round to the same float16.

    Raise as `check_fit` does, before anything is changed. Warn if a saved setting, such as the
    learning rate, differs: the trainer keeps its own.
    """
    check_fit(trainer, saved)
    optimizer = trainer.optimizer
    own = _settings(optimizer)
    for name, value in saved["settings"].items():
        if own.get(name) != value:
            warnings.warn(
                f"The saved {type(optimizer).__name__} had {name}={value!r}; this trainer keeps "
                f"its {own.get(name)!r}.",
                stacklevel=4,  # the line that calls load_states
            )
    # Warnings can be errors, so they come before any change.
    trainer.loss_scale.load_state_dict(saved["loss_scale"][1])
    for name, value in saved["progress"].items():
        setattr(optimizer, name, value)
    counts = {context.device_id: dict(saved["counts"]) for context in trainer.contexts}
    optimizer._all_index_update_counts = counts or {0: {}}
    optimizer._index_update_count = next(iter(optimizer._all_index_update_counts.values()))
    for device, updater in enumerate(trainer.updaters):
        updater.states = {
            index: _placed(optimizer, trainer.parameters[index], device, *state)
            for index, state in saved["states"].items()
        }
        updater.states_synced = dict.fromkeys(updater.states, True)
    if _schedule_fits(optimizer, saved):
        schedules.restore(optimizer.lr_scheduler, saved["schedule"][1])
    trainer.skips = Skips(*saved["skips"])
    delayed_scaling.restore(trainer.parameters, saved.get("amax_histories", {}))


def check_fit(
    trainer: gluon.Trainer,
    saved: dict,
    source: str = "The state",
    shapes: Union[Sequence[Tuple[int, ...]], None] = None,
) -> None:
    """Raise `ValueError` unless a trainer can continue from states of any origin.

    They have to be a result of `collect`, with the same optimizer class, kind of loss scale, shapes
    of parameters, and layout of the optimizer's state. Error messages name the `source`. `shapes`
    are those of the trainer's parameters, if the trainer does not know them all yet.
    """
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        raise ValueError(f"{source} is not the state of a gluon_amp Trainer.")
    if saved.get("version") != VERSION:
        raise ValueError(
            f"{source} has the version {brief(saved.get('version'))}, this gluon_amp reads "
            f"{VERSION}: load it with the gluon_amp that saved it."
        )
    optimizer, loss_scale = trainer.optimizer, trainer.loss_scale
    try:
        check(saved, SCHEMA, "the state")
        check(saved["progress"].get("num_update"), COUNT, "the number of updates")
    except ValueError as error:
        raise ValueError(
            f"{source} is not what a trainer's state_dict() returns ({error}): load another one."
        ) from None
    for what, theirs, own in (
        ("optimizer", saved["optimizer"], class_name(optimizer)),
        ("loss scale", saved["loss_scale"][0], class_name(loss_scale)),
    ):
        if theirs != own:
            raise ValueError(
                f"{source} has the state of the {what} {theirs}, and this trainer has "
                f"{own}: build the trainer with the same optimizer and kind of loss scale."
            )
    try:
        copy.copy(loss_scale).load_state_dict(saved["loss_scale"][1])
        if _schedule_fits(optimizer, saved):
            schedules.check_fit(optimizer.lr_scheduler, saved["schedule"][1])
    except ValueError as error:
        raise ValueError(
            f"{source} has a loss scale or a schedule that does not fit: {error}"
        ) from None
    shapes = _shapes(trainer) if shapes is None else shapes
    if shapes != [tuple(shape) for shape in saved["shapes"]]:
        raise ValueError(
            f"{source} has the shapes of {len(saved['shapes'])} parameters, which are not those of "
            f"the {len(shapes)} of this trainer: load it for the same network."
        )
    different = {*saved["states"], *saved["counts"]}.difference(range(len(shapes)))
    if different or set(saved["progress"]) != set(progress_fields(optimizer)):
        raise ValueError(
            f"{source} has counters or states that do not belong to these {len(shapes)} "
            f"parameters and {type(optimizer).__name__}: load it for the same network."
        )
    for index, (master, rest) in saved["states"].items():
        _check_layout(trainer, saved, source, index, shapes[index], master, rest)


def _check_layout(trainer, saved, source, index, shape, master, rest):
    """Raise if a state has other arrays than this optimizer creates."""
    name = trainer.parameters[index].name
    if master is not None and layout(master) != (shape, "float32"):
        raise ValueError(
            f"{source} has master weights for {name} that are not float32 of the shape {shape}: "
            "load it for the same network."
        )
    if layout(rest) != layout(new_state(trainer, index, shape)):
        different = differences(saved["settings"], _settings(trainer.optimizer))
        raise ValueError(
            f"{source} has another kind of optimizer state for {name} than this "
            f"{type(trainer.optimizer).__name__} keeps ({different or 'with the same settings'}): "
            "build the optimizer with the saved settings."
        )


def differences(saved: dict, own: dict) -> str:
    """Return a description of the settings that differ."""
    names = [name for name in sorted({*saved, *own}) if saved.get(name) != own.get(name)]
    return ", ".join(
        f"{name}={brief(saved.get(name))} and not {brief(own.get(name))}" for name in names
    )


def new_state(
    trainer: gluon.Trainer, index: int, shape: Union[Tuple[int, ...], None] = None
) -> Any:
    """Return a new state of the trainer's optimizer for one parameter, without the master."""
    optimizer, param = trainer.optimizer, trainer.parameters[index]
    weight = nd.zeros(param.shape if shape is None else shape, dtype=param.dtype)
    state = optimizer.create_state_multi_precision(index, weight)
    return masters.split(optimizer, weight, state)[1]


def layout(state: Any, dtypes: bool = True) -> Any:
    """Return a state with each array replaced by its shape and dtype, to compare it."""
    if isinstance(state, (tuple, list)):
        return [layout(item, dtypes) for item in state]
    if isinstance(state, (np.ndarray, nd.NDArray)):
        return (tuple(state.shape), np.dtype(state.dtype).name if dtypes else "array")
    return type(state).__name__


def _shapes(trainer):
    return [tuple(param.shape or ()) for param in trainer.parameters]


def _placed(optimizer, param, device, master, rest):
    """Return a saved state in the optimizer's layout for a weight, on the weight's device."""
    weight = param.list_data()[device].as_nd_ndarray()  # as MXNet's Updater creates states
    master, rest = map_leaves(lambda value: _to_ndarray(value, weight, optimizer), (master, rest))
    if np.dtype(weight.dtype) == np.float16:
        own = masters.hold(param, weight, cast(weight, "float32"))
        if master is None:
            masters.sync_master(weight, own)
        else:
            master.copyto(own)
        master = own
    elif master is not None:
        masters.widen(weight, master)
        master = None
    return masters.join(optimizer, weight, master, rest)


def _schedule_fits(optimizer, saved: dict) -> bool:
    """Return whether a state has the schedule of a class of the same name as the optimizer's."""
    own = type(optimizer.lr_scheduler).__name__
    return optimizer.lr_scheduler is not None and saved.get("schedule", ("",))[0] == own


def progress_fields(optimizer: mx.optimizer.Optimizer) -> Tuple[str, ...]:
    """Return the names of an optimizer's attributes that change during training."""
    return ("num_update", *PROGRESS.get(type(optimizer).__name__, ()))


def class_name(instance: object) -> str:
    """Return the full name of an object's class."""
    return f"{type(instance).__module__}.{type(instance).__qualname__}"


def _settings(optimizer) -> dict:
    """Return the numbers, flags and names with which an optimizer was built."""
    skipped = NOT_SETTINGS.union(progress_fields(optimizer))
    settings = {
        name: value
        for name, value in vars(optimizer).items()
        if name not in skipped and allows(PLAIN, value)
    }
    if optimizer.lr_scheduler is not None:
        # The schedule sets the rate.
        settings.pop("lr", None)
        settings["lr_scheduler"] = type(optimizer.lr_scheduler).__name__
    return settings


def _to_numpy(value):
    return value.asnumpy() if isinstance(value, nd.NDArray) else value


def _to_ndarray(value, weight, optimizer):
    if not isinstance(value, np.ndarray):
        return value
    array = nd.array(value, ctx=weight.context, dtype=value.dtype)
    if weight.stype != "default" and getattr(optimizer, "lazy_update", True):
        # As optimizers create it. MXNet's updates expect all rows in it, those of zeros too.
        array = nd.sparse.row_sparse_array((array, nd.arange(len(value))), array.shape)
    return array
