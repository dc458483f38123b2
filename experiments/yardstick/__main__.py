"""Compare losses and gradients of each dtype with float64, in ten networks.

    python -m experiments.yardstick --output docs/results

With ``--only``, the measurements of the other networks are those of the file that is there.
"""

import argparse
import datetime
import json
import sys
import time
from typing import Optional, Sequence

from experiments import pages
from experiments.yardstick.measure import STEPS, measure
from experiments.yardstick.networks import NETWORKS
from experiments.yardstick.page import draw, parts
from gluon_amp.training.command_line import Parser, path, status_of
from gluon_amp.training.tables.machine import describe_cpu, versions


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Read the command line and run it; return the status of the process."""
    parser = Parser(description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    text = "write yardstick.md, .json and .png there (default: %(default)s)"
    add("--output", type=path, default=path("results"), metavar="DIR", help=text)
    only = "measure these networks alone"
    add("--only", nargs="+", choices=NETWORKS, default=list(NETWORKS), metavar="NAME", help=only)
    options = parser.parse_args(arguments)
    return status_of("yardstick", lambda: run(options))


def run(options: argparse.Namespace) -> None:
    """Measure the networks and write the files; they need all networks."""
    file = options.output / "yardstick.json"
    networks = json.loads(file.read_text(encoding="utf-8"))["networks"] if file.exists() else {}
    for name in options.only:
        started = time.process_time()
        networks[name] = {**measure(name), "seconds": time.process_time() - started}
        values = {
            "machine": describe_cpu(),
            "date": datetime.date.today().isoformat(),
            "versions": versions(),
            "command": f"python -m experiments.yardstick --output {options.output}",
            "steps": STEPS,
            "networks": {name: networks[name] for name in NETWORKS if name in networks},
        }
        pages.write(
            options.output / "yardstick", "results/yardstick.md", parts(values), values, draw
        )
        print(f"{name}: {networks[name]['seconds']:.0f} CPU seconds", flush=True)


if __name__ == "__main__":
    sys.exit(main())
