"""Trainer states in a file: masters, optimizer state, counters, loss scale.

A file holds numbers and arrays and nothing that runs. It fits networks of other dtypes: masters and
the optimizer's arrays are float32 whatever the weights are.
"""

import pickle
import warnings

import numpy as np

from gluon_amp import atomic, masters

from mxnet import nd

FORMAT, VERSION = "gluon_amp trainer states", 1

# Attributes of optimizers that move as training goes on; all other numbers are settings.
PROGRESS = {"Nadam": ("m_schedule",), "LARS": ("last_lr", "cur_lr")}
NOT_SETTINGS = {"rescale_grad", "aggregate_num", "allow_np_array", "num_update"}


def collect(trainer) -> dict:
    """Everything that a resumed run needs besides the parameters, as numbers and numpy arrays.

    A learning rate scheduler is not in it: MXNet's follow from the update counter.

    Parameters
    ----------
    trainer : Trainer
    """
    optimizer = trainer._optimizer
    states = {}
    for index, state in (trainer._updaters[0].states if trainer._updaters else {}).items():
        weight = trainer._params[index].list_data()[0]
        states[index] = _map(_to_numpy, masters.split(optimizer, weight, state))
    device = trainer._contexts[0].device_id if trainer._contexts else 0
    return {
        "format": FORMAT,
        "version": VERSION,
        "optimizer": _class_name(optimizer),
        "settings": _settings(optimizer),
        "progress": {name: getattr(optimizer, name) for name in _progress(optimizer)},
        "counts": dict(optimizer._all_index_update_counts.get(device, {})),
        "shapes": [tuple(p.shape) for p in trainer._params],
        "states": states,
        "loss_scale": (_class_name(trainer._loss_scale), trainer._loss_scale.state_dict()),
        "skips": (trainer._skipped_total, trainer._skips_at_floor),
    }


def restore(trainer, saved: dict) -> None:
    """Give a trainer what `collect` returned, for these or for differently typed parameters.

    The loss scale comes with its settings. Float16 weights without saved masters get masters from
    themselves. Saved masters of weights that are float32 now give them back their bits, where the
    weights are their roundings.

    Parameters
    ----------
    trainer : Trainer
    saved : dict

    Raises
    ------
    ValueError
        For another optimizer class or kind of loss scale, or parameters of other shapes. Nothing
        is changed then.

    Warns
    -----
    UserWarning
        When the saved learning rate, weight decay or another setting differs: the trainer's own is
        kept.
    """
    _check(trainer, saved)
    _, scale_state = saved["loss_scale"]
    trainer._loss_scale.load_state_dict(scale_state)
    optimizer = trainer._optimizer
    own = _settings(optimizer)
    for name, value in saved["settings"].items():
        if own.get(name) != value:
            warnings.warn(
                f"The saved {type(optimizer).__name__} had {name}={value!r}; this trainer keeps "
                f"its {own.get(name)!r}.",
                stacklevel=4,  # the line that calls load_states
            )
    for name, value in saved["progress"].items():
        setattr(optimizer, name, value)
    counts = {context.device_id: dict(saved["counts"]) for context in trainer._contexts}
    optimizer._all_index_update_counts = counts or {0: {}}
    optimizer._index_update_count = next(iter(optimizer._all_index_update_counts.values()))
    for device, updater in enumerate(trainer._updaters):
        updater.states = {
            index: _placed(optimizer, trainer._params[index].list_data()[device], *state)
            for index, state in saved["states"].items()
        }
        updater.states_synced = dict.fromkeys(updater.states, True)
    trainer._skipped_total, trainer._skips_at_floor = saved["skips"]


def write(path, saved: dict) -> None:
    """Write states to a file, which is either the old or the complete new one."""
    atomic.write(path, pickle.dumps(saved, protocol=4))


def read(path) -> dict:
    """Read a file that `write` wrote.

    Raises
    ------
    ValueError
        When it is truncated or something else.
    """
    with open(path, "rb") as file:
        try:
            return _NumbersOnly(file).load()
        except Exception as error:
            raise ValueError(
                f"{path} is truncated or was not written by a gluon_amp Trainer's save_states "
                f"({error}): load another file."
            ) from None


def _check(trainer, saved):
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        raise ValueError("These are not states that a gluon_amp Trainer has saved.")
    if saved["version"] != VERSION:
        raise ValueError(
            f"The trainer states have version {saved['version']}, this gluon_amp reads {VERSION}: "
            "load them with the gluon_amp that saved them."
        )
    own = (_class_name(trainer._optimizer), _class_name(trainer._loss_scale))
    theirs = (saved["optimizer"], saved["loss_scale"][0])
    if own != theirs:
        raise ValueError(
            f"The states are of {theirs[0]} with {theirs[1]}, this trainer has {own[0]} with "
            f"{own[1]}: build the trainer with the same optimizer and kind of loss scale."
        )
    shapes = [tuple(p.shape) for p in trainer._params]
    if shapes != [tuple(shape) for shape in saved["shapes"]]:
        raise ValueError(
            f"The states are of {len(saved['shapes'])} parameters, and not of these {len(shapes)} "
            "or not of their shapes: load them for the same network."
        )


def _placed(optimizer, weight, master, rest):
    """A saved state as the optimizer wants it for this weight, on the weight's device."""
    master, rest = _map(lambda value: _to_ndarray(value, weight.context), (master, rest))
    if np.dtype(weight.dtype) == np.float16:
        master = weight.astype("float32") if master is None else master
    elif master is not None:
        masters.widen(weight, master)
        master = None
    return masters.join(optimizer, weight, master, rest)


def _progress(optimizer):
    return ("num_update", *PROGRESS.get(type(optimizer).__name__, ()))


def _class_name(thing):
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _settings(optimizer) -> dict:
    """The numbers, flags and schedule that an optimizer was built with."""
    skipped = NOT_SETTINGS.union(_progress(optimizer))
    settings = {
        name: value
        for name, value in vars(optimizer).items()
        if name not in skipped and isinstance(value, (bool, int, float, str, type(None)))
    }
    if optimizer.lr_scheduler is not None:
        # The rate itself comes from the schedule then.
        settings.pop("lr", None)
        settings["lr_scheduler"] = type(optimizer.lr_scheduler).__name__
    return settings


_NUMPY_NAMES = ("_reconstruct", "ndarray", "dtype", "scalar")


class _NumbersOnly(pickle.Unpickler):
    """Reads numbers, containers and numpy arrays, and runs no code that a file may ask for."""

    def find_class(self, module, name):
        if module.split(".")[0] == "numpy" and name in _NUMPY_NAMES:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it holds a {module}.{name}")


def _map(function, value):
    """Apply a function to the leaves of nested tuples and lists."""
    if isinstance(value, (list, tuple)):
        return type(value)(_map(function, item) for item in value)
    return function(value)


def _to_numpy(value):
    return value.asnumpy() if isinstance(value, nd.NDArray) else value


def _to_ndarray(value, context):
    if isinstance(value, np.ndarray):
        return nd.array(value, ctx=context, dtype=value.dtype)
    return value
