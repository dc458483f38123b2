"""Tables for the plan of a run and its summary; the summary is also written as JSON."""

import dataclasses
import json
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Tuple

from gluon_amp.files import atomic
from gluon_amp.policy import Policy
from gluon_amp.training.command_line import WIDTH
from gluon_amp.training.runs.checkpoints import SavingError

OBSERVED_NAMES = {
    "conv_weight": "conv weights",
    "conv_compute": "computed in",
    "batchnorm": "BatchNorm",
    "logits": "logits",
    "loss": "loss",
}
_EMULATED = {
    "float16": "float16 is emulated on this CPU: same values as on a GPU, not its speed",
    "bfloat16": "bfloat16 is emulated on this CPU: same roundings as by oneDNN, not its speed",
}


def arithmetic(policy: Policy, emulated: bool) -> str:
    """Return in words how a policy runs."""
    if policy.studies:
        return "emulated on this CPU for study: its speed is not that of a device"
    return _EMULATED[policy.compute_dtype] if emulated else "native"


def dtypes_in_words(observed: Dict[str, str]) -> str:
    """Return observed dtypes in words, in the order of `OBSERVED_NAMES`."""
    return ", ".join(f"{name} {observed[key]}" for key, name in OBSERVED_NAMES.items())


def table(rows: Iterable[Tuple[str, object]]) -> str:
    """Return names and texts in two columns, `WIDTH` characters wide."""
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
    """The results of a run; the JSON file has the same fields."""

    model: str
    data: str
    dtype: str  # the requested policy
    observed_dtypes: Dict[str, str]
    emulated: bool  # on a CPU
    devices: str
    batch_size: int
    total_batch: int
    epochs: int
    lr: float
    seed: int
    top1: float  # percent of the validation images that can be read, after the last epoch
    top5: float
    top1_by_epoch: List[Optional[float]]  # None for epochs without a validation
    cross_entropy: Optional[float]  # nats, after the last epoch; None if it is not finite
    cross_entropy_by_epoch: List[Optional[float]]
    validated: int  # validation images that were read
    val_images: int
    train_images: int
    train_loss: Optional[float]  # mean over the last epoch; None if all of its steps were skipped
    loss_scale: Optional[float]  # at the end of the run; None without loss scaling
    skipped_steps: int  # because of an overflow
    steps: int
    # in training, without validation; None if nothing was trained
    images_per_second: Optional[float]
    peak_mebibytes: Optional[float]  # of this process; None if the system does not report it
    train_seconds: float  # without validation
    seconds: float

    def __str__(self) -> str:
        scale = "none" if self.loss_scale is None else f"{self.loss_scale:g}"
        study = " for study" if Policy(self.dtype).studies else ""
        how = f", emulated{study}" if self.emulated else ""
        return table(
            [
                ("model", f"{self.model} on {self.data}"),
                ("dtype", f"{self.dtype}{how}"),
                *self.scores(),
                ("loss scale", f"{scale}, {self.skipped_steps} of {self.steps} steps skipped"),
                ("speed", self.speed()),
                ("time", f"{self.seconds:.1f} s, {self.epochs} epoch{'s' * (self.epochs != 1)}"),
            ]
        )

    def scores(self) -> List[Tuple[str, object]]:
        """Return the observed dtypes and the results of the last validation, as names and texts."""
        raise NotImplementedError

    def speed(self) -> str:
        """Return the training speed in words."""
        raise NotImplementedError

    def write(self, path: Path) -> None:
        """Write the fields as JSON, completely or not at all."""
        text = json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n"
        try:
            atomic.write(path, text.encode())
        except OSError as error:
            raise SavingError(
                f"--summary-json {path} cannot be written: {error.strerror}."
            ) from None


@dataclass(frozen=True)
class ImageSummary(Summary):
    """The results of a run on images."""

    mode: str
    workers: int
    confusions: List[Dict[str, Any]]  # the pairs of classes that were confused most often
    unreadable: int  # validation images
    best_top1: float
    best_epoch: int  # counted from 0
    waited_share: Optional[float]  # of the training time, in which the devices waited for images

    def scores(self) -> List[Tuple[str, object]]:
        best = f"best {self.best_top1:.2f} % (epoch {self.best_epoch})"
        unreadable = f", {self.unreadable} unreadable" if self.unreadable else ""
        return [
            ("observed", dtypes_in_words(self.observed_dtypes)),
            ("top-1", f"{self.top1:.2f} %, {best}"),
            ("top-5", f"{self.top5:.2f} %"),
            ("validated", f"{self.validated}/{self.val_images} images{unreadable}"),
        ]

    def speed(self) -> str:
        if self.images_per_second is None:
            return "nothing was trained"
        waited = f"waited for data {100 * self.waited_share:.0f} % of the time"
        return f"{self.images_per_second:.1f} training images/s, {waited}"
