"""Draws the errors of sums over workers, and the share of a step that the exchange takes."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict

from experiments.wire.page import CLUSTERS, EXCHANGES, STEP_SECONDS, of_figure
from experiments.wire.scaling import WIRE_BYTES, WORKERS, Cluster, step, title
from gluon_amp.inspection.figures import COLOURS, SUPPORT
from gluon_amp.training.tables.figure import new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = ("o", "s", "^", "D")
LINES = ("-", "--", ":")  # one for each exchange


@styled()
def draw(results: Dict[str, Any], path: Path) -> None:
    """Write a PNG: a panel of errors, and one of shares for each network of the simulation.

    If matplotlib is not installed, that is a `UsageError`.
    """
    figure = new_figure(12, 7)
    errors, *shares, legends = figure.subplots(2, 3).flat
    _draw_errors(errors, results)
    for axes, (name, cluster) in zip(shares, CLUSTERS.items()):
        _draw_shares(axes, cluster, name)
    # The last place has the legend of all panels of shares.
    about = f"with a computation of {STEP_SECONDS:g} s (assumed)"
    legends.axis("off")
    handles, labels = shares[0].get_legend_handles_labels()
    legends.legend(handles, labels, title=about, loc="center")
    figure.savefig(path)


def _draw_shares(axes: "Axes", cluster: Cluster, name: str) -> None:
    for line, exchange in zip(LINES, EXCHANGES):
        for dtype in WIRE_BYTES:
            shares = [100 * step(cluster, exchange, dtype, n).share for n in WORKERS]
            label = f"{title(exchange)}, {dtype}"
            axes.plot(WORKERS, shares, line, color=COLOURS[dtype], label=label)
    axes.axhline(50, color=SUPPORT, linewidth=0.8)
    axes.set(xscale="log", xlabel="Workers", ylim=(0, 100))
    axes.set_title(name)
    axes.set_ylabel("Exchange (% of the step)")


def _draw_errors(axes: "Axes", results: Dict[str, Any]) -> None:
    rows = of_figure(results)
    keys = dict.fromkeys((row["wire"], row["order"]) for row in rows)
    orders = list(dict.fromkeys(order for _, order in keys))
    for wire, order in keys:
        line = [row for row in rows if (row["wire"], row["order"]) == (wire, order)]
        style = {"color": COLOURS[wire], "linewidth": 1}
        workers, norms = [row["workers"] for row in line], [row["norm"] for row in line]
        marker = MARKERS[orders.index(order)]
        axes.plot(workers, norms, marker=marker, markersize=4, label=f"{wire}, {order}", **style)
    axes.set(xscale="log", yscale="log", xlabel="Workers", ylim=(1e-4, 2))
    axes.set_ylabel("‖sum − exact‖ / ‖exact‖")
    axes.set_title("Errors of the sum of ResNet-18's gradients", fontsize=10)
    axes.legend(fontsize=6.5, loc="upper left")
