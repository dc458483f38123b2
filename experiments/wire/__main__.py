"""Measure what distributed training exchanges, and write wire.md, wire.json and wire.png.

    python -m experiments.wire --output docs/results

It needs Linux's network namespaces; `experiments.wire.scaling` alone does not.
"""

import datetime
import sys
from pathlib import Path
from typing import Optional, Sequence

from experiments import pages
from experiments.wire import measure
from experiments.wire.page import draw, parts
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
    about = {
        "command": " ".join(["python -m experiments.wire", *arguments]),
        "date": datetime.date.today().isoformat(),
        "hardware": describe_cpu(),
        "versions": versions(),
    }

    def run() -> None:
        values = measure.results(about, lambda line: print(line, flush=True))
        pages.write(options.output / "wire", "results/wire.md", parts(values), values, draw)

    return status_of("wire", run)


if __name__ == "__main__":
    sys.exit(main())
