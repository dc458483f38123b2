"""Loading a checkpoint into a net and its trainer, after all checks."""

import logging
import os
from typing import Any, Dict, List, Union

import numpy as np

from gluon_amp.base.array_kinds import of_kind_for
from gluon_amp.base.messages import did_you_mean, first_few
from gluon_amp.base.shapes import shape_fits
from gluon_amp.checkpoint.contents import Saved, parameters_of, policies_of, read, trained_names
from gluon_amp.checkpoint.names import check_order, newest
from gluon_amp.optimizer import masters
from gluon_amp.optimizer.base import cast
from gluon_amp.policy import PRESETS, STRING_KEYS
from gluon_amp.trainer import states
from gluon_amp.trainer.ema import averages_of
from gluon_amp.trainer.scaled_trainer import check_scaled

from mxnet import autograd, gluon, nd

logger = logging.getLogger("gluon_amp")


def load_checkpoint(
    path: Union[str, "os.PathLike[str]"], net: gluon.Block, trainer: gluon.Trainer
) -> Dict[str, Any]:
    """Restore a file of `save_checkpoint`, bit for bit; training then continues as before.

    Everything is checked before anything is changed: after an error, net and trainer are as they
    were.

    Parameters
    ----------
    path : str or os.PathLike
        With `'{step}'` in the file's name, the file with the highest step is loaded.
    net : Block
        Of the same structure, cast with the same policy. Its pins may differ, as the file holds
        float32 masters. It may be uninitialized, and on other devices. If the number of devices
        differs, running statistics are averaged, as MXNet's `save_parameters` does.
    trainer : Trainer
        Of the same parameters in any order, with the same optimizer class and kind of loss scale.
        It keeps its learning rate, weight decay and other settings, and a log line names those that
        differ. The loss scale is restored whole, with growth interval and bounds, and so is a
        learning rate scheduler of the saved class.

    Returns
    -------
    dict
        The `extra` of `save_checkpoint`.

    Raises
    ------
    FileNotFoundError
        When there is no such file.
    TypeError
        For a trainer without a loss scale.
    ValueError
        For a truncated, damaged, forged or foreign file, or one of another net, policy, optimizer
        or loss scale.

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
    check_order("load_checkpoint", path)
    path = newest(os.path.abspath(os.fspath(path)))
    check_scaled(trainer, "load_checkpoint")
    saved = read(path)
    params = parameters_of(net)
    trained = trained_names(params, trainer)
    _check_parameters(path, saved, params)
    _check_policy(path, saved.policies, net)
    own = states.collect(trainer)
    _check_trained(path, saved.trained, trained)
    state = _state_for(trained, params, saved)
    states.check_fit(trainer, state, path, state["shapes"])

    _log_differences(path, saved, own, net)
    state = {**state, "settings": own["settings"]}  # logged above, so `restore` need not warn
    values = saved.parameters
    with autograd.pause():
        for name, param in params.items():
            _set(param, values[name])
        trainer.load_state_dict(state)
        for name in set(trained).difference(saved.trainer["states"]):
            if np.dtype(params[name].dtype) == np.float16:
                for weight in params[name].list_data():
                    wide = cast(weight.as_nd_ndarray(), "float32")
                    held = masters.hold(params[name], weight, wide)
                    held[:] = nd.array(values[name][0], weight.context, "float32")
        for name, param in params.items():
            # After the trainer, whose kvstore starts by copying the first device's values to all.
            _set_each_device(param, values[name])
    _restore_averages(path, saved, params, trainer)
    return saved.extra


def read_extra(path: Union[str, "os.PathLike[str]"]) -> Dict[str, Any]:
    """Return the `extra` of a checkpoint, after a check of the whole file."""
    return read(os.path.abspath(os.fspath(path))).extra


def _state_for(trained: List[str], params, saved: Saved) -> dict:
    """Return a saved state for `Trainer.load_state_dict` of a trainer of these parameters."""
    position = {name: k for k, name in enumerate(trained)}
    optimizer_states = {}
    for name, rest in saved.trainer["states"].items():
        # The saved float32 values are the masters, even if the weight was float32 when saved.
        low = np.dtype(params[name].dtype) == np.float16
        master = saved.parameters[name][0].astype(np.float32) if low else None
        optimizer_states[position[name]] = (master, rest)
    return {
        **saved.trainer,
        "states": optimizer_states,
        "counts": {position[name]: count for name, count in saved.trainer["counts"].items()},
        "shapes": [saved.parameters[name][0].shape for name in trained],
    }


def _restore_averages(path, saved: Saved, params, trainer) -> None:
    """Restore the averages of the trainer's `EMA`s; those that were not saved begin anew."""
    averages = averages_of(trainer)
    for number, ema in enumerate(averages):
        values = saved.averages[number] if number < len(saved.averages) else {}
        ema.load({params[name].name: value for name, value in values.items()})
    warning = "no average for an amp.EMA of this trainer, which begins with the loaded weights."
    if len(averages) < len(saved.averages):
        warning = (
            "averaged weights, which were left out: build amp.EMA(net, trainer) before loading it "
            "to get them."
        )
    if len(averages) != len(saved.averages):
        logger.warning("%s has %s", os.path.basename(path), warning)


