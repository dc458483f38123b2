"""The network of a checkpoint, or of files of MXNet, with inputs to export it by."""

import json
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

from gluon_amp.base.messages import UsageError, first_few, reason_of
from gluon_amp.casting.cast import cast
from gluon_amp.checkpoint import contents
from gluon_amp.handover.heads import inference_symbol
from gluon_amp.training.networks import models
from gluon_amp.training.networks.language_model import RECURRENT, LanguageModel
from gluon_amp.training.runs.checkpoints import BEST, Checkpoints, Saved

import mxnet as mx
from mxnet import nd
from mxnet.gluon import HybridBlock, SymbolBlock

SEED = 0  # of the inputs
LENGTH = 16  # characters of an input of a language model


class Exported(NamedTuple):
    """A network, what to call it with, the axis of the batch in each, and what else is known."""

    net: HybridBlock
    inputs: Tuple[nd.NDArray, ...]
    batch_axes: Tuple[Optional[int], ...]
    metadata: Dict[str, str]


def of_checkpoint(path: Path, side: Optional[int], averaged: bool, batch: int) -> Exported:
    """Return the network of a checkpoint, or of the best or newest one in a folder.

    `side` is the height and width of images, for a checkpoint that does not say. `averaged` takes
    the averaged weights.
    """
    if path.is_dir():
        best = path / BEST
        newest = None if best.is_file() else Checkpoints(path, 1).newest()
        if newest is None and not best.is_file():
            raise UsageError(f"{path} has no checkpoint: give a file, or a --save-dir of a run.")
        path = newest.path if newest else best
    saved = Saved.read(path)
    file = contents.read(str(path))
    values = {name: arrays[0] for name, arrays in file.parameters.items()}
    if averaged and not file.averages:
        raise UsageError(f"{path} has no averaged weights: leave out --average.")
    values.update(file.averages[0] if averaged else {})
    mx.random.seed(SEED)
    build = _language_model if "state" in saved.progress else _classifier
    exported = build(saved, values, side, batch)
    _set(exported.net, values, exported.inputs, path)
    return exported


def _classifier(saved: Saved, values: dict, side: Optional[int], batch: int) -> Exported:
    about: Dict[str, Any] = saved.progress.get("about", {})
    shape = about.get("image_shape", side and (3, side, side))
    if not shape:
        raise UsageError(
            f"{saved.path} was written by a version that did not save the size of the images: "
            "give --input-size."
        )
    if side not in (None, shape[1]):
        raise UsageError(
            f"--input-size {side} was given, but {saved.path} is of images of {shape[1]} pixels."
        )
    net = models.build(saved.identity["model"], saved.identity["classes"])
    metadata = {"model": str(saved.identity["model"]), "data": str(saved.identity["data"])}
    if about.get("class_names"):
        metadata["classes"] = json.dumps(list(about["class_names"]), ensure_ascii=False)
    for name, value in about.get("preprocessing", {}).items():
        metadata[name] = value if isinstance(value, str) else json.dumps(list(value))
    return Exported(net, (nd.random.normal(shape=(batch, *shape)),), (0,), metadata)


def _language_model(saved: Saved, values: dict, side: Optional[int], batch: int) -> Exported:
    if "about" not in saved.progress:
        raise UsageError(
            f"{saved.path} was written by a version that did not save the sizes of the network: "
            "export it with that version, or train again."
        )
    sizes = saved.progress["about"]
    net = LanguageModel(saved.identity["classes"], **sizes)
    length = LENGTH if net.kind in RECURRENT else min(LENGTH, sizes["length"])
    words = nd.random.randint(0, saved.identity["classes"], (batch, length)).astype("float32")
    metadata = {"model": str(saved.identity["model"]), "data": str(saved.identity["data"])}
    states = net.begin(batch, mx.cpu())
    return Exported(net, (words, *states), (0, *(1 for _ in states)), metadata)


def _set(net: HybridBlock, values: dict, inputs: Sequence[nd.NDArray], path: Path) -> None:
    net.initialize()
    net(*inputs)
    params = net._collect_params_with_prefix()
    missing = [
        name
        for name, param in params.items()
        if name not in values or values[name].shape != param.shape
    ]
    if missing:
        raise UsageError(f"{path} does not hold {first_few(missing)} of the network that it names.")
    for name, param in params.items():
        param.set_data(nd.array(values[name], dtype=values[name].dtype))


def of_symbol(symbol: Path, params: Optional[Path], shapes: Sequence[Tuple[int, ...]]) -> Exported:
    """Return the network of a ``-symbol.json`` and its ``.params``, as `export` writes them."""
    if params is None or not shapes:
        raise UsageError(
            f"{symbol} needs its parameters and its inputs: give --params and --shape."
        )
    try:
        outputs = inference_symbol(mx.sym.load(str(symbol)))
        known = {name.split(":", 1)[-1] for name in nd.load(str(params))}
        names = [name for name in outputs.list_inputs() if name not in known]
        net = SymbolBlock(outputs, [mx.sym.var(name) for name in names])
        net.collect_params().load(str(params), cast_dtype=True, dtype_source="saved")
        cast(net, "float32")  # a CPU has no kernels for a network in float16
    except (mx.MXNetError, ValueError, AssertionError, OSError, RuntimeError) as error:
        raise UsageError(f"{symbol} and {params} are not a network: {reason_of(error)}.") from None
    if len(names) != len(shapes):
        raise UsageError(
            f"{symbol} has {len(names)} inputs ({first_few(names)}): give --shape for each."
        )
    mx.random.seed(SEED)
    return Exported(net, tuple(nd.random.normal(shape=s) for s in shapes), (0,) * len(shapes), {})
