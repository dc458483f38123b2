"""The record of one run, read from the files in its directory.

log.txt has the curve and the times, also those of a run that was resumed. summary.json has what
was trained. run.json has the row that the run belongs to and its hardware.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from gluon_amp.command_line import UsageError
from gluon_amp.recipes import log

LOG, SUMMARY, RUN = "log.txt", "summary.json", "run.json"
COUNTS = ("train_images", "val_images")


def _pattern(line: str) -> "re.Pattern":
    """Turn a format of `gluon_amp.recipes.log` into a pattern that matches its numbers."""
    parts = re.split(r"%[dfgs]", line)
    return re.compile(r"(\S+)".join(map(re.escape, parts)))


SPEED, VALIDATION = map(_pattern, (log.SPEED, log.VALIDATION))


@dataclass(frozen=True)
class Configuration:
    """A row of the table: what its runs have in common. They differ in the seed.

    Attributes
    ----------
    name : str
        Unique in its recipe; also the folder of the runs.
    label : str
        For the table and the figure's legend.
    dtype : str
        Compute dtype.
    batch : int
        Of all devices together.
    """

    name: str
    label: str
    dtype: str
    batch: int


@dataclass(frozen=True)
class RunRecord:
    """The result of one run, or the reason why it failed.

    Attributes
    ----------
    configuration : Configuration
    seed : int
    hardware : str
        In words.
    data : str
        Name of the data set and its numbers of training and validation samples, which distinguish
        data sets of one name.
    model : str
    emulated : bool
        Whether a CPU computed with float16 values.
    errors : tuple of float
        Top-1 error in percent after each epoch.
    seconds : float or None
        Training time without validation; None if other runs shared the machine.
    samples_per_second : float or None
        None if other runs shared the machine.
    peak_memory : int or None
        Bytes; None on GPUs, whose memory is not measured.
    skipped, steps : int
        Steps skipped because of an overflow, and all steps.
    failure : str or None
        Why there is no result.
    """

    configuration: Configuration
    seed: int
    hardware: str
    data: str = ""
    model: str = ""
    emulated: bool = False
    errors: Tuple[float, ...] = ()
    seconds: Optional[float] = None
    samples_per_second: Optional[float] = None
    peak_memory: Optional[int] = None
    skipped: int = 0
    steps: int = 0
    failure: Optional[str] = None

    @property
    def top1(self) -> float:
        """Accuracy in percent after the last epoch."""
        return 100 - self.errors[-1]


def read_log(text: str) -> Dict[str, Dict[int, float]]:
    """Return 'error' (top-1, percent) and 'seconds' (of training) of every epoch.

    If an epoch was trained again after an interruption, its last line counts.
    """
    return {
        "error": {int(match[1]): 100 * float(match[2]) for match in VALIDATION.finditer(text)},
        "seconds": {int(match[1]): float(match[3]) for match in SPEED.finditer(text)},
    }


def read(folder: Path) -> RunRecord:
    """Read a run's directory.

    Raises
    ------
    UsageError
        A file is missing or damaged, or the log has no validation of an epoch.
    """
    about = read_json(folder / RUN)
    try:
        configuration = Configuration(**about["configuration"])
        seed, hardware, failure = about["seed"], about["hardware"], about["failure"]
        if failure is not None:
            return RunRecord(configuration, seed, hardware, failure=failure)
        summary, text = read_json(folder / SUMMARY), _text(folder / LOG)
        epochs = read_log(text)
        missing = set(range(summary["epochs"])) - epochs["error"].keys()
        if missing:
            raise UsageError(
                f"{folder / LOG} has no validation of epoch {min(missing)}: remove {folder} to "
                "train it again."
            )
        alone = about["parallel"] == 1
        return RunRecord(
            configuration,
            seed,
            hardware,
            data=_data(summary),
            model=summary["model"],
            emulated=summary["emulated"],
            errors=tuple(epochs["error"][epoch] for epoch in range(summary["epochs"])),
            seconds=sum(epochs["seconds"].values()) if alone else None,
            samples_per_second=summary["images_per_second"] if alone else None,
            peak_memory=about["peak_memory"],
            skipped=summary["skipped_steps"],
            steps=summary["steps"],
        )
    except (KeyError, TypeError) as error:
        raise UsageError(f"{folder} is not a run of results_table.py: {error}.") from None


def read_all(root: Path) -> List[RunRecord]:
    """Read every run in a directory and below it, in the order of their paths.

    Raises
    ------
    UsageError
        There is no run, or one is damaged.
    """
    folders = sorted(path.parent for path in Path(root).glob(f"**/{RUN}"))
    if not folders:
        raise UsageError(f"{root} holds no finished run.")
    return [read(folder) for folder in folders]


def _data(summary: Dict) -> str:
    counts = [f"{summary[name]:,}" for name in COUNTS if name in summary]
    return f"{summary['data']} ({' + '.join(counts)} samples)" if counts else summary["data"]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None


def read_json(path: Path) -> Dict:
    """Return the object in a JSON file.

    Raises
    ------
    UsageError
        The file cannot be read, or it is not a JSON object.
    """
    text = _text(path)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UsageError(f"{path} is damaged: it is not a JSON object.")
    return value
