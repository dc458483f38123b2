"""Fine-tune EfficientNet-Lite0 on photographs in three dtypes, by repeated cross-validation.

    python -m experiments.photographs --output docs/results/photographs

It reads Debian's package tuxpaint-stamps-default. A killed run resumes: finished folds are not
repeated.
"""

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

from experiments.photographs.fits import ROWS, Row, fit
from experiments.photographs.report import Results, write
from experiments.photographs.stamps import FOLDER, Fold, Photographs, folds, open_stamps
from experiments.results.record import read_json
from experiments.results.runs import alone_in, interruptible
from gluon_amp.command_line import Parser, UsageError, path, positive_int, status_of, whole
from gluon_amp.files import atomic
from gluon_amp.recipes.interruption import RunInterruptedError

Task = Tuple[Row, Photographs, Fold, Path]


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Read the command line and run it; return the status of the process."""
    parser = Parser(description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    add("--output", type=path, metavar="DIR", default=Path("results/photographs"))
    add("--stamps", type=path, metavar="DIR", default=FOLDER, help="default: %(default)s")
    add(
        "--repeats",
        type=positive_int,
        metavar="N",
        help="at most N repeats of the cross-validation (default: those of each row)",
    )
    add(
        "--parallel",
        type=whole(1, 1024),
        default=1,
        metavar="N",
        help="processes, each with one thread (default: one process with all threads)",
    )
    options = parser.parse_args(arguments)
    command = " ".join(sys.argv[1:] if arguments is None else map(str, arguments))
    try:
        with interruptible():
            return status_of("photographs", lambda: run(options, command))
    except RunInterruptedError as error:
        print(f"photographs: {error}", file=sys.stderr)
        return error.status


def run(options: argparse.Namespace, command: str) -> None:
    """Train the folds that are missing, and write the tables."""
    photographs = open_stamps(options.stamps.expanduser())
    tasks = plan(photographs, options.output / "folds", options.repeats)
    with alone_in(options.output):
        missing = [task for task in tasks if not finished(task)]
        print(f"{len(tasks) - len(missing)} of {len(tasks)} folds are finished", flush=True)
        train(missing, options.parallel)
        results: Results = {}
        for row, _, fold, file in tasks:
            results.setdefault(row, {})[fold.seed] = read_json(file)["result"]
        print(write(results, photographs, options.output, f"python -m {__package__} {command}"))


def plan(photographs: Photographs, folder: Path, most: Optional[int]) -> List[Task]:
    """Return every fold of every row; rows alternate, so that a slow hour affects all alike."""
    repeats = {row: min(row.training.repeats, most or row.training.repeats) for row in ROWS}
    return [
        (row, photographs, fold, folder / row.name / f"repeat-{fold.repeat}-{fold.number}.json")
        for fold in folds(photographs, max(repeats.values()))
        for row in ROWS
        if fold.repeat < repeats[row]
    ]


def finished(task: Task) -> bool:
    """Return whether a fold has a result; one of other settings is a `UsageError`."""
    row, photographs, _, file = task
    if not file.exists():
        return False
    if read_json(file).get("settings") != row.settings(photographs):
        raise UsageError(
            f"{file} has a result of other settings or photographs: choose another --output, or "
            "remove it."
        )
    return True


def train(tasks: Sequence[Task], parallel: int) -> None:
    """Train folds, in this process or in several."""
    if parallel == 1:
        for done, task in enumerate(tasks, 1):
            print(f"[{done}/{len(tasks)}] {work(task)}", flush=True)
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes
    with ProcessPoolExecutor(parallel, get_context("spawn")) as pool:
        futures = [pool.submit(work, task) for task in tasks]
        try:
            for done, future in enumerate(futures, 1):
                print(f"[{done}/{len(tasks)}] {future.result()}", flush=True)
        except BaseException:
            for future in futures:
                future.cancel()
            raise


def work(task: Task) -> str:
    """Train one fold and write its result; return it in words."""
    row, photographs, fold, file = task
    result = fit(row, photographs, fold)
    file.parent.mkdir(parents=True, exist_ok=True)
    saved = {"settings": row.settings(photographs), "result": result}
    atomic.write(file, (json.dumps(saved, indent=1) + "\n").encode())
    return (
        f"{row.name}, repeat {fold.repeat}, fold {fold.number}: {result['accuracy']:.1f} %, "
        f"{result['seconds']:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
