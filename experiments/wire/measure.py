"""What the results hold: bytes of real workers, probes of the server, errors of simulated sums."""

import platform
from statistics import mean, median
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

from experiments.wire import cluster
from experiments.wire.networks import KEPT, NETWORKS, TRAINED_STEPS, collect
from experiments.wire.scaling import Exchange
from experiments.wire.sums import ORDERS, errors, exchanged, overflows_seen
from gluon_amp.base.messages import UsageError

SHORT, LONG = 1, 3  # steps of two runs; the difference is free of the start
WORKERS = (2, 8, 64)  # simulated
DTYPES = ("float32", "float16", "bfloat16")
PROBES = 3  # workers, as many as the probe has rows
LIMIT = 400.0  # Mbit/s; slow enough that two cores compute and copy faster


class Case(NamedTuple):
    """A run whose bytes are counted; `megabits` is the bandwidth of each link and direction."""

    network: str
    policy: str
    workers: int
    servers: int
    megabits: Optional[float] = None


CASES = (
    *(Case("digits", policy, 2, 1) for policy in DTYPES),
    *(Case("resnet18", policy, 2, 1, LIMIT) for policy in DTYPES),
    *(Case("resnet18", policy, 4, 2, LIMIT) for policy in ("float32", "float16")),
)


def counted(case: Case, run: Callable[..., cluster.Outcome] = cluster.run) -> Dict[str, Any]:
    """Return bytes per step of a case, and what the formula of `scaling` says.

    The seconds are the median over the steps after the first, and None without a limit: loopback
    has no bandwidth to measure.
    """
    short, long = (
        run(
            ["train", case.network, case.policy, str(steps)],
            case.workers,
            case.servers,
            case.megabits,
        )
        for steps in (SHORT, LONG)
    )
    first = long.results[0]
    exchange = Exchange("server", case.servers)

    def per_step(role: str, field: str) -> List[float]:
        pairs = zip(getattr(long, role), getattr(short, role))
        return [(getattr(b, field) - getattr(a, field)) / (LONG - SHORT) for b, a in pairs]

    seconds = predicted = None
    if case.megabits:
        seconds = median(second for result in long.results for second in result["seconds"][1:])
        predicted = exchange.seconds(case.workers, first["bytes"], case.megabits * 1e6, 0.0)
    return {
        **case._asdict(),
        **{name: first[name] for name in ("arrays", "elements", "bytes")},
        "sent": mean(per_step("workers", "sent")),
        "received": mean(per_step("workers", "received")),
        "server_received": per_step("servers", "received"),
        "server_bytes": exchange.bytes_per_server(case.workers, first["bytes"]),
        "seconds": seconds,
        "predicted_seconds": predicted,
    }


def probed(dtype: str, run: Callable[..., cluster.Outcome] = cluster.run) -> Dict[str, Any]:
    """Return what a server makes of arrays of a dtype: their sums, or its last words."""
    try:
        result: Any = run(["probe", dtype], PROBES, 1).results[0]
    except UsageError as error:
        said = str(error).splitlines()
        result = next((line for line in said if "what():" in line), said[-1]).split(": ")[-1]
    return {"dtype": dtype, "result": result}


def added(network: str, policy: str, sizes=WORKERS, wires=("",)) -> Iterator[Dict[str, Any]]:
    """Yield the errors of sums over simulated workers, a row for each order and wire.

    An empty wire is the dtype that the network's gradients have.
    """
    gradients = collect(NETWORKS[network], policy, max(sizes))
    for wire in wires:
        dtype = wire or gradients.dtype
        for workers in sizes:
            parts = gradients.parts[:workers]
            for order in ORDERS:
                for predivided in (False, True) if dtype == "float16" else (False,):
                    way = (dtype, order, predivided)
                    yield {
                        "network": network,
                        "policy": policy,
                        "wire": dtype,
                        "scale": gradients.scale,
                        "workers": workers,
                        "order": order,
                        "predivided": predivided,
                        **errors(exchanged(parts, *way), parts)._asdict(),
                        "seen": overflows_seen(parts, *way),
                    }


def results(about: Dict[str, Any], report: Callable[[str], None]) -> Dict[str, Any]:
    """Return all values of the page; `report` gets a line before each part."""
    traffic, probes, sums = [], [], []
    for case in CASES:
        report(f"bytes: {case}")
        traffic.append(counted(case))
    for dtype in DTYPES:
        report(f"server: {dtype}")
        probes.append(probed(dtype))
    for network in NETWORKS:
        report(f"sums: {network}")
        sums += added(network, "float16")
        sums += added(network, "bfloat16", wires=("float16", "bfloat16"))
    about = {**about, "kernel": platform.release(), "kept": KEPT, "trained": TRAINED_STEPS}
    return {"about": about, "traffic": traffic, "probes": probes, "sums": sums}
