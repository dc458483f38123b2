"""Fine-tune EfficientNet-Lite0 on photographs in three dtypes, by repeated cross-validation.

    python -m experiments.photographs --output docs/results/photographs

It reads Debian's package tuxpaint-stamps-default. A killed run resumes: finished folds are not
repeated.
"""

import argparse
import sys
from pathlib import Path
from typing import Optional, Sequence

from experiments.photographs.comparisons import Results
from experiments.photographs.fits import PILOT, TABLE
from experiments.photographs.report import as_csv, write
from experiments.photographs.run import finished, plan, train
from experiments.photographs.stamps import FOLDER, open_stamps
from gluon_amp.training.command_line import Parser, path, positive_int, status_of
from gluon_amp.training.runs.interruption import RunInterruptedError
from gluon_amp.training.tables.record import read_json
from gluon_amp.training.tables.runs import alone_in, interruptible


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
    pilot = "train other folds in float32 and float16, for pilot.csv, which sets the margins"
    add("--pilot", action="store_true", help=pilot)
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
    repeats = PILOT if options.pilot else TABLE
    tasks = plan(photographs, options.output / "folds", repeats, options.repeats)
    with alone_in(options.output):
        missing = [task for task in tasks if not finished(task)]
        print(f"{len(tasks) - len(missing)} of {len(tasks)} folds are finished", flush=True)
        train(missing)
        results: Results = {}
        for task in tasks:
            values = read_json(task.file)["result"]
            results.setdefault(task.row, {})[task.fold.seed] = values
        if options.pilot:
            (options.output / "pilot.csv").write_text(as_csv(results), encoding="utf-8")
        else:
            command = f"python -m {__package__} {command}".strip()
            print(write(results, photographs, options.output, command))


if __name__ == "__main__":
    sys.exit(main())
