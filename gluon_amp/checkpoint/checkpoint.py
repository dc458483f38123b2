"""One file for everything that a run needs to go on: parameters, masters, optimizer, loss scale.

The file is written beside the old one and renamed, so that a crash or a full disk leaves the old
one. It is an archive of numbers: see `gluon_amp.files.archive`. Nothing in it is code.
"""

import logging
import os
import re
from typing import Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from gluon_amp.casting.binding import binding_of
from gluon_amp.casting.statistics import is_statistic
from gluon_amp.files import archive, atomic
from gluon_amp.files.schema import ANYTHING, COUNT, NAME, TEXT, Mapping, check
from gluon_amp.host import host_copy
from gluon_amp.messages import did_you_mean, some
from gluon_amp.policy import PRESETS
from gluon_amp.trainer import ScaledSteps, states

from mxnet import autograd, nd

logger = logging.getLogger("gluon_amp")

FILE = archive.Kind(
    "gluon_amp checkpoint",
    1,
    header="gluon_amp_checkpoint.json",
    foreign="was not written by amp.save_checkpoint: use net.load_parameters for MXNet's .params "
    "files, and trainer.load_states for states alone",
)
STEP = "{step}"

# What the header holds besides format and version; `trainer` and `extra` are packed.
SCHEMA = {
    "policies": Mapping(NAME, {"dtypes": (NAME, NAME, NAME), "pins": [([NAME], [NAME], NAME)]}),
    "parameters": Mapping(NAME, {"dtype": NAME, "arrays": [NAME]}),
    "trained": [NAME],
    "trainer": ANYTHING,
    "extra": ANYTHING,
}
# Where `states.collect` has the index of a parameter, a checkpoint has its name.
TRAINER_SCHEMA = {
    **states.SCHEMA,
    "states": Mapping(NAME, ANYTHING),
    "counts": Mapping(NAME, COUNT),
}
del TRAINER_SCHEMA["shapes"]


def save_checkpoint(path, net, trainer, keep: Optional[int] = None, **extra) -> str:
    """Write the state of a net and its trainer to one file, which is complete or not there.

    Call it between steps: half accumulated gradients are not saved.

    Parameters
    ----------
    path : str or os.PathLike
        In an existing folder. `'{step}'` in the file's name becomes the number of updates made, as
        in `'run/resnet-{step}.ckpt'`; without it the previous file is replaced.
    net : Block
        Holds every parameter that the trainer updates; others, and running statistics, are saved
        too.
    trainer : Trainer
    keep : int
        Of the files with `{step}`, only so many remain: the one just written and those with the
        highest steps below it. The others are removed once the new file is safe on the disk.
    **extra
        Whatever else the run wants back: numbers, strings, None, numpy arrays, and lists, tuples
        and dicts of them. For exact random numbers save `numpy_state=np.random.get_state()`, and
        call `mx.random.seed(step)` at a step that is known, as MXNet's generator cannot be read.

    Returns
    -------
    str
        The path of the file.

    Raises
    ------
    TypeError
        A trainer without a loss scale, or an `extra` that cannot be saved.
    ValueError
        Parameters without values or outside the net, `keep` without `{step}`, or an `extra` of
        lists or dicts more than 64 deep in each other.
    OSError
        The file cannot be written; an earlier one is as it was.

    Examples
    --------
    >>> import gluon_amp as amp
    >>> import mxnet as mx
    >>> net = amp.cast(mx.gluon.nn.Dense(2, in_units=3), 'float16')
    >>> net.initialize()
    >>> trainer = amp.Trainer(net.collect_params(), 'adam')
    >>> path = amp.save_checkpoint('{step}.ckpt', net, trainer, keep=2, epoch=7)
    >>> amp.load_checkpoint(path, net, trainer)
    {'epoch': 7}
    """
    folder, name = os.path.split(os.path.abspath(os.fspath(path)))
    _check_trainer(trainer, "save_checkpoint")
    if keep is not None:
        if not isinstance(keep, int) or isinstance(keep, bool) or keep < 1:
            raise ValueError(f"keep must be a whole number of at least 1, received {keep!r}.")
        if STEP not in name:
            raise ValueError(
                f"keep={keep} needs files with different names: put {STEP} into the name, as in "
                f"'{os.path.splitext(name)[0]}-{STEP}.ckpt', received {name!r}."
            )
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"There is no folder {folder}: create it before saving to it.")
    step = trainer.optimizer.num_update
    target = os.path.join(folder, name.replace(STEP, str(step)))
    data = archive.encode(FILE, *_collect(net, trainer, extra))
    try:
        atomic.write(target, data)
    except OSError as error:
        raise type(error)(
            error.errno,
            f"The checkpoint of {len(data) / 1e6:.1f} MB was not written ({error.strerror}), and "
            "what was there before is unchanged",
            target,
        ) from error
    if keep is not None:
        for old, old_path in _numbered(folder, name)[:-keep]:
            if old < step:
                os.unlink(old_path)
    return target


