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
from typing import List, Optional, Sequence

from experiments import ROOT
from experiments.horovod import environment
from experiments.horovod.digits import BOUND, COMMAND, LEAST, Result, train
from gluon_amp.base.messages import UsageError
from gluon_amp.files import atomic
from gluon_amp.training.command_line import Parser, output_file, path, status_of
from gluon_amp.training.tables.machine import describe_cpu

DTYPES = ("float16", "bfloat16")
TESTS = ["tests/training/workers/test_horovod.py", "tests/documents/test_how_to.py"]

PAGE = """# Horovod with two workers

`make horovod` writes this page. It builds Horovod from its sources in a virtual environment of its
own, and trains scikit-learn's digits with two processes over Gloo. Python {python}, {versions}.
Run on {machine}, one thread a process, {date}. The seconds depend on the load of the machine.

```sh
horovodrun --gloo --network-interface lo -np 2 -H localhost:2 \\
  python {command} \\
  --dtype DTYPE --save-dir DIR
```

| dtype | top-1 | steps | skipped | training | ended after a kill |
| :--- | ---: | ---: | ---: | ---: | ---: |
{rows}

- *top-1* is that of the last epoch, on 360 validation images. Less than {least:g} % is a failure.
- *training* is the time of the command, including the start of its processes.
- *ended after a kill*: a second run is killed twice in the middle of an epoch (SIGKILL). The first
  kill ends worker 1. After `--resume auto`, the second one ends worker 0. Each time the other
  worker prints one sentence, and the job ends. The column has the seconds until then; more than
  {bound:g} is a failure.
- After another `--resume auto`, the run ends with the parameters, accuracies, skipped steps and
  loss scale of the first one, bit for bit.
- The tests of `{tests}` pass in this environment.

[How to install Horovod, and use it with gluon_amp](../how_to/horovod.md)
"""


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
    python = environment.prepare()
    log(f"{environment.FOLDER.name}: ready after {time.perf_counter() - started:.0f} s")
    results = [train(python, dtype, options.runs / dtype, log) for dtype in DTYPES]
    test(python)
    atomic.write(options.output, render(results).encode())
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


def render(results: Sequence[Result]) -> str:
    """Return the page."""
    rows: List[str] = []
    for one in results:
        ends = " and ".join(f"{seconds:.1f} s" for seconds in one.ends)
        numbers = f"{one.top1:.2f} % | {one.steps} | {one.skipped} | {one.seconds:.0f} s | {ends}"
        rows.append(f"| {one.dtype} | {numbers} |")
    return PAGE.format(
        python=environment.PYTHON,
        versions=", ".join(f"{name} {v}" for name, v in environment.versions().items()),
        machine=describe_cpu(),
        date=datetime.date.today().isoformat(),
        command=COMMAND.replace("\n", " \\\n  "),
        rows="\n".join(rows),
        least=LEAST,
        bound=BOUND,
        tests="` and `".join(TESTS),
    )


if __name__ == "__main__":
    sys.exit(status_of("horovod", main))
