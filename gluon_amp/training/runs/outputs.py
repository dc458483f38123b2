"""The files that a run writes: checked before it trains, written whole when it ends."""

import contextlib
import importlib
import os
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Callable, Iterator, List, NamedTuple, Tuple

from gluon_amp.base.messages import UsageError, from_extra
from gluon_amp.casting.cast import cast
from gluon_amp.files import atomic
from gluon_amp.inspection.figures import OTHER, STYLE, SUPPORT
from gluon_amp.training.command_line import output_file
from gluon_amp.training.runs import log
from gluon_amp.training.runs.checkpoints import SavingError
from gluon_amp.training.runs.history import History
from gluon_amp.training.runs.options import Options, flag_of

import mxnet as mx
from mxnet.gluon import HybridBlock


class Output(NamedTuple):
    """A file to write at the end of a run; a run fails without a required one."""

    write: Callable[[], object]
    required: bool = True


# The packages that write outputs, and the extras that bring them
PACKAGES = {"plot": ("matplotlib", "results"), "tensorboard": ("tensorboardX", "tensorboard")}


def check_outputs(recipe: Options) -> None:
    """Raise `UsageError` now for outputs that could not be written after hours of training.

    Nothing is created, as a run that cannot begin should leave nothing.
    """
    for name, (package, extra) in PACKAGES.items():
        if getattr(recipe, name, None) is not None:
            with from_extra(extra, f"--{name} needs {package}"):
                importlib.import_module(package)
    for name in ("summary_json", "log_json", "logging_file", "plot"):
        path = getattr(recipe, name, None)
        if path is not None:
            _check_writable(path, name)
    for name in ("save_dir", "tensorboard", "export"):
        folder = getattr(recipe, name, None)
        if folder is not None:
            exists = next(each for each in (folder, *folder.absolute().parents) if each.exists())
            if not exists.is_dir():
                raise UsageError(f"{flag_of(name)} {folder} cannot be created: {exists} is a file.")
            _check_writable(exists / "parameters", name)


def _check_writable(path: Path, name: str) -> None:
    try:
        output_file(str(path))
    except ArgumentTypeError as error:
        raise UsageError(f"{flag_of(name)} {error}.") from None


def write_outputs(outputs: List[Output]) -> None:
    """Write all outputs that can be written; raise the error of a required one afterwards."""
    errors = []
    for output in outputs:
        try:
            output.write()
        except SavingError as error:
            log.logger.warning("%s", error)
            errors += [error] if output.required else []
    if errors:
        raise errors[0]


@contextlib.contextmanager
def saving(what: str) -> Iterator[None]:
    """Turn the errors of the system and of MXNet while a file is written into `SavingError`."""
    try:
        yield
    except (OSError, mx.MXNetError) as error:
        reason = getattr(error, "strerror", None) or "no room on the disk?"
        raise SavingError(f"{what} cannot be written: {reason}.") from None


def write_config(recipe: Options) -> None:
    """Write the options of a run to args.yaml beside its checkpoints, for ``--config``."""
    path = recipe.save_dir / "args.yaml"
    with saving(str(path)):
        atomic.write(path, recipe.as_config().encode())


def save_parameters(net: HybridBlock, path: Path) -> None:
    """Write a network's float32 parameters, a whole file or none."""
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with saving(str(path)):
            net.save_parameters(str(unfinished))
            mx.nd.load(str(unfinished))  # MXNet does not notice a full disk
            os.replace(unfinished, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            unfinished.unlink()


def export(net: HybridBlock, policy: str, folder: Path, name: str, shape: Tuple[int, ...]) -> None:
    """Write ``NAME-POLICY`` and ``NAME-float32``, each a symbol and its parameters.

    Stock MXNet loads both by `SymbolBlock.imports`. The network is in float32 afterwards, with
    every bit of its masters. `shape` is (channels, height, width) of an image.
    """
    context = next(iter(net.collect_params().values())).list_ctx()[0]
    for dtype in dict.fromkeys((policy, "float32")):
        cast(net, dtype)
        net.hybridize()
        net(mx.nd.zeros((1, *shape), ctx=context)).wait_to_read()
        prefix = folder / f"{name}-{dtype}"
        with saving(f"--export {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            net.export(str(prefix), remove_amp_cast=False)  # the casts are the policy
            mx.nd.load(f"{prefix}-0000.params")  # MXNet does not notice a full disk


def draw_errors(history: History, path: Path, title: str) -> None:
    """Draw the errors of each epoch: top-1 of training, top-1 and top-5 of validation."""
    import matplotlib.style

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    validated = {e: v for e, v in enumerate(history.validated) if v is not None}
    first = len(history.validated) - len(history.trained)
    epochs = range(first, first + len(history.trained))
    training_errors = [100 * (1 - result.accuracy) for result in history.trained]
    with matplotlib.style.context(STYLE):
        figure, panel = plt.subplots(figsize=(7, 4.2), layout="constrained")
        panel.plot(epochs, training_errors, color=SUPPORT, label="training, top-1")
        for name, colour in (("top1", "black"), ("top5", OTHER)):
            errors = [100 * (1 - getattr(result, name)) for result in validated.values()]
            label = f"validation, {name[:3]}-{name[3:]}"
            panel.plot(list(validated), errors, color=colour, marker=".", label=label)
        panel.set(xlabel="epoch", ylabel="error in %", title=title)
        panel.set_ylim(bottom=0)
        panel.legend()
    try:
        with saving(f"--plot {path}"):
            figure.savefig(path)
    finally:
        plt.close(figure)
