"""The page of results: every number is computed from the results, or by the formula."""

from typing import Any, Dict, List, Sequence, Tuple

from experiments.wire import scaling
from experiments.wire.measure import LIMIT
from experiments.wire.networks import NETWORKS
from experiments.wire.scaling import Cluster, Exchange, half, in_words, step, title

STEP_SECONDS = 0.3  # an example, not a measurement
EXCHANGES = (Exchange("ring"), Exchange("server"), Exchange("server", 8))
CLUSTERS: Dict[str, Cluster] = {
    f"{name}, {bits:g} Gbit/s": Cluster(parameters, STEP_SECONDS, bits * 1e9)
    for name, parameters in (("ResNet-50 v1", 25.6e6), ("BERT-base", 110e6))
    for bits in (10, 100)
}
SHOWN = (2, 8, 64, 1024)

BYTES = """\
With `dist_sync`, every worker pushes each gradient to a server and pulls the sum. So by the
formula, a step sends and receives the bytes of the gradients once.

- Each process ran in a network namespace of its own. Its link counts bytes with the headers of TCP
  and IP. These headers, acknowledgements and the heads of messages are the bytes over the formula.
  A link with a limit has smaller packets, and so more headers.
- The table has the difference between a long and a short run, divided by the difference in steps.
  So it does not include the start.
- Each array belongs to one server, chosen by its number. Only arrays of more than a million
  elements are divided among all servers."""
POLICIES = """\
Under `float16`, the parameters of matrix products and convolutions are float16, and so are
their gradients: a step exchanges half of the bytes. Under `bfloat16` and `mixed_float16` the
parameters are float32 and are their own masters, so their gradients are float32 **and the wire
carries as many bytes as in float32**. A store that casts each gradient before its push and back
after its pull would halve them, as Horovod's `Compression.fp16` does. Values beyond the range of
float16 would become infinite, so such a store needs a trainer that checks for overflow. The rows
of `bfloat16` with a wire of float16, below, show the errors of such a store. A wire of bfloat16 is
not possible, because MXNet's server refuses it:"""
PROBE = """\
A server that adds in float16 would return 2048 for some of the first three sums, because 2048 + 1
is 2048 in float16. So MXNet's server adds float16 arrays in float32, and rounds once, when they are
pulled. This is the behaviour of this build, and is not documented."""
SUMS = """\
Each simulated worker has the gradients of the same network for a batch of its own, after {trained}
steps of training. They are all gradients of the digits' network, and {kept:,} elements of
ResNet-18.

- The *errors* are those of the sum, relative to the sum in float64. Under `float16` the gradients
  are float16 before they are sent. Under `bfloat16` they are float32, so the errors include the
  rounding to the dtype of the wire.
- *lost* are elements whose sum is zero on the wire but not in float64.
- *not finite* are elements that overflow. The loss scale keeps a distance from that.
- *predivided* is what `amp.Trainer` does in `step` under float16. It divides the summands by a
  power of two that is at least their number, and the update multiplies by it again. So no sum
  overflows where each summand fits."""