def load_checkpoint(path, net, trainer) -> dict:
    """Continue from a file that `save_checkpoint` wrote, bit for bit as if nothing had happened.

    Everything is checked before anything is changed: where an error is raised, net and trainer are
    as they were.

    Parameters
    ----------
    path : str or os.PathLike
        With `'{step}'` in the file's name the one with the highest step.
    net : Block
        Of the same structure, cast with the same policy; its pins may be others, as the file holds
        float32 masters. It may be deferred, and on other devices than the saved one: where their
        number differs, running statistics are averaged, as MXNet's `save_parameters` does.
    trainer : Trainer
        Of the same parameters in any order, with the same optimizer class and kind of loss scale.
        Its learning rate, weight decay and other settings stay its own, and a log line tells which
        of them differ. The loss scale is taken over whole, growth interval and bounds included.

    Returns
    -------
    dict
        The `extra` of `save_checkpoint`.

    Raises
    ------
    FileNotFoundError
        No such file.
    TypeError
        A trainer without a loss scale.
    ValueError
        A truncated, damaged, forged or foreign file; one of another net, policy, optimizer or loss
        scale.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> net = amp.cast(mx.gluon.nn.Dense(1, in_units=2), 'float16')
    >>> net.initialize(mx.init.One())
    >>> trainer = amp.Trainer(net.collect_params(), 'sgd')
    >>> path = amp.save_checkpoint('net.ckpt', net, trainer, epoch=3)
    >>> net.weight.set_data(mx.nd.zeros((1, 2)))
    >>> extra = amp.load_checkpoint(path, net, trainer)
    >>> extra, net.weight.data().asnumpy().tolist()
    ({'epoch': 3}, [[1.0, 1.0]])
    """
    path = _newest(os.path.abspath(os.fspath(path)))
    _check_trainer(trainer, "load_checkpoint")
    saved = _read(path)
    params = _parameters(net)
    trained = _trained_names(params, trainer)
    _check_parameters(path, saved, params)
    _check_policy(path, saved.policies, net)
    own = states.collect(trainer)
    _check_trained(path, saved.trained, trained)
    state = _state_for(trained, params, saved, own)
    states.check_fit(trainer, state, path, state["shapes"])

    _tell_differences(path, saved, own, net)
    # This run's own files are kept.
    state = {**state, "settings": own["settings"]}
    values = saved.parameters
    with autograd.pause():
        for name, param in params.items():
            _set(param, values[name])
        trainer.load_state_dict(state)
        for name, param in params.items():
            # Only now, as a kvstore gives all devices the first one's values when it starts.
            _set_each_device(param, values[name])
    return saved.extra


def read_extra(path) -> dict:
    """Return the `extra` of a checkpoint, once it is certain that the whole file is what was saved.

    Parameters
    ----------
    path : str or os.PathLike

    Raises
    ------
    FileNotFoundError
        No such file.
    ValueError
        A truncated, damaged, forged or foreign file.
    """
    return _read(os.path.abspath(os.fspath(path))).extra


# ------------------------------------------------------------------------------ what is in it


class Saved(NamedTuple):
    """What a checkpoint holds, with parameter names in place of indices.

    Attributes
    ----------
    policies : dict
        See `_policies`.
    parameters : dict
        Name to a list of arrays of one shape: one for all devices, or one for each.
    trained : list of str
        What the trainer updates.
    trainer : dict
        What `states.collect` returns, without masters and shapes.
    extra : dict
    """

    policies: dict
    parameters: Dict[str, List[np.ndarray]]
    trained: List[str]
    trainer: dict
    extra: dict


def _read(path: str) -> Saved:
    """Return what is in a file, after a check that it is what was saved."""
    header, arrays = archive.read(FILE, path)
    try:
        check(header, SCHEMA, "the header")
        trainer, extra = (archive.unpack(header[part], arrays) for part in ("trainer", "extra"))
        check(trainer, TRAINER_SCHEMA, "the trainer")
        check(extra, Mapping(TEXT, ANYTHING), "extra")
        parameters = {
            name: _arrays_of(name, fields["arrays"], arrays)
            for name, fields in header["parameters"].items()
        }
        trained = header["trained"]
        if len({*trained}) < len(trained) or not parameters.keys() >= {*trained}:
            raise ValueError("the trained parameters are not some of the parameters")
        if not {*trained} >= {*trainer["states"], *trainer["counts"]}:
            raise ValueError("the optimizer has states of what is not trained")
    except ValueError as error:
        raise archive.malformed(path, error) from None
    return Saved(header["policies"], parameters, trained, trainer, extra)


