"""Add the gradients of simulated workers in 16 bits, and write wire.md, wire.json and wire.png.

python -m experiments.wire --output docs/results
"""

import platform
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Sequence

from experiments import pages
from experiments.wire.networks import KEPT, NETWORKS, TRAINED_STEPS, collect
from experiments.wire.page import draw, parts
from experiments.wire.sums import ORDERS, errors, exchanged, overflows_seen
from gluon_amp.training.command_line import Parser, path, status_of

WORKERS = (2, 8, 64)
# Of the networks' policies, the dtypes on the wire
WIRES = {"float16": ("float16",), "bfloat16": ("float16", "bfloat16")}


def added(network: str, policy: str, sizes: Sequence[int] = WORKERS) -> Iterator[Dict[str, Any]]:
    """Yield the errors of sums over simulated workers, a row for each wire, number and order."""
    gradients = collect(NETWORKS[network], policy, max(sizes))
    for wire in WIRES[policy]:
        for workers in sizes:
            vectors = gradients.parts[:workers]
            for order in ORDERS:
                for predivided in (False, True) if wire == "float16" else (False,):
                    way = (wire, order, predivided)
                    yield {
                        "network": network,
                        "policy": policy,
                        "wire": wire,
                        "scale": gradients.scale,
                        "workers": workers,
                        "order": order,
                        "predivided": predivided,
                        **errors(exchanged(vectors, *way), vectors)._asdict(),
                        "seen": overflows_seen(vectors, *way),
                    }


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
        **pages.about("wire", arguments),
        "kernel": platform.release(),
        "kept": KEPT,
        "trained": TRAINED_STEPS,
    }

    def run() -> None:
        sums = []
        for network in NETWORKS:
            for policy in WIRES:
                print(f"{network}, {policy}", flush=True)
                sums += added(network, policy)
        values = {"about": about, "sums": sums}
        pages.write(options.output / "wire", "results/wire.md", parts(values), values, draw)

    return status_of("wire", run)


if __name__ == "__main__":
    sys.exit(main())