OVERFLOW = """\
**An overflow is always seen.** An infinity or NaN of one worker was put into each simulated
sum, for each worker in turn: {seen} of {total} rows keep it to the end, in every order, with
and without the division. No operation turns it into a finite number: infinity plus a finite
number is infinite, infinity minus infinity is NaN, and multiplying by a power of two changes
neither. If a partial sum overflows, it is infinite, and is seen for the same reason. So one
overflow check after the reduction is enough. It reads what was pulled, and all workers pull the
same sum."""
SIMULATION = """\
A step of N workers takes C + max(0, T − V C) seconds:

| symbol | meaning |
| :--- | :--- |
| C | seconds of computation |
| V | the share of the computation that overlaps with the exchange; 0 here |
| T | seconds of exchange, as below |
| M | bytes of the gradients |
| B | bits per second of a link in each direction |
| L | seconds of latency of a message |

- ring all-reduce: T = 2 (N − 1) / N · 8 M / B + 2 (N − 1) L (Thakur, Rabenseifner and Gropp,
  “Optimization of collective communication operations in MPICH”, 2005; Patarasu and Yuan,
  “Bandwidth optimal all-reduce algorithms for clusters of workstations”, 2009)
- parameter server with S servers of their own: T = 2 max(1, N / S) · 8 M / B + 2 L (the scheme of
  Li et al., “Scaling distributed machine learning with the parameter server”, 2014)

The C of {seconds:g} s is **an assumption, not a measurement**; the latency is {latency:g} µs.
Replace both with yours: `python -m experiments.wire.scaling --parameters 25.6e6 --step-seconds
{seconds:g} --bandwidth 10e9 --latency 50e-6 --overlap 0 --servers 8` prints a line for each number
of workers from 1 to 1,024. The float16 rows assume that all gradients are float16. The gradients of
BatchNorm's parameters are float32, which adds less than one percent for ResNet-50."""
READING = """\
How to read it: find the row of your network, link and exchange. Where the share in float32 is
small, the wire does not matter. Where it is above a half, the exchange dominates. Then halve the
bytes (float16), accumulate gradients over more batches, add servers, or use a ring. With a fixed
number of servers, the exchange dominates first. The latency of a ring grows with the number of
workers, and float16 does not shorten it."""
CHECKED = """\
**What was checked.** The bytes of 2 and 4 real workers exceed the formula's by at most {bytes:.1%}.
On links limited to {limit:g} Mbit/s in each direction by `tc`, the exchange of a step took
{low:.2f} to {high:.2f} times the formula's seconds.

- It takes less where MXNet pulls some arrays while it pushes others, which the formula does not
  include.
- It takes more where the cores are the limit: all processes shared the cores of one machine, which
  had other work.
- These times include the overflow check and the update.
- The ring, more than 4 workers and real networks were not measured."""


def page(results: Dict[str, Any], figure: str) -> str:
    """Return the page as Markdown; `figure` is the name of the figure's file."""
    about = results["about"]
    sums = results["sums"]
    parts = [
        "# Gradients on the wire",
        "This page has the bytes that a step of distributed training exchanges, the errors of sums "
        "of 16-bit gradients, and the number of workers from which communication dominates.",
        f"![Errors of the sums, and the share of the exchange]({figure})",
        "## Bytes per step",
        BYTES,
        traffic(results),
        POLICIES,
        probes(results),
        PROBE,
        "## Sums in 16 bits",
        SUMS.format(**about),
        errors(sums),
        OVERFLOW.format(seen=sum(row["seen"] for row in sums), total=len(sums)),
        "## Where communication dominates",
        SIMULATION.format(seconds=STEP_SECONDS, latency=1e6 * Cluster(1, 1).latency),
        simulation(),
        READING,
        checked(results),
        "## How it was measured",
        f"{about['date']}, {about['hardware']}, Linux {about['kernel']}, {about['versions']}. "
        f"Command: `{about['command']}`.",
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> str:
    """Return a Markdown table whose first columns, so many, are words."""
    rules = [":---"] * words + ["---:"] * (len(head) - words)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rules, *rows))


def traffic(results: Dict[str, Any]) -> str:
    """Return the table of bytes per step."""
    head = ["network", "policy", "workers", "servers", "gradients (bytes)", "sent by a worker"]
    head += ["received by a worker", "over the formula", "received by a server (formula)"]
    rows = []
    for row in results["traffic"]:
        served = ", ".join(f"{value:,.0f}" for value in row["server_received"])
        over = max(row["sent"], row["received"], key=lambda value: abs(value - row["bytes"]))
        cells = [NETWORKS[row["network"]].title, f"`{row['policy']}`"]
        cells += [str(row["workers"]), str(row["servers"])]
        cells += [f"{row[field]:,.0f}" for field in ("bytes", "sent", "received")]
        cells += [f"{over / row['bytes'] - 1:+.2%}", f"{served} ({row['server_bytes']:,.0f})"]
        rows.append(cells)
    return _table(head, rows, words=2)


