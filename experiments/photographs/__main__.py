"""Fine-tune EfficientNet-Lite0 on photographs in three dtypes, by repeated cross-validation.

    python -m experiments.photographs --output docs/results/photographs

It reads Debian's package tuxpaint-stamps-default. A killed run resumes: each fold writes a file
when it is finished, and finished folds are not repeated.
"""

import argparse
import datetime
import json
import sys
from pathlib import Path
from typing import List, NamedTuple, Optional, Sequence

from experiments import pages
from experiments.photographs.fits import REPEATS, ROWS, Row, fit
from experiments.photographs.page import MARGINS, Results, draw, parts
from experiments.photographs.stamps import FOLDER, Fold, Photographs, folds, open_stamps
from gluon_amp.base.messages import UsageError
from gluon_amp.files import atomic
from gluon_amp.training.command_line import Parser, path, positive_int, status_of
from gluon_amp.training.runs.interruption import RunInterruptedError
from gluon_amp.training.tables.machine import describe_cpu, versions
from gluon_amp.training.tables.record import read_json
from gluon_amp.training.tables.runs import alone_in, interruptible


class Task(NamedTuple):
    """A fold of a row, and the file of its result."""

    row: Row
    fold: Fold
    file: Path


def plan(photographs: Photographs, folder: Path, most: Optional[int] = None) -> List[Task]:
    """Return every fold of every row; rows alternate, so that a slow hour affects all alike.

    Of a row's repeats of the cross-validation, the first `most` are trained.
    """
    repeats = {row: range(REPEATS[row.training])[:most] for row in ROWS}
    return [
        Task(row, fold, folder / row.name / f"repeat-{fold.repeat}-{fold.number}.json")
        for fold in folds(photographs, range(max(map(len, repeats.values()))))
        for row, each in repeats.items()
        if fold.repeat in each
    ]


def finished(task: Task, photographs: Photographs) -> bool:
    """Return whether a fold has a result; one of other settings is a `UsageError`."""
    if not task.file.exists():
        return False
    if read_json(task.file).get("settings") != task.row.settings(photographs):
        raise UsageError(
            f"{task.file} has a result of other settings or photographs: choose another --output, "
            "or remove it."
        )
    return True


def train(task: Task, photographs: Photographs) -> str:
    """Train one fold and write its result; return it in words."""
    row, fold, file = task
    result = {
        **fit(row, photographs, fold),
        "hardware": describe_cpu(),
        "versions": versions(),
        "date": datetime.date.today().isoformat(),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    saved = {"settings": row.settings(photographs), "result": result}
    atomic.write(file, (json.dumps(saved, indent=1) + "\n").encode())
    return (
        f"{row.name}, repeat {fold.repeat}, fold {fold.number}: {result['accuracy']:.1f} %, "
        f"{result['seconds']:.0f} s"
    )


def run(options: argparse.Namespace, command: str) -> None:
    """Train the folds that are missing, and write the tables."""
    photographs = open_stamps(options.stamps.expanduser())
    tasks = plan(photographs, options.output / "folds", options.repeats)
    with alone_in(options.output):
        missing = [task for task in tasks if not finished(task, photographs)]
        print(f"{len(tasks) - len(missing)} of {len(tasks)} folds are finished", flush=True)
        for done, task in enumerate(missing, 1):
            print(f"[{done}/{len(missing)}] {train(task, photographs)}", flush=True)
        results: Results = {}
        for task in tasks:
            results.setdefault(task.row, {})[task.fold.seed] = read_json(task.file)["result"]
        about = {"images": len(photographs.items), "digest": photographs.digest, "command": command}
        rows = [
            {"name": row.name, "settings": row.settings(photographs), "folds": each}
            for row, each in results.items()
        ]
        values = {"about": about, "margins": MARGINS, "rows": rows}
        words = "results/photographs/photographs.md"
        pages.write(options.output / "photographs", words, parts(values), values, draw)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Read the command line and run it; return the status of the process."""
    parser = Parser(prog="photographs", description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    output = Path("results/photographs")
    add("--output", type=path, metavar="DIR", default=output, help="default: %(default)s")
    stamps = "categories of stamps (default: %(default)s)"
    add("--stamps", type=path, metavar="DIR", default=FOLDER, help=stamps)
    most = "at most N repeats of the cross-validation (default: those of each row)"
    add("--repeats", type=positive_int, metavar="N", help=most)
    options = parser.parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    command = " ".join(["python -m experiments.photographs", *words])
    try:
        with interruptible():
            return status_of("photographs", lambda: run(options, command))
    except RunInterruptedError as error:
        print(f"photographs: {error}", file=sys.stderr)
        return error.status


if __name__ == "__main__":
    sys.exit(main())
