"""Trainer states in a file: masters, optimizer state, counters, loss scale.

A file is an archive of numbers (`gluon_amp.files.archive`); reading it executes nothing. It fits
networks of other dtypes: masters and the optimizer's arrays are float32 whatever the weights are.
Files of stock MXNet are read, too.
"""

import copy
import warnings

import numpy as np

from gluon_amp.files import archive, atomic
from gluon_amp.files.schema import (
    ANYTHING,
    ARRAY,
    COUNT,
    NAME,
    NONE,
    NUMBER,
    PLAIN,
    Either,
    Mapping,
    allows,
    brief,
    check,
)
from gluon_amp.optimizer import MasterOptimizer, masters
from gluon_amp.trainer import stock_states
from gluon_amp.trainer.report import Skips

from mxnet import nd

FORMAT, VERSION = "gluon_amp trainer states", 1
FILE = archive.Kind(
    FORMAT,
    VERSION,
    header="gluon_amp_states.json",
    foreign="is truncated or was not written by a Trainer's save_states, gluon_amp's or stock "
    "MXNet's: load another file, and a checkpoint with amp.load_checkpoint",
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
}

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
    optimizer = trainer.optimizer
    states = {}
    for index, state in (trainer.updaters[0].states if trainer.updaters else {}).items():
        weight = trainer.parameters[index].list_data()[0]
        states[index] = _map(_to_numpy, masters.split(optimizer, weight, state))
    device = trainer.contexts[0].device_id if trainer.contexts else 0
    return {
        "format": FORMAT,
        "version": VERSION,
        "optimizer": _class_name(optimizer),
        "settings": _settings(optimizer),
        "progress": {name: getattr(optimizer, name) for name in _progress(optimizer)},
        "counts": dict(optimizer._all_index_update_counts.get(device, {})),
        "shapes": _shapes(trainer),
        "states": states,
        "loss_scale": (_class_name(trainer.loss_scale), trainer.loss_scale.state_dict()),
        "skips": (trainer.skips.total, trainer.skips.at_floor),
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
        See `check_fit`. Nothing is changed then.

    Warns
    -----
    UserWarning
        When the saved learning rate, weight decay or another setting differs: the trainer's own is
        kept.
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
    # Warnings may be errors, so nothing has been changed before them.
    trainer.loss_scale.load_state_dict(saved["loss_scale"][1])
    for name, value in saved["progress"].items():
        setattr(optimizer, name, value)
    counts = {context.device_id: dict(saved["counts"]) for context in trainer.contexts}
    optimizer._all_index_update_counts = counts or {0: {}}
    optimizer._index_update_count = next(iter(optimizer._all_index_update_counts.values()))
    for device, updater in enumerate(trainer.updaters):
        updater.states = {
            index: _placed(optimizer, trainer.parameters[index].list_data()[device], *state)
            for index, state in saved["states"].items()
        }
        updater.states_synced = dict.fromkeys(updater.states, True)
    trainer.skips = Skips(*saved["skips"])


def write(path, saved: dict) -> None:
    """Write states to a file, which is either the old or the complete new one."""
    arrays = {}
    header = {"trainer": archive.pack(saved, arrays, "trainer")}
    atomic.write(path, archive.encode(FILE, header, arrays))


def read(path, trainer) -> dict:
    """Read a file of `write`, or of stock MXNet for a trainer like this one.

    Parameters
    ----------
    path : str or os.PathLike
    trainer : Trainer
        Source of what a stock file lacks: the loss scale, and the counters of a `Module`.

    Returns
    -------
    dict
        What `collect` returns; `restore` has to check whether it fits.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        When it is truncated, damaged, forged or something else.
    """
    with open(path, "rb") as file:
        start = file.read(len(stock_states.MAGIC))
        if start == stock_states.MAGIC:
            return _from_stock(path, start + file.read(), trainer)
    header, arrays = archive.read(FILE, path)
    try:
        check(header, {"trainer": ANYTHING}, "the header")
        saved = archive.unpack(header["trainer"], arrays)
        check(saved, SCHEMA, "the state")
    except ValueError as error:
        raise archive.malformed(path, error) from None
    return saved


def _from_stock(path, data: bytes, trainer) -> dict:
    """Return states of stock MXNet as `collect` returns those of this trainer."""
    if FORMAT.encode() in data[:100]:
        raise ValueError(
            f"{path} is of a gluon_amp that pickled its trainer states, which this one does not "
            "read, as a pickle can execute anything: save them with amp.save_checkpoint there."
        )
    try:
        stock = stock_states.read(data)
    except ValueError as error:
        raise ValueError(
            f"{path} is a pickle that stock MXNet's save_states did not write or that is damaged "
            f"({error}): load another file."
        ) from None
    saved = collect(trainer)
    optimizer = trainer.optimizer
    fields, apart = {}, _from_stock_layout
    if stock.optimizer is not None:
        fields, kind = stock.optimizer.fields, stock.optimizer.class_name
        if kind == _class_name(optimizer) and isinstance(optimizer, MasterOptimizer):
            apart = _from_own_layout
        elif kind not in _same_kinds(optimizer):
            saved["optimizer"] = kind
        if fields.get("lr_scheduler") is not None:
            fields = {name: value for name, value in fields.items() if name != "lr"}
        saved["counts"] = _by_index(path, fields.get("_index_update_count"), trainer)
        saved["progress"] = {name: fields.get(name) for name in _progress(optimizer)}
    # The states show what multi_precision was; it changes no result of float32 weights.
    names = [name for name in saved["settings"] if name in fields and name != "multi_precision"]
    saved["settings"] = {name: fields[name] for name in names if allows(PLAIN, fields[name])}
    saved["states"] = {
        index: apart(state, _fresh(trainer, index), trainer, index)
        for index, state in _by_index(path, stock.states, trainer).items()
    }
    return saved


def _by_index(path, values, trainer) -> dict:
    """Return what stock MXNet has numbered or named, by this trainer's numbers."""
    params = trainer.parameters
    index = {id(param): k for k, param in enumerate(params)}
    keys = {param.name: k for k, param in enumerate(params)}
    keys.update((k, index[id(param)]) for k, param in enumerate(trainer.stock_order))
    unknown = [key for key in values if key not in keys] if isinstance(values, dict) else [None]
    if unknown:
        raise ValueError(
            f"{path} has states of other parameters than the {len(params)} of this trainer: load "
            "it for the same network."
        )
    return {keys[key]: value for key, value in values.items()}


def _same_kinds(optimizer):
    """Return the names of the classes whose states an optimizer can continue from."""
    name = type(optimizer).__name__
    return {_class_name(optimizer), f"mxnet.optimizer.optimizer.{name}"}


def _from_own_layout(state, fresh, trainer, index):
    """Split a state that a stock Trainer has saved of an optimizer of gluon_amp."""
    return (state[0], tuple(state[1:])) if isinstance(state, tuple) and state else (None, state)


def _from_stock_layout(state, fresh, trainer, index):
    """Split a state of stock MXNet into (master or None, the rest).

    `fresh` is the rest of a new state of this trainer's optimizer. A file does not say which
    weights were float16, but only their states hold a master and a rest.
    """
    own = isinstance(trainer.optimizer, MasterOptimizer)
    # MXNet's SGD keeps its momentum without a tuple around it, and None where there is none.
    bare = own and len(fresh) < 2
    rest = (fresh[0] if fresh else None) if bare else fresh
    master = np.zeros(trainer.parameters[index].shape, np.float32)
    second = masters.keeps_master_second(trainer.optimizer)
    with_master = (rest, master) if second else (master, rest)
    found = None
    if _layout(state, dtypes=False) == _layout(with_master, dtypes=False):
        found, state = reversed(state) if second else state
    elif _layout(state, dtypes=False) != _layout(rest, dtypes=False):
        return None, state  # of another kind, which `check_fit` reports
    if bare:
        state = () if state is None else (state,)
    return _as_float32(found), _map(_as_float32, state)


def _as_float32(value):
    # Float16 weights without masters had a state in float16.
    low = isinstance(value, np.ndarray) and value.dtype == np.float16
    return value.astype(np.float32) if low else value


def check_fit(trainer, saved: dict, source="The state", shapes=None) -> None:
    """Check whether this trainer can continue from states of any origin.

    Parameters
    ----------
    trainer : Trainer
    saved : dict
        What `collect` returned.
    source : str
        Where they come from, for the error message.
    shapes : list of tuple of int, optional
        Shapes of the trainer's parameters, if some are still unknown to it.

    Raises
    ------
    ValueError
        One sentence: for something else than `collect` returned, for another optimizer class or
        kind of loss scale, parameters of other shapes, another layout of the optimizer's state.
    """
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        raise ValueError(f"{source} is not states that a gluon_amp Trainer has saved.")
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
        ("optimizer", saved["optimizer"], _class_name(optimizer)),
        ("loss scale", saved["loss_scale"][0], _class_name(loss_scale)),
    ):
        if theirs != own:
            raise ValueError(
                f"{source} has the state of the {what} {theirs}, and this trainer has "
                f"{own}: build the trainer with the same optimizer and kind of loss scale."
            )
    try:
        copy.copy(loss_scale).load_state_dict(saved["loss_scale"][1])
    except ValueError as error:
        raise ValueError(f"{source} has a loss scale that does not fit: {error}") from None
    shapes = _shapes(trainer) if shapes is None else shapes
    if shapes != [tuple(shape) for shape in saved["shapes"]]:
        raise ValueError(
            f"{source} is of {len(saved['shapes'])} parameters, and not of these {len(shapes)} "
            "or not of their shapes: load it for the same network."
        )
    different = {*saved["states"], *saved["counts"]}.difference(range(len(shapes)))
    if different or set(saved["progress"]) != set(_progress(optimizer)):
        raise ValueError(
            f"{source} has counters or states of something else than these {len(shapes)} "
            f"parameters and {type(optimizer).__name__}: load it for the same network."
        )
    for index, (master, rest) in saved["states"].items():
        _check_layout(trainer, saved, source, index, shapes[index], master, rest)


