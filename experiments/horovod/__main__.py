"""Build Horovod, train the digits with two workers, kill one, resume, and write the page.

    make horovod

The first call builds Horovod, which takes a few minutes. Later calls use the same environment.
"""

import datetime
import hashlib
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from experiments import ROOT, environments, pages
from experiments.horovod.launch import Ended, Kill, run
from gluon_amp.base.messages import UsageError
from gluon_amp.training.command_line import Parser, status_of
from gluon_amp.training.tables.machine import describe_cpu

DTYPES = ("float16", "bfloat16")
TESTS = ["tests/training/workers/test_horovod.py", "tests/documents/test_how_to.py"]
RUNS = ROOT / "results" / "horovod"

COMMAND = """scripts/train_imagenet.py --dataset digits --kv-store horovod
--batch-size 128 --log-interval 1 --save-batches 2"""
LEAST = 97.0  # percent of the validation images
# A worker is killed in the middle of these epochs of 24, which have 6 batches.
KILLS = [Kill(1, "Epoch 8/24  batch 4/6"), Kill(0, "Epoch 16/24  batch 3/6")]
SENTENCE = "another worker has ended or cannot be reached"

LONGEST = 1200.0  # seconds of a training
BOUND = 60.0  # seconds in which the job ends after a kill

# The fields of a summary that depend on the clock or on the machine's memory.
OF_THE_CLOCK = {"seconds", "train_seconds", "images_per_second", "waited_share", "peak_mebibytes"}


def train(python: Path, dtype: str, folder: Path) -> None:
    """Train in a dtype, without and with kills; what the folder held is removed.

    If the runs do not show what they should, that is a `UsageError`.
    """
    shutil.rmtree(folder, ignore_errors=True)

    def job(name: str, *options: str, kill: Optional[Kill] = None) -> Ended:
        target = folder / name
        target.mkdir(parents=True, exist_ok=True)
        words = [*COMMAND.split(), "--dtype", dtype, "--save-dir", str(target)]
        words += ["--summary-json", str(target / "summary.json"), *options]
        return run(python, words, LONGEST, kill=kill)

    whole = job("whole")
    check(whole.status == 0, "the training failed", whole)
    digest, summary = outcome(folder / "whole")
    print(f"{dtype}: top-1 {summary['top1']:.2f} %, {whole.seconds:.0f} s", flush=True)
    check(summary["top1"] >= LEAST, f"top-1 is below {LEAST:g} %", whole)
    resume: List[str] = []
    for kill in KILLS:
        lost = job("killed", *resume, kill=kill)
        check(lost.status > 0, "the killed job went on", lost)
        check(lost.seconds < BOUND, f"the killed job lasted more than {BOUND:g} s", lost)
        said = [line for line in lost.log if SENTENCE in line]
        check(len(said) == 1, "the other worker did not say what happened", lost)
        print(f"{dtype}: killed worker {kill.worker}; {lost.seconds:.1f} s later: {said[0]}")
        resume = ["--resume", "auto"]
    resumed = job("killed", *resume)
    check(resumed.status == 0, "the resumed training failed", resumed)
    same = outcome(folder / "killed") == (digest, summary)
    check(same, "the resumed training has other bits", resumed)


def check(holds: bool, sentence: str, ended: Ended) -> None:
    """Raise `UsageError` with the end of a job's log unless a condition holds."""
    if not holds:
        last = "\n".join(ended.log[-40:])
        raise UsageError(f"{sentence} (status {ended.status}); the end of its log:\n{last}")


def outcome(folder: Path) -> Tuple[str, Dict[str, Any]]:
    """Return a digest of the trained parameters' file, and the summary but for its times."""
    (params,) = folder.glob("*.params")
    digest = hashlib.sha256(params.read_bytes()).hexdigest()
    summary = json.loads((folder / "summary.json").read_text())
    return digest, {name: value for name, value in summary.items() if name not in OF_THE_CLOCK}


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run everything and write the page; return 0 unless something failed."""
    Parser(prog="horovod", description=__doc__.splitlines()[0]).parse_args(arguments)
    started = time.perf_counter()
    python = environments.of_horovod()
    print(f"Horovod is ready after {time.perf_counter() - started:.0f} s", flush=True)
    for dtype in DTYPES:
        train(python, dtype, RUNS / dtype)
    command = [str(python), "-m", "pytest", "-k", "horovod", *TESTS]
    if subprocess.run(command, cwd=ROOT).returncode:
        raise UsageError(f"a test of {' or '.join(TESTS)} failed.")
    pages.write(pages.DOCS / "how_to" / "horovod", "how_to/horovod.md", parts())
    return 0


def parts() -> pages.Parts:
    """Return the parts of the page."""
    versions = environments.horovod_versions().items()
    names = [f"Python {environments.HOROVOD_PYTHON}", *(f"{name} {v}" for name, v in versions)]
    return {
        "versions": ", ".join(names),
        "machine": describe_cpu(),
        "date": datetime.date.today().isoformat(),
    }


if __name__ == "__main__":
    sys.exit(status_of("horovod", main))
