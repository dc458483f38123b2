"""Fine-tune EfficientNet-Lite0 on photographs in three dtypes, by repeated cross-validation.

    python -m experiments.photographs --output docs/results/photographs

It reads Debian's package tuxpaint-stamps-default.
"""

import argparse
import datetime
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Optional, Sequence

from experiments import pages
from experiments.photographs.fits import REPEATS, ROWS, fit
from experiments.photographs.page import MARGINS, Results, draw, parts
from experiments.photographs.stamps import FOLDER, folds, open_stamps
from gluon_amp.training.command_line import Parser, path, positive_int, status_of
from gluon_amp.training.tables.machine import describe_cpu, versions


def run(options: argparse.Namespace, command: str) -> None:
    """Train all folds, and write the tables."""
    photographs = open_stamps(options.stamps.expanduser())
    most = {row: min(REPEATS[row.training], options.repeats) for row in ROWS}
    results: Results = {row: {} for row in ROWS}
    today = datetime.date.today().isoformat()
    about = {"hardware": describe_cpu(), "versions": versions(), "date": today}
    for fold in folds(photographs, range(max(most.values()))):
        for row in ROWS:  # rows alternate, so that a slow hour affects all alike
            if fold.repeat < most[row]:
                result = fit(row, photographs, fold)
                results[row][fold.seed] = {**result, **about}
                scores = f"{result['accuracy']:.1f} %, {result['seconds']:.0f} s"
                print(f"{row.name}, repeat {fold.repeat}, fold {fold.number}: {scores}", flush=True)
    about = {"images": len(photographs.items), "digest": photographs.digest, "command": command}
    rows = [
        {"name": row.name, "settings": asdict(row), "folds": each} for row, each in results.items()
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
    add("--repeats", type=positive_int, default=max(REPEATS.values()), metavar="N", help=most)
    options = parser.parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    command = " ".join(["python -m experiments.photographs", *words])
    return status_of("photographs", lambda: run(options, command))


if __name__ == "__main__":
    sys.exit(main())