def _set(param, values: List[np.ndarray]) -> None:
    """Set a parameter on all devices, initialized or not."""
    dtype = np.dtype(param.dtype)
    value = np.mean(values, axis=0, dtype=np.float64) if len(values) > 1 else values[0]
    with np.errstate(over="ignore"):
        value = value.astype(dtype)
    param._load_init(of_kind_for(param, nd.array(value, dtype=dtype)), None)
    if param.grad_req == "add":
        param.zero_grad()


def _set_each_device(param, values: List[np.ndarray]) -> None:
    """Set each device to its own value, if there is one for each."""
    arrays = param.list_data()
    if len(values) == len(arrays) > 1:
        for array, value in zip(arrays, values):
            array.as_nd_ndarray()[:] = nd.array(value, dtype=array.dtype)


# ------------------------------------------------------------------------------------- checks


def _check_parameters(path, saved: Saved, params) -> None:
    missing = [name for name in params if name not in saved.parameters]
    surplus = [name for name in saved.parameters if name not in params]
    if missing or surplus:
        difference = f"this one has no {first_few(surplus)}"
        if missing:
            difference = f"it has no {first_few(missing)}{did_you_mean(missing[0], surplus)}"
        raise ValueError(
            f"{path} is of another net, since {difference}: load it into a net of the saved "
            "structure."
        )
    for name, param in params.items():
        value = saved.parameters[name][0]
        if not shape_fits(param.shape, value.shape):
            raise ValueError(
                f"{path} is of another net, since it has {name} with the shape {value.shape} and "
                f"not {tuple(param.shape)}: load it into a net of the saved sizes."
            )
        if not np.can_cast(value.dtype, param.dtype, "same_kind"):
            raise ValueError(
                f"{path} has {name} in {value.dtype.name} and not in "
                f"{np.dtype(param.dtype).name}: load it into a net of the saved dtypes."
            )


def _check_policy(path, policies, net) -> None:
    saved, own = (
        {block: tuple(fields["dtypes"]) for block, fields in each.items()}
        for each in (policies, policies_of(net))
    )
    if saved != own:
        theirs = _policy_names(saved)
        raise ValueError(
            f"{path} is of a net cast with {theirs}, and this net is cast with "
            f"{_policy_names(own)}: cast it with {theirs} before building its trainer (once "
            "loaded, amp.cast(net, 'float32') keeps every bit of the masters)."
        )


def _policy_names(policies: Dict[str, tuple]) -> str:
    """Return names of policies, and of the blocks that each of them casts."""
    known = {dtypes: name for name, dtypes in reversed(list(PRESETS.items()))}
    blocks: Dict[str, List[str]] = {}
    for block, dtypes in policies.items():
        pairs = (f"{key}={dtype}" for key, dtype in zip(STRING_KEYS, dtypes))
        blocks.setdefault(repr(known.get(dtypes) or ",".join(pairs)), []).append(block)
    named = [
        name if where == [""] else f"{name} in {', '.join(where)}" for name, where in blocks.items()
    ]
    return " and ".join(named or ["'float32'"])


def _check_trained(path, saved, trained) -> None:
    different = set(saved).symmetric_difference(trained)
    if different:
        raise ValueError(
            f"The trainer saved in {path} had {len(saved)} parameters and this one has "
            f"{len(trained)}, different in {first_few(sorted(different))}: build it with the same."
        )


def _log_differences(path, saved: Saved, own, net) -> None:
    """Log in one line the settings and pins that differ; this run keeps its own."""
    different = states.differences(saved.trainer["settings"], own["settings"])
    pins = [fields["pins"] for fields in policies_of(net).values()]
    if [fields["pins"] for fields in saved.policies.values()] != pins:
        different = ", ".join(filter(None, [different, "other pins in its policy"]))
    if different:
        logger.warning(
            "%s was saved with %s; this run keeps its own.", os.path.basename(path), different
        )
