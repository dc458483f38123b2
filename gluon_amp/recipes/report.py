"""The plan that is printed before training and the summary after it, as text and as JSON."""

import dataclasses
import json
import textwrap
from argparse import ArgumentTypeError
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Tuple, Union

from gluon_amp.command_line import UsageError, output_file
from gluon_amp.files import atomic
from gluon_amp.recipes.checkpoints import SavingError

WIDTH = 80
OBSERVED_NAMES = {
    "conv_weight": "conv weights",
    "conv_compute": "computed in",
    "batchnorm": "BatchNorm",
    "logits": "logits",
    "loss": "loss",
}
EMULATED = "float16 is emulated on this CPU: same values as on a GPU, not its speed"


def dtypes_in_words(observed: Dict[str, str]) -> str:
    """List observed dtypes, in the order of `OBSERVED_NAMES`."""
    return ", ".join(f"{name} {observed[key]}" for key, name in OBSERVED_NAMES.items())


def table(rows: Iterable[Tuple[str, object]]) -> str:
    """Lay out names and texts in two columns, `WIDTH` wide."""
    rows = [(name, str(text)) for name, text in rows]
    indent = max(len(name) for name, _ in rows) + 2
    return "\n".join(
        textwrap.fill(
            text, WIDTH, initial_indent=name.ljust(indent), subsequent_indent=" " * indent
        )
        for name, text in rows
    )


@dataclass(frozen=True)
class Summary:
    """What a run came to; every field is in the JSON file.

    Attributes
    ----------
    top1, top5 : float
        Percent of the validation images that can be read, after the last epoch.
    validated, unreadable, val_images : int
        How many images that counts, how many cannot be read, and how many there are.
    best_top1, best_epoch : float, int
        The best epoch's, counted from 0.
    top1_by_epoch : list
        Percent after each epoch; None where it was not validated.
    confusions : list of dict
        The pairs of classes that were confused most, if they were asked for.
    mode : str
        'hybrid', 'imperative' or 'module'.
    dtype, observed_dtypes
        The policy asked for, and the dtypes seen (see `gluon_amp.recipes.observe`).
    emulated : bool
        float16 values computed on a CPU.
    train_loss : float or None
        Mean over the last epoch; None where every one of its steps was skipped.
    loss_scale : float or None
        At the end of the run; None where the loss was not scaled.
    skipped_steps, steps : int
        Steps undone because of an overflow, out of all.
    images_per_second : float or None
        Training images by training time, validation left out; None where nothing was trained.
    waited_share : float or None
        Share of the training time in which the devices waited for images.
    peak_mebibytes : float or None
        The most memory that this process has held; None where the system does not tell.
    train_seconds : float
        All epochs, without validation.
    seconds : float
        The whole run.
    """

    model: str
    data: str
    mode: str
    dtype: str
    observed_dtypes: Dict[str, str]
    emulated: bool
    devices: str
    workers: int
    batch_size: int
    total_batch: int
    epochs: int
    lr: float
    seed: int
    top1: float
    top5: float
    top1_by_epoch: List[Optional[float]]
    confusions: List[Dict[str, Any]]
    validated: int
    unreadable: int
    val_images: int
    train_images: int
    best_top1: float
    best_epoch: int
    train_loss: Optional[float]
    loss_scale: Optional[float]
    skipped_steps: int
    steps: int
    images_per_second: Optional[float]
    waited_share: Optional[float]
    peak_mebibytes: Optional[float]
    train_seconds: float
    seconds: float

    def __str__(self) -> str:
        scale = "none" if self.loss_scale is None else f"{self.loss_scale:g}"
        return table(
            [
                ("model", f"{self.model} on {self.data}"),
                ("dtype", f"{self.dtype}{', emulated' if self.emulated else ''}"),
                ("observed", dtypes_in_words(self.observed_dtypes)),
                (
                    "top-1",
                    f"{self.top1:.2f} %, best {self.best_top1:.2f} % (epoch {self.best_epoch})",
                ),
                ("top-5", f"{self.top5:.2f} %"),
                ("validated", self._validated()),
                ("loss scale", f"{scale}, {self.skipped_steps} of {self.steps} steps skipped"),
                ("speed", self._speed()),
                ("time", f"{self.seconds:.1f} s, {self.epochs} epochs"),
            ]
        )

    def _validated(self) -> str:
        left_out = f", {self.unreadable} unreadable" if self.unreadable else ""
        return f"{self.validated}/{self.val_images} images{left_out}"

    def _speed(self) -> str:
        if self.images_per_second is None:
            return "nothing was trained"
        waited = f"waited for data {100 * self.waited_share:.0f} % of the time"
        return f"{self.images_per_second:.1f} training images/s, {waited}"

    def write(self, path: Path) -> None:
        """Write the fields as JSON: see `write_json`."""
        write_json(path, dataclasses.asdict(self))


def write_json(path: Path, values: Dict[str, Any]) -> None:
    """Write a summary as JSON, in one piece or not at all.

    Raises
    ------
    SavingError
        There is no room on the disk, for example.
    """
    text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    try:
        atomic.write(path, text.encode())
    except OSError as error:
        raise SavingError(f"--summary-json {path} cannot be written: {error.strerror}.") from None


def check_writable(path: Union[str, Path], option: str) -> None:
    """Raise `UsageError` now where a file could not be written at the end of the run."""
    try:
        output_file(str(path))
    except ArgumentTypeError as error:
        raise UsageError(f"{option} {error}.") from None
