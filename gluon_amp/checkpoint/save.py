"""Saving a checkpoint, which holds the whole state of a training in one file."""

import os
from typing import Any, Dict, Optional, Tuple, Union

import numpy as np

from gluon_amp.base.host import host_copy
from gluon_amp.base.messages import first_few
from gluon_amp.casting.statistics import is_statistic
from gluon_amp.checkpoint.contents import FILE, parameters_of, policies_of, trained_names
from gluon_amp.checkpoint.names import STEP, check_order, numbered
from gluon_amp.files import archive, atomic
from gluon_amp.trainer.ema import averages_of
from gluon_amp.trainer.loss_scale import whole_number
from gluon_amp.trainer.scaled_trainer import check_scaled

from mxnet import gluon


def save_checkpoint(
    path: Union[str, "os.PathLike[str]"],
    net: gluon.Block,
    trainer: gluon.Trainer,
    keep: Optional[int] = None,
    **extra: Any,
) -> str:
    """Write the state of a net and its trainer to one file.

    A crash or a full disk leaves the earlier file as it was. Call the function between steps, as
    gradients are not saved.

    Parameters
    ----------
    path : str or os.PathLike
        In an existing folder. In the file's name, `'{step}'` is replaced by the number of updates
        made, as in `'run/resnet-{step}.ckpt'`. Without it, an earlier file is replaced.
    net : Block
        Holds every parameter of the trainer. Its other parameters and running statistics are saved
        too.
    trainer : Trainer
        The trainer whose masters, optimizer, loss scale and counters are saved.
    keep : int
        The number of files with `{step}` to keep: the new one and those with the highest steps
        below it. Older ones are removed once the new file is on the disk.
    **extra
        Other values to save: numbers, strings, None, numpy arrays, and lists, tuples and dicts of
        them. To continue with the same random numbers, save
        `numpy_state=np.random.get_state()`, and call `mx.random.seed(step)` at a known step, as
        MXNet's generator cannot be read.

    Returns
    -------
    str
        The path of the file.

    Raises
    ------
    TypeError
        For a trainer without a loss scale, or an `extra` that cannot be saved.
    ValueError
        For parameters without values or outside the net, `keep` without `{step}`, or an `extra` of
        lists or dicts more than 64 deep in each other.
    OSError
        When the file cannot be written.

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
    check_order("save_checkpoint", path)
    folder, name = os.path.split(os.path.abspath(os.fspath(path)))
    check_scaled(trainer, "save_checkpoint")
    if keep is not None:
        whole_number("keep", keep, 1)
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
        for old, old_path in numbered(folder, name)[:-keep]:
            if old < step:
                os.unlink(old_path)
    return target


def _collect(net, trainer, extra) -> Tuple[dict, Dict[str, np.ndarray]]:
    """Return the header and the arrays of a checkpoint."""
    params = parameters_of(net)
    trained = trained_names(params, trainer)
    missing = [name for name, param in params.items() if param._data is None]
    if missing:
        raise ValueError(
            f"{first_few(missing)} have no values yet: initialize the net and run it on some data "
            "before saving it."
        )
    masters = trainer.master_params()  # this syncs them, so it comes before `state_dict`
    wide = {name: masters[params[name].name] for name in trained}
    arrays: archive.Arrays = {}
    saved = {}
    for name, param in params.items():
        values = param.list_data() if is_statistic(param) else param.list_data()[:1]
        if name in wide and np.dtype(param.dtype) == np.float16:
            values = [wide[name]]
        keys = [f"parameters/{name}" + (f"/{k}" if k else "") for k in range(len(values))]
        arrays.update(zip(keys, map(host_copy, values)))
        saved[name] = {"dtype": np.dtype(param.dtype).name, "arrays": keys}
    state = trainer.state_dict()
    # States have names and not positions, and no masters: these are the parameters' saved values.
    state["states"] = {trained[i]: rest for i, (_, rest) in state["states"].items()}
    state["counts"] = {trained[i]: count for i, count in state["counts"].items()}
    del state["shapes"]
    header = {
        "policies": policies_of(net),
        "parameters": saved,
        "trained": trained,
        "trainer": archive.pack(state, arrays, "trainer"),
        "extra": archive.pack(extra, arrays, "extra"),
    }
    for number, ema in enumerate(averages_of(trainer)):
        averages = ema.averages
        names = [name for name, param in params.items() if param.name in averages]
        places = {name: f"averages/{number}/{name}" for name in names}
        arrays.update((at, host_copy(averages[params[name].name])) for name, at in places.items())
        header.setdefault("averages", []).append(places)
    return header, arrays
