"""Compare losses and gradients of each dtype with float64, in ten networks.

python -m experiments.yardstick --output docs/results
"""

import argparse
import sys
import time
from typing import Optional, Sequence

from experiments import pages
from experiments.yardstick.measure import STEPS, measure
from experiments.yardstick.networks import NETWORKS
from experiments.yardstick.page import draw, parts
from gluon_amp.training.command_line import Parser, path, status_of


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Read the command line and run it; return the status of the process."""
    parser = Parser(description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    text = "write yardstick.md, .json and .png there (default: %(default)s)"
    add("--output", type=path, default=path("results"), metavar="DIR", help=text)
    words = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(words)
    return status_of("yardstick", lambda: run(options, words))


def run(options: argparse.Namespace, words: Sequence[str]) -> None:
    """Measure the networks and write the files."""
    networks = {}
    for name in NETWORKS:
        started = time.process_time()
        networks[name] = {**measure(name), "seconds": time.process_time() - started}
        print(f"{name}: {networks[name]['seconds']:.0f} CPU seconds", flush=True)
    values = {**pages.about("yardstick", words), "steps": STEPS, "networks": networks}
    pages.write(options.output / "yardstick", "results/yardstick.md", parts(values), values, draw)


if __name__ == "__main__":
    sys.exit(main())