def _check_layout(trainer, saved, source, index, shape, master, rest):
    """Refuse states with other kinds of arrays than this optimizer creates."""
    name = trainer.parameters[index].name
    if master is not None and _layout(master) != (shape, "float32"):
        raise ValueError(
            f"{source} has master weights for {name} that are not float32 of the shape {shape}: "
            "load it for the same network."
        )
    if _layout(rest) != _layout(_fresh(trainer, index, shape)):
        different = differences(saved["settings"], _settings(trainer.optimizer))
        raise ValueError(
            f"{source} has another kind of optimizer state for {name} than this "
            f"{type(trainer.optimizer).__name__} keeps ({different or 'with the same settings'}): "
            "build the optimizer with the saved settings."
        )


def differences(saved: dict, own: dict) -> str:
    """Describe which settings differ."""
    names = [name for name in sorted({*saved, *own}) if saved.get(name) != own.get(name)]
    return ", ".join(
        f"{name}={brief(saved.get(name))} and not {brief(own.get(name))}" for name in names
    )


def _fresh(trainer, index, shape=None):
    """A new state of this trainer's optimizer for one parameter, without the master."""
    optimizer, param = trainer.optimizer, trainer.parameters[index]
    weight = nd.zeros(param.shape if shape is None else shape, dtype=param.dtype)
    state = optimizer.create_state_multi_precision(index, weight)
    return masters.split(optimizer, weight, state)[1]


def _layout(state, dtypes=True):
    if isinstance(state, (tuple, list)):
        return [_layout(item, dtypes) for item in state]
    if isinstance(state, (np.ndarray, nd.NDArray)):
        return (tuple(state.shape), np.dtype(state.dtype).name if dtypes else "array")
    return type(state).__name__


def _shapes(trainer):
    return [tuple(param.shape or ()) for param in trainer.parameters]


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
    """The numbers, flags and names that an optimizer was built with."""
    skipped = NOT_SETTINGS.union(_progress(optimizer))
    settings = {
        name: value
        for name, value in vars(optimizer).items()
        if name not in skipped and allows(PLAIN, value)
    }
    if optimizer.lr_scheduler is not None:
        # The rate itself comes from the schedule then.
        settings.pop("lr", None)
        settings["lr_scheduler"] = type(optimizer.lr_scheduler).__name__
    return settings


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