def _arrays_of(name: str, keys: List[str], arrays: archive.Arrays) -> List[np.ndarray]:
    found = [arrays[key] for key in keys if key in arrays]
    if not keys or len(found) < len(keys) or len({(a.shape, a.dtype) for a in found}) > 1:
        raise ValueError(f"the arrays of {name} are missing or different")
    if found[0].dtype.kind not in "fiu" or found[0].size == 0:
        raise ValueError(f"{name} is not made of numbers")
    return found


def _collect(net, trainer, extra) -> Tuple[dict, Dict[str, np.ndarray]]:
    """Return the header and the arrays of a checkpoint."""
    params = _parameters(net)
    trained = _trained_names(params, trainer)
    missing = [name for name, param in params.items() if param._data is None]
    if missing:
        raise ValueError(
            f"{some(missing)} have no values yet: initialize the net and run it on some data "
            "before saving it."
        )
    # Brings the masters up to date, so it comes before the trainer's state is read.
    wide = trainer.master_params()
    wide = {name: wide[params[name].name] for name in trained}
    arrays = {}
    saved = {}
    for name, param in params.items():
        values = [_values(param, wide.get(name))]
        if is_statistic(param) and len(param.list_data()) > 1:
            values = [host_copy(array) for array in param.list_data()]
        keys = [f"parameters/{name}" + (f"/{k}" if k else "") for k in range(len(values))]
        arrays.update(zip(keys, values))
        saved[name] = {"dtype": np.dtype(param.dtype).name, "arrays": keys}
    state = trainer.state_dict()
    # By name and not by index, and without the masters, which are the parameters' saved values.
    state["states"] = {trained[i]: rest for i, (_, rest) in state["states"].items()}
    state["counts"] = {trained[i]: count for i, count in state["counts"].items()}
    del state["shapes"]
    header = {
        "policies": _policies(net),
        "parameters": saved,
        "trained": trained,
        "trainer": archive.pack(state, arrays, "trainer"),
        "extra": archive.pack(extra, arrays, "extra"),
    }
    return header, arrays


def _values(param, master) -> np.ndarray:
    array = param.list_data()[0]
    if master is not None and np.dtype(array.dtype) == np.float16:
        array = master
    return host_copy(array)


def _state_for(trained: List[str], params, saved: Saved, own) -> dict:
    """Turn a saved state into what `Trainer.load_state_dict` takes for these parameters."""
    index = {name: i for i, name in enumerate(trained)}
    placed = {}
    for name, rest in saved.trainer["states"].items():
        # Saved float32 values are the masters, also of weights that were float32 then.
        low = np.dtype(params[name].dtype) == np.float16
        master = saved.parameters[name][0].astype(np.float32) if low else None
        placed[index[name]] = (master, rest)
    return {
        **saved.trainer,
        "states": placed,
        "counts": {index[name]: count for name, count in saved.trainer["counts"].items()},
        "shapes": [saved.parameters[name][0].shape for name in trained],
    }


def _set(param, values: List[np.ndarray]) -> None:
    """Give a parameter its value on all devices, initialized before or not."""
    dtype = np.dtype(param.dtype)
    value = values[0]
    if len(values) > 1:
        value = np.mean(values, axis=0, dtype=np.float64)
    with np.errstate(over="ignore"):
        value = value.astype(dtype)
    param._load_init(nd.array(value, dtype=dtype), None)
    if param.grad_req == "add":
        param.zero_grad()


def _set_each_device(param, values: List[np.ndarray]) -> None:
    arrays = param.list_data()
    if len(values) == len(arrays) > 1:
        for array, value in zip(arrays, values):
            array[:] = nd.array(value, dtype=array.dtype)


def _parameters(net) -> dict:
    """Parameters by their place in the net, which other nets of the process do not change."""
    params, seen = {}, set()
    for name, param in net._collect_params_with_prefix().items():
        if id(param) not in seen:  # shared ones only once
            seen.add(id(param))
            params[name] = param
    return params


def _trained_names(params, trainer) -> List[str]:
    """Names in the net of the trainer's parameters, in the trainer's order."""
    names = {id(param): name for name, param in params.items()}
    outside = [param.name for param in trainer.parameters if id(param) not in names]
    if outside:
        raise ValueError(
            f"The trainer updates {some(outside)}, which are not in this net: give a Block that "
            "holds all the parameters of the trainer."
        )
    return [names[id(param)] for param in trainer.parameters]


