"""The parts of docs/results/wire.md, and the figure, from the results or by the formula."""

from pathlib import Path
from typing import Any, Dict, List, Tuple

from experiments.pages import Parts, Values, table
from experiments.wire.networks import NETWORKS
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
SHOWN = (2, 8, 64, 1024)
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
    """Return the table of errors; a row has the sum without and with the division before."""
    head = ["network", "policy", "wire", "added", "workers", "error (norm)", "largest error"]
    head += ["median error", "lost", "not finite", "predivided: error (norm)", "lost", "not finite"]
    divided = {_key(row): row for row in sums if row["predivided"]}
    lines = []
    for row in sums:
        alone = row["workers"] == 2  # the sum of two has one order
        if row["predivided"] or (alone and row["order"] != "one after another"):
            continue
        cells = [NETWORKS[row["network"]].title, f"`{row['policy']}`", row["wire"]]
        cells += ["in any way" if alone else row["order"], str(row["workers"])]
        cells += [f"{row[field]:.1e}" for field in ("norm", "largest", "median")]
        cells += _losses(row)
        other = divided.get(_key(row))
        lines.append(cells + ([f"{other['norm']:.1e}", *_losses(other)] if other else ["–"] * 3))
    return table(head, lines, words=4)


def _key(row: Values) -> Tuple:
    return tuple(row[field] for field in ("network", "policy", "wire", "order", "workers"))


def _losses(row: Values) -> List[str]:
    return [f"{row['lost']:.3%}", str(row["overflowed"])]


def simulation() -> str:
    """Return the table of the formula: shares of the exchange, and where they are a half."""
    head = ["network, link", "exchange", "wire"]
    head += [f"step of {count:,} (share)" for count in SHOWN] + ["half of the step with"]
    lines = []
    for name, cluster in CLUSTERS.items():
        for exchange in EXCHANGES:
            for dtype in WIRE_BYTES:
                steps = [step(cluster, exchange, dtype, count) for count in SHOWN]
                cells = [f"{one.seconds:.3g} s ({one.share:.0%})" for one in steps]
                where = in_words(half(cluster, exchange, dtype))
                lines.append([name, title(exchange), dtype, *cells, where])
    return table(head, lines, words=3)


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
