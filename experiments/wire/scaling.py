"""How the step of synchronous data parallelism grows with the workers, by formula.

    python -m experiments.wire.scaling --parameters 25.6e6 --step-seconds 0.3 --bandwidth 10e9

docs/results/wire.md has the formula and its sources. It has no congestion, no stragglers, no
headers and no time for additions. A fraction of the computation may hide the exchange: its backward
pass, where layers are sent as soon as they are ready.
"""

import sys
from typing import Dict, NamedTuple, Optional, Sequence

from gluon_amp.training.command_line import Parser, positive, real, status_of, whole

WIRE_BYTES: Dict[str, int] = {"float32": 4, "float16": 2}
MOST_WORKERS = 1024
WORKERS = tuple(2**power for power in range(11))  # 1 to 1,024


class Cluster(NamedTuple):
    """What a step computes and over which network it exchanges."""

    parameters: float  # trained, each with a gradient
    step_seconds: float  # of a worker without any exchange
    bandwidth: float = 10e9  # bits per second of a link, in each direction
    latency: float = 50e-6  # seconds that a message takes besides
    overlap: float = 0.0  # share of `step_seconds` during which the exchange is hidden


class Exchange(NamedTuple):
    """A ring, or a parameter server; `servers` of 0 are as many as workers."""

    kind: str  # 'ring' or 'server'
    servers: int = 0

    def seconds(self, workers: int, message: float, bandwidth: float, latency: float) -> float:
        """Return the time T of the formula for a message of `message` bytes."""
        whole = 8 * message / bandwidth
        if workers == 1:
            return 0.0
        if self.kind == "ring":
            hops = 2 * (workers - 1)
            return hops / workers * whole + hops * latency
        return 2 * (max(1, workers / (self.servers or workers)) * whole + latency)


class Step(NamedTuple):
    """A step of so many workers, in seconds; `exchange` is the part that is not hidden."""

    workers: int
    seconds: float
    exchange: float

    @property
    def share(self) -> float:
        """The share of the step in which a worker waits for the exchange."""
        return self.exchange / self.seconds

    @property
    def efficiency(self) -> float:
        """The throughput over that of as many workers without any exchange."""
        return 1 - self.share


def step(cluster: Cluster, exchange: Exchange, dtype: str, workers: int) -> Step:
    """Return the step of so many workers, whose gradients are sent in a dtype of `WIRE_BYTES`."""
    message = cluster.parameters * WIRE_BYTES[dtype]
    total = exchange.seconds(workers, message, cluster.bandwidth, cluster.latency)
    waiting = max(0.0, total - cluster.overlap * cluster.step_seconds)
    return Step(workers, cluster.step_seconds + waiting, waiting)


def half(cluster: Cluster, exchange: Exchange, dtype: str) -> Optional[int]:
    """Return the fewest workers whose exchange is half of the step or more.

    That is None if it is less than half with up to `MOST_WORKERS`.
    """
    counts = range(1, MOST_WORKERS + 1)
    return next((n for n in counts if step(cluster, exchange, dtype, n).share >= 0.5), None)


def table(cluster: Cluster, exchanges: Sequence[Exchange]) -> str:
    """Return the steps of 1 to 1,024 workers as text, float32 beside float16."""
    lines = []
    for exchange in exchanges:
        lines += ["", title(exchange), "workers" + "".join(f"  {d:>28}" for d in WIRE_BYTES)]
        lines.append(" " * 7 + "    step (s)  efficiency   share" * len(WIRE_BYTES))
        for workers in WORKERS:
            cells = [f"{workers:7,d}"]
            for dtype in WIRE_BYTES:
                one = step(cluster, exchange, dtype, workers)
                cells.append(f"{one.seconds:12.4f}{one.efficiency:12.1%}{one.share:8.1%}")
            lines.append("".join(cells))
        halves = ", ".join(f"{d}: {in_words(half(cluster, exchange, d))}" for d in WIRE_BYTES)
        lines.append(f"the exchange is half of the step with {halves}")
    return "\n".join(lines[1:])


def in_words(workers: Optional[int]) -> str:
    """Return a result of `half` in words."""
    return f"more than {MOST_WORKERS:,}" if workers is None else f"{workers:,} workers"


def title(exchange: Exchange) -> str:
    """Return what an exchange is called on the page."""
    if exchange.kind == "ring":
        return "ring all-reduce"
    if not exchange.servers:
        return "parameter server, as many servers as workers"
    return f"parameter server, {exchange.servers} server{'s' if exchange.servers > 1 else ''}"


def run(arguments: Optional[Sequence[str]]) -> None:
    """Print the table of the options."""
    parser = Parser(prog="scaling", description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    count = "trained parameters (default: %(default)s, ResNet-50 v1)"
    add("--parameters", type=positive, default=25.6e6, metavar="N", help=count)
    seconds = "a worker's step without exchange, which you measure (default: %(default)s)"
    add("--step-seconds", type=positive, default=0.3, metavar="SECONDS", help=seconds)
    bits = "bits per second of a link in each direction (default: %(default)s)"
    add("--bandwidth", type=positive, default=10e9, metavar="BITS", help=bits)
    message = "seconds of a message besides (default: %(default)s)"
    add("--latency", type=real(0), default=50e-6, metavar="SECONDS", help=message)
    servers = "servers of the parameter server (default: as many as workers)"
    add("--servers", type=whole(1, 4096), default=0, metavar="N", help=servers)
    hidden = "share of the step that hides the exchange (default: %(default)s)"
    add("--overlap", type=real(0, 1), default=0.0, metavar="SHARE", help=hidden)
    options = vars(parser.parse_args(arguments))
    exchanges = [Exchange("ring"), Exchange("server", options.pop("servers"))]
    print(table(Cluster(**options), exchanges))


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Read the command line and print the table; return the status of the process."""
    return status_of("scaling", lambda: run(arguments))


if __name__ == "__main__":
    sys.exit(main())
