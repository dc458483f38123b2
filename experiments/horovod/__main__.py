"""Build Horovod, train the digits with two workers, kill one, resume, and write the page.

    make horovod

The first call builds Horovod, which takes a few minutes. Later calls use the same environment.
"""

import argparse
import datetime
import subprocess
import sys
import time
from pathlib import Path
from typing import Optional, Sequence

from experiments import ROOT, environments, pages
from experiments.horovod.digits import Result, train
from gluon_amp.base.messages import UsageError
from gluon_amp.training.command_line import Parser, output_file, path, status_of
from gluon_amp.training.tables.machine import describe_cpu

DTYPES = ("float16", "bfloat16")
TESTS = ["tests/training/workers/test_horovod.py", "tests/documents/test_how_to.py"]


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run everything and write the page; return 0 unless something failed."""
    parser = Parser(
        prog="horovod",
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    page = ROOT / "docs" / "results" / "horovod.md"
    add("--output", type=output_file, default=page, metavar="FILE", help="the page")
    runs = ROOT / "results" / "horovod"
    add("--runs", type=path, default=runs, metavar="DIR", help="what the runs write")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    python = environments.of_horovod()
    log(f"{environments.HOROVOD.name}: ready after {time.perf_counter() - started:.0f} s")
    results = [train(python, dtype, options.runs / dtype, log) for dtype in DTYPES]
    test(python)
    pages.write(options.output.with_suffix(""), "results/horovod.md", parts(results))
    log(f"wrote {options.output}")
    return 0


def log(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


def test(python: Path) -> None:
    """Run the tests that need Horovod; raise `UsageError` if one fails."""
    command = [str(python), "-m", "pytest", "-k", "horovod", *TESTS]
    if subprocess.run(command, cwd=ROOT).returncode:
        raise UsageError(f"a test of {' or '.join(TESTS)} failed.")


def parts(results: Sequence[Result]) -> pages.Parts:
    """Return the parts of the page."""
    versions = environments.horovod_versions().items()
    return {
        "versions": ", ".join(
            [f"Python {environments.HOROVOD_PYTHON}", *(f"{name} {v}" for name, v in versions)]
        ),
        "machine": describe_cpu(),
        "date": datetime.date.today().isoformat(),
        "runs": pages.table(
            ["dtype", "top-1", "steps", "skipped", "training", "ended after a kill"],
            [
                [
                    one.dtype,
                    f"{one.top1:.2f} %",
                    f"{one.steps}",
                    f"{one.skipped}",
                    f"{one.seconds:.0f} s",
                    " and ".join(f"{seconds:.1f} s" for seconds in one.ends),
                ]
                for one in results
            ],
        ),
    }


if __name__ == "__main__":
    sys.exit(status_of("horovod", main))
