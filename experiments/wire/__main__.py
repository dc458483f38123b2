"""Measure what distributed training exchanges, and write wire.md, wire.json and wire.png.

    python -m experiments.wire --output docs/results

It needs Linux's network namespaces; `experiments.wire.scaling` alone does not.
"""

import argparse
import datetime
import json
import sys
from pathlib import Path
from typing import Optional, Sequence

from experiments.wire import measure
from experiments.wire.figure import draw
from experiments.wire.page import page
from gluon_amp.files import atomic
from gluon_amp.training.command_line import Parser, path, status_of
from gluon_amp.training.tables.machine import describe_cpu, versions


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Read the command line and run it; return the status of the process."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = Parser(prog="wire", description=__doc__.split("\n", 1)[0])
    output = Path("results")
    parser.add_argument(
        "--output", type=path, metavar="DIR", default=output, help="default: %(default)s"
    )
    options = parser.parse_args(arguments)
    command = " ".join(["python -m experiments.wire", *arguments])
    return status_of("wire", lambda: run(options, command))


def run(options: argparse.Namespace, command: str) -> None:
    """Measure, and write the page, its values and its figure."""
    options.output.mkdir(parents=True, exist_ok=True)
    about = {
        "command": command,
        "date": datetime.date.today().isoformat(),
        "hardware": describe_cpu(),
        "versions": versions(),
    }
    values = measure.results(about, lambda line: print(line, flush=True))
    target = options.output / "wire"
    atomic.write(target.with_suffix(".json"), (json.dumps(values, indent=1) + "\n").encode())
    atomic.write(target.with_suffix(".md"), page(values, "wire.png").encode())
    draw(values, target.with_suffix(".png"))


if __name__ == "__main__":
    sys.exit(main())
