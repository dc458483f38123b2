"""What one run came to, read from its directory: log.txt, summary.json and run.json.

The log has the curve and the times, also of a run that went on after it was killed; the summary
says what was trained; run.json says which row the run belongs to and what it ran on.
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
    """Turn a format of `gluon_amp.recipes.log` into a pattern that finds its numbers."""
    parts = re.split(r"%[dfgs]", line)
    return re.compile(r"(\S+)".join(map(re.escape, parts)))


SPEED, VALIDATION = map(_pattern, (log.SPEED, log.VALIDATION))


@dataclass(frozen=True)
class Configuration:
    """A row of the table: what all of its runs have in common but the seed.

    Attributes
    ----------
    name : str
        Unique in its recipe, and the runs' folder.
    label : str
        For the table and the figure's key.
    dtype : str
        Computed in.
    batch : int
        Of all devices together.
    """

    name: str
    label: str
    dtype: str
    batch: int


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes
    ----------
    configuration : Configuration
    seed : int
    hardware : str
        What it ran on, in words.
    data : str
        Its name, and how many samples it has to train on and to validate with, so that two data
        sets of one name are told apart.
    model : str
    emulated : bool
        float16 values computed by a CPU.
    errors : tuple of float
        Top-1 error in percent after each epoch.
    seconds : float or None
        Of training, validation left out; None where other runs shared the machine.
    samples_per_second : float or None
        None likewise.
    peak_memory : int or None
        Bytes; None on GPUs, whose memory is not measured.
    skipped, steps : int
        Steps undone because of an overflow, out of all.
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
        """Percent after the last epoch."""
        return 100 - self.errors[-1]


def read_log(text: str) -> Dict[str, Dict[int, float]]:
    """Return 'error' (top-1, percent) and 'seconds' (of training) of every epoch.

    Of an epoch that was trained again after an interruption the last line counts.
    """
    return {
        "error": {int(found[1]): 100 * float(found[2]) for found in VALIDATION.finditer(text)},
        "seconds": {int(found[1]): float(found[3]) for found in SPEED.finditer(text)},
    }


def read(folder: Path) -> Run:
    """Read a run's directory.

    Raises
    ------
    UsageError
        A file is missing or damaged, or the log does not tell of every epoch.
    """
    about = read_json(folder / RUN)
    try:
        configuration = Configuration(**about["configuration"])
        seed, hardware, failure = about["seed"], about["hardware"], about["failure"]
        if failure is not None:
            return Run(configuration, seed, hardware, failure=failure)
        summary, text = read_json(folder / SUMMARY), _text(folder / LOG)
        epochs = read_log(text)
        missing = set(range(summary["epochs"])) - epochs["error"].keys()
        if missing:
            raise UsageError(
                f"{folder / LOG} has no validation of epoch {min(missing)}: remove {folder}, and "
                "it is trained again."
            )
        alone = about["parallel"] == 1
        return Run(
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


def read_all(root: Path) -> List[Run]:
    """Read every run under a directory, in the order of their paths.

    Raises
    ------
    UsageError
        There is none, or one is damaged.
    """
    found = sorted(path.parent for path in Path(root).glob(f"**/{RUN}"))
    if not found:
        raise UsageError(f"{root} holds no finished run.")
    return [read(folder) for folder in found]


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
        It cannot be read, or it holds something else.
    """
    text = _text(path)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UsageError(f"{path} is damaged: it is not a JSON object.")
    return value