def _policies(net, path: str = "") -> Dict[str, dict]:
    """Policies of the outermost cast blocks, by their path; none for a net that is not cast."""
    binding = binding_of(net)
    if binding:
        policy = binding.policy
        pins = [[list(pin.ops), list(pin.blocks), pin.dtype] for pin in policy.pins]
        dtypes = [policy.param_dtype, policy.compute_dtype, policy.output_dtype]
        return {path: {"dtypes": dtypes, "pins": pins}}
    found = {}
    for name, child in net._children.items():
        found.update(_policies(child, f"{path}.{name}" if path else name))
    return found


# ------------------------------------------------------------------------------------- checks


def _check_trainer(trainer, caller: str) -> None:
    if not isinstance(trainer, ScaledSteps):
        raise TypeError(
            f"{caller}() takes an amp.Trainer, received a {type(trainer).__name__}: build one, or "
            "call amp.init_trainer(trainer) first."
        )


def _check_parameters(path, saved: Saved, params) -> None:
    missing = [name for name in params if name not in saved.parameters]
    surplus = [name for name in saved.parameters if name not in params]
    if missing:
        raise ValueError(
            f"{path} is of another net, since it has no {some(missing)}"
            f"{did_you_mean(missing[0], surplus)}: load it into a net of the saved structure."
        )
    if surplus:
        raise ValueError(
            f"{path} is of another net, since this one has no {some(surplus)}: load it into a "
            "net of the saved structure."
        )
    for name, param in params.items():
        value = saved.parameters[name][0]
        if not _fits(param.shape, value.shape):
            raise ValueError(
                f"{path} is of another net, since it has {name} with the shape {value.shape} and "
                f"not {tuple(param.shape)}: load it into a net of the saved sizes."
            )
        if not np.can_cast(value.dtype, param.dtype, "same_kind"):
            raise ValueError(
                f"{path} has {name} in {value.dtype.name} and not in "
                f"{np.dtype(param.dtype).name}: load it into a net of the saved dtypes."
            )


def _fits(own, saved) -> bool:
    """Whether a shape, of which deferred dimensions are still unknown, can be the saved one."""
    if own is None:
        return True
    return len(own) == len(saved) and all(a in (b, 0, -1) for a, b in zip(own, saved))


def _check_policy(path, policies, net) -> None:
    saved, own = (
        {block: fields["dtypes"] for block, fields in each.items()}
        for each in (policies, _policies(net))
    )
    if saved != own:
        theirs = _policy_names(saved)
        raise ValueError(
            f"{path} is of a net cast with {theirs}, and this net is cast with "
            f"{_policy_names(own)}: cast it with {theirs} before building its trainer (once "
            "loaded, amp.cast(net, 'float32') keeps every bit of the masters)."
        )


def _policy_names(policies: Dict[str, list]) -> str:
    blocks = {}
    for block, dtypes in policies.items():
        blocks.setdefault(_policy_name(dtypes), []).append(block)
    named = [
        name if where == [""] else f"{name} in {', '.join(where)}" for name, where in blocks.items()
    ]
    return " and ".join(named or ["'float32'"])


def _policy_name(dtypes: list) -> str:
    for name, preset in PRESETS.items():
        if preset == tuple(dtypes):
            return repr(name)
    params, compute, output = dtypes
    return repr(f"params={params},compute={compute},output={output}")


def _check_trained(path, saved, trained) -> None:
    different = set(saved).symmetric_difference(trained)
    if different:
        raise ValueError(
            f"The trainer saved in {path} had {len(saved)} parameters and this one has "
            f"{len(trained)}, different in {some(sorted(different))}: build it with the same."
        )


def _tell_differences(path, saved: Saved, own, net) -> None:
    """Say in one log line what stays this run's own."""
    different = states.differences(saved.trainer["settings"], own["settings"])
    pins = [fields["pins"] for fields in _policies(net).values()]
    if [fields["pins"] for fields in saved.policies.values()] != pins:
        different = ", ".join(filter(None, [different, "other pins in its policy"]))
    if different:
        logger.warning(
            "%s was saved with %s; this run keeps its own.", os.path.basename(path), different
        )


# ------------------------------------------------------------------------------ names of files


def _numbered(folder: str, name: str) -> List[Tuple[int, str]]:
    """Steps and paths of the files that a name with `{step}` stands for, lowest step first."""
    pattern = re.compile(_pattern(name))
    found = [(pattern.fullmatch(entry), entry) for entry in os.listdir(folder)]
    return sorted((int(match[1]), os.path.join(folder, entry)) for match, entry in found if match)


def _pattern(name: str) -> str:
    first, *others = map(re.escape, name.split(STEP))
    return first + "".join((r"(\d+)" if k == 0 else r"\1") + text for k, text in enumerate(others))


def _newest(path: str) -> str:
    folder, name = os.path.split(path)
    if STEP not in name:
        return path
    found = _numbered(folder, name)
    if not found:
        raise FileNotFoundError(f"There is no checkpoint {path}: none has been saved yet.")
    return found[-1][1]