def probes(results: Dict[str, Any]) -> str:
    """Return what the server makes of each dtype."""
    rows = []
    for row in results["probes"]:
        result = row["result"]
        ended = f"the server ends: {result}"
        shown = ended if isinstance(result, str) else ", ".join(f"{value:g}" for value in result)
        rows.append([row["dtype"], shown])
    head = ["dtype of the arrays", "three workers add 2048 + 1 + 1 in three orders, and 40000 × 3"]
    return _table(head, rows, words=2)


def errors(sums: List[Dict[str, Any]]) -> str:
    """Return the table of errors; a row has the sum without and with the division before."""
    head = ["network", "policy", "wire", "added", "workers", "error (norm)", "largest error"]
    head += ["median error", "lost", "not finite", "predivided: error (norm)", "lost", "not finite"]
    divided = {_key(row): row for row in sums if row["predivided"]}
    rows = []
    for row in sums:
        alone = row["workers"] == 2  # the sum of two has one order
        if row["predivided"] or (alone and row["order"] != "one after another"):
            continue
        cells = [NETWORKS[row["network"]].title, f"`{row['policy']}`", row["wire"]]
        cells += ["in any way" if alone else row["order"], str(row["workers"])]
        cells += [f"{row[field]:.1e}" for field in ("norm", "largest", "median")]
        cells += _losses(row)
        other = divided.get(_key(row))
        cells += [f"{other['norm']:.1e}", *_losses(other)] if other else ["–"] * 3
        rows.append(cells)
    return _table(head, rows, words=4)


def _key(row: Dict[str, Any]) -> Tuple:
    return tuple(row[field] for field in ("network", "policy", "wire", "order", "workers"))


def _losses(row: Dict[str, Any]) -> List[str]:
    return [f"{row['lost']:.3%}", str(row["overflowed"])]


def of_figure(results: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Return the rows of the errors that the figure shows: ResNet-18's, as the trainer adds."""
    return [
        row
        for row in results["sums"]
        if row["network"] == "resnet18"
        and (row["wire"] == "bfloat16" or (row["policy"] == "float16" and row["predivided"]))
    ]


def simulation() -> str:
    """Return the table of the formula: shares of the exchange, and where they are a half."""
    head = ["network, link", "exchange", "wire"]
    head += [f"step of {count:,} (share)" for count in SHOWN] + ["half of the step with"]
    rows = []
    for name, cluster in CLUSTERS.items():
        for exchange in EXCHANGES:
            for dtype in scaling.WIRE_BYTES:
                steps = [step(cluster, exchange, dtype, count) for count in SHOWN]
                cells = [f"{one.seconds:.3g} s ({one.share:.0%})" for one in steps]
                where = in_words(half(cluster, exchange, dtype))
                rows.append([name, title(exchange), dtype, *cells, where])
    return _table(head, rows, words=3)


def checked(results: Dict[str, Any]) -> str:
    """Return what measurements say of the formula."""
    rows = results["traffic"]
    worst = max(row[field] / row["bytes"] - 1 for row in rows for field in ("sent", "received"))
    limited = [row for row in rows if row["seconds"]]
    ratios = [row["seconds"] / row["predicted_seconds"] for row in limited]
    text = CHECKED.format(bytes=worst, limit=LIMIT, low=min(ratios), high=max(ratios))
    head = ["network", "policy", "workers", "servers", "measured (s)", "formula (s)"]
    cells = [
        [NETWORKS[row["network"]].title, f"`{row['policy']}`"]
        + [str(row["workers"]), str(row["servers"])]
        + [f"{row[field]:.2f}" for field in ("seconds", "predicted_seconds")]
        for row in limited
    ]
    return f"{text}\n\n{_table(head, cells, words=2)}"
