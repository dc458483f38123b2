"""The parts of docs/results/wire.md, and the figure, from the results or by the formula."""

from pathlib import Path
from typing import Any, Dict, List, Tuple

from experiments.pages import Parts, Values, table
from experiments.wire.scaling import (
    WIRE_BYTES,
    WORKERS,
    Cluster,
    Exchange,
    half,
    in_words,
    step,
    title,
)
from gluon_amp.inspection.figures import COLOURS, SUPPORT
from gluon_amp.training.tables.figure import new_figure, styled

STEP_SECONDS = 0.3  # an example, not a measurement
EXCHANGES = (Exchange("ring"), Exchange("server"), Exchange("server", 8))
CLUSTERS: Dict[str, Cluster] = {
    f"{name}, {bits:g} Gbit/s": Cluster(parameters, STEP_SECONDS, bits * 1e9)
    for name, parameters in (("ResNet-50 v1", 25.6e6), ("BERT-base", 110e6))
    for bits in (10, 100)
}
MARKERS = ("o", "s", "^", "D")
LINES = ("-", "--", ":")  # one for each exchange


def parts(results: Values) -> Parts:
    """Return the parts of the page."""
    about, sums = results["about"], results["sums"]
    return {
        "errors": errors(sums),
        "seen": f"{sum(row['seen'] for row in sums)} of {len(sums)}",
        "simulation": simulation(),
        "measured": f"{about['date']}, {about['machine']}, Linux {about['kernel']}, "
        f"{about['versions']}. Command: `{about['command']}`.",
    }


def errors(sums: List[Values]) -> str:
    """Return the table of errors: for each wire and order, the worst of all networks."""
    counts = sorted({row["workers"] for row in sums})
    found: Dict[Tuple, Dict[int, List[Values]]] = {}
    for row in sums:
        if not row["predivided"]:
            rows = found.setdefault((row["wire"], row["order"]), {})
            rows.setdefault(row["workers"], []).append(row)
    lines = []
    for (wire, order), rows in found.items():
        worst = [max((row["norm"] for row in rows[count]), default=0.0) for count in counts]
        lost = max(row["lost"] for each in rows.values() for row in each)
        lines.append([wire, order, *(f"{norm:.1e}" for norm in worst), f"{lost:.3%}"])
    head = ["wire", "added", *(f"{count} workers" for count in counts), "lost, at most"]
    return table(head, lines, words=2)


def simulation() -> str:
    """Return the table of the formula: with how many workers the exchange is half of a step."""
    lines = [
        [name, title(exchange), *(in_words(half(cluster, exchange, d)) for d in WIRE_BYTES)]
        for name, cluster in CLUSTERS.items()
        for exchange in EXCHANGES
    ]
    return table(["network, link", "exchange", *WIRE_BYTES], lines, words=2)


@styled()
def draw(results: Dict[str, Any], path: Path) -> None:
    """Write a PNG: a panel of errors, and one of shares for each network of the simulation."""
    figure = new_figure(12, 7)
    first, *shares, legends = figure.subplots(2, 3).flat
    _draw_errors(first, results["sums"])
    for axes, (name, cluster) in zip(shares, CLUSTERS.items()):
        _draw_shares(axes, cluster, name)
    # The last place has the legend of all panels of shares.
    about = f"with a computation of {STEP_SECONDS:g} s (assumed)"
    legends.axis("off")
    handles, labels = shares[0].get_legend_handles_labels()
    legends.legend(handles, labels, title=about, loc="center")
    figure.savefig(path)


def _draw_shares(axes: Any, cluster: Cluster, name: str) -> None:
    for line, exchange in zip(LINES, EXCHANGES):
        for dtype in WIRE_BYTES:
            shares = [100 * step(cluster, exchange, dtype, n).share for n in WORKERS]
            label = f"{title(exchange)}, {dtype}"
            axes.plot(WORKERS, shares, line, color=COLOURS[dtype], label=label)
    axes.axhline(50, color=SUPPORT, linewidth=0.8)
    axes.set(xscale="log", xlabel="Workers", ylabel="Exchange (% of the step)", ylim=(0, 100))
    axes.set_title(name)


def _draw_errors(axes: Any, sums: List[Values]) -> None:
    """Draw the errors of ResNet-18's gradients, added as the trainer adds them."""
    rows = [
        row
        for row in sums
        if row["network"] == "resnet18"
        and (row["wire"] == "bfloat16" or (row["policy"] == "float16" and row["predivided"]))
    ]
    keys = dict.fromkeys((row["wire"], row["order"]) for row in rows)
    markers = dict(zip(dict.fromkeys(order for _, order in keys), MARKERS))
    for wire, order in keys:
        line = [row for row in rows if (row["wire"], row["order"]) == (wire, order)]
        style = {"color": COLOURS[wire], "linewidth": 1, "marker": markers[order], "markersize": 4}
        workers, norms = [row["workers"] for row in line], [row["norm"] for row in line]
        axes.plot(workers, norms, label=f"{wire}, {order}", **style)
    axes.set(xscale="log", yscale="log", xlabel="Workers", ylim=(1e-4, 2))
    axes.set_ylabel("‖sum − exact‖ / ‖exact‖")
    axes.set_title("Errors of the sum of ResNet-18's gradients", fontsize=10)
    axes.legend(fontsize=6.5, loc="upper left")
