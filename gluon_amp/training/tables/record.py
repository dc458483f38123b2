"""The record of one run, read from the files in its directory.

summary.json has what was trained, the curve and the times, also those of a run that was resumed.
run.json has the row that the run belongs to and its hardware.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from gluon_amp.base.messages import UsageError

LOG, SUMMARY, RUN = "log.txt", "summary.json", "run.json"


@dataclass(frozen=True)
class Configuration:
    """A row of the table: what its runs have in common. They differ in the seed."""

    name: str  # unique in its recipe; also the folder of the runs
    label: str  # for the table and the figure's legend
    dtype: str  # compute dtype
    batch: int  # of all devices together


@dataclass(frozen=True)
class RunRecord:
    """The result of one run, or the reason why it failed."""

    configuration: Configuration
    seed: int
    hardware: str  # in words
    versions: str = ""  # of the software, in words; earlier runs did not record it
    date: str = ""  # on which the run ended, as in 2026-01-31; earlier runs did not record it
    # the name and the numbers of samples, which distinguish data sets of one name
    data: str = ""
    model: str = ""
    emulated: bool = False  # whether a CPU computed with float16 values
    errors: Tuple[float, ...] = ()  # top-1 in percent after each epoch
    # of the validation samples after each epoch, mean in nats; None where it is not finite; earlier
    # runs did not record it
    cross_entropies: Tuple[Optional[float], ...] = ()
    parallel: int = 1  # runs at a time; the times of several that share a machine are not compared
    seconds: Optional[float] = None  # training time without validation
    samples_per_second: Optional[float] = None
    peak_memory: Optional[int] = None  # bytes; None on GPUs, whose memory is not measured
    skipped: Optional[int] = None  # steps skipped because of an overflow
    steps: Optional[int] = None  # all steps
    failure: Optional[str] = None  # why there is no result

    @property
    def top1(self) -> float:
        """Accuracy in percent after the last epoch."""
        return 100 - self.errors[-1]

    @property
    def cross_entropy(self) -> Optional[float]:
        """Validation cross-entropy after the last epoch, in nats; None if there is none."""
        return self.cross_entropies[-1] if self.cross_entropies else None

    def epochs_to(self, top1: float) -> Optional[int]:
        """Return after how many epochs the accuracy first was `top1` percent or more, if ever."""
        reached = (n for n, error in enumerate(self.errors, 1) if 100 - error >= top1)
        return next(reached, None)

    @classmethod
    def restored(cls, values: Dict) -> "RunRecord":
        """Return the record whose `dataclasses.asdict`, written as JSON, this is."""
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**{**values, "configuration": Configuration(**values["configuration"])})


def read(folder: Path) -> RunRecord:
    """Read a run's directory."""
    about = read_json(folder / RUN)
    try:
        row = (
            Configuration(**about["configuration"]),
            about["seed"],
            about["hardware"],
            about.get("versions", ""),
            about.get("date", ""),
        )
        if about["failure"] is not None:
            return RunRecord(*row, failure=about["failure"])
        summary = read_json(folder / SUMMARY)
        return RunRecord(
            *row,
            data=_data(summary),
            model=summary["model"],
            emulated=summary["emulated"],
            errors=tuple(100 - top1 for top1 in summary["top1_by_epoch"]),
            cross_entropies=tuple(summary.get("cross_entropy_by_epoch", ())),
            parallel=about["parallel"],
            seconds=summary["train_seconds"],
            samples_per_second=summary["images_per_second"],
            peak_memory=about["peak_memory"],
            skipped=summary["skipped_steps"],
            steps=summary["steps"],
        )
    except (KeyError, TypeError) as error:
        raise UsageError(f"{folder} is not a run of `gluon-amp results`: {error}.") from None


def read_all(root: Path) -> List[RunRecord]:
    """Read every run in a directory and below it, in the order of their paths."""
    folders = sorted(path.parent for path in Path(root).glob(f"**/{RUN}"))
    if not folders:
        raise UsageError(f"{root} holds no finished run.")
    return [read(folder) for folder in folders]


def _data(summary: Dict) -> str:
    sizes = [summary[name] for name in ("train_images", "val_images") if name in summary]
    counts = " + ".join(f"{size:,}" for size in sizes)
    return f"{summary['data']} ({counts} samples)" if counts else summary["data"]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None


def read_json(path: Path) -> Dict:
    """Return the object in a JSON file; if it has none, that is a `UsageError`."""
    text = _text(path)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UsageError(f"{path} is damaged: it is not a JSON object.")
    return value
