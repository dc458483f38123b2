"""A heat map of looks: layers by steps, with a panel for each direction."""

from pathlib import Path
from typing import List, Tuple

import numpy as np

from gluon_amp.base.messages import UsageError, from_extra
from gluon_amp.inspection.figures import OTHER
from gluon_amp.inspection.look import Row
from gluon_amp.policy.study import DIRECTIONS

TICKS = (60, 12)  # at most so many names of layers and of steps are shown
SHARES = (1e-4, 1e-3, 1e-2, 1e-1, 1)  # of the scale of colours
TITLES = {
    "forward": "outputs of the layers",
    "data_gradient": "gradients of their data",
    "weight_gradient": "gradients of their weights",
}


def draw(rows: List[Row], format_: str, path: Path, title: str) -> None:
    """Draw the share of underflows by colour, and mark overflows; raise `UsageError` if it fails.

    The scale of the colours is logarithmic, as a loss of 1 % matters. A layer with several
    parameters is shown by its largest one. Grey cells have no tensor.
    """
    with from_extra("results", "plot() needs matplotlib"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import LogNorm
        from matplotlib.figure import Figure
    rows = [row for row in rows if format_ in row.formats]
    if not rows:
        raise UsageError(f"plot() has no look at {format_} to draw: train for a step first.")
    steps = sorted({row.step for row in rows})
    # In the order in which the network runs them, as far as it is known
    forward = [row.layer for row in rows if row.direction == "forward"]
    layers = list(dict.fromkeys([*forward, *(row.layer for row in rows)]))
    figure = Figure(
        figsize=(9, 1.6 + 0.19 * min(max(len(layers), 6), TICKS[0])),
        dpi=120,
        constrained_layout=True,
    )
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(DIRECTIONS), sharey=True)
    colours = ScalarMappable(LogNorm(SHARES[0], SHARES[-1]), "Blues")
    for panel, direction in zip(panels, DIRECTIONS):
        underflow, overflow = _shares(rows, format_, direction, layers, steps)
        panel.set_facecolor("#dddddd")
        # An image of a logarithmic scale would not tell 0 from a missing tensor.
        shown = np.where(np.isnan(underflow), np.nan, np.maximum(underflow, SHARES[0]))
        panel.imshow(shown, norm=colours.norm, cmap=colours.cmap, aspect="auto")
        y, x = np.nonzero(np.nan_to_num(overflow))
        panel.scatter(x, y, marker="x", color=OTHER, s=18, label="overflows")
        panel.set_title(TITLES[direction], fontsize=10)
        panel.set_xlabel("step")
        _ticks(panel.xaxis, [str(step) for step in steps], TICKS[1] // 2)
        if not np.nansum(underflow):
            panel.text(0.5, 0.5, "no value becomes 0", transform=panel.transAxes, ha="center")
    panels[0].set_ylabel("layer")
    _ticks(panels[0].yaxis, [layer or "(net)" for layer in layers], TICKS[0])
    figure.suptitle(f"{title or format_} (×: some overflow, grey: no tensor)", fontsize=11)
    bar = figure.colorbar(colours, ax=list(panels), fraction=0.03)
    bar.set_label(f"share that becomes 0\nin {format_}")
    bar.set_ticks(SHARES)
    bar.set_ticklabels([f"{100 * share:g} %" for share in SHARES])
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:  # ValueError: a suffix that matplotlib does not know
        reason = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise UsageError(f"plot() cannot write {path}: {reason}.") from None


def _shares(
    rows: List[Row], format_: str, direction: str, layers: List[str], steps: List[int]
) -> Tuple[np.ndarray, np.ndarray]:
    """Return the shares of underflows and of overflows, layers by steps; NaN without a tensor."""
    result = np.full((2, len(layers), len(steps)), np.nan)
    # The largest one counts. Of several looks at a step, of a run that was resumed, the last does.
    for row in sorted(rows, key=lambda row: row.size):
        if row.direction == direction:
            effect = row.formats[format_]
            place = layers.index(row.layer), steps.index(row.step)
            result[(slice(None), *place)] = effect.underflow, effect.overflow
    return result[0], result[1]


def _ticks(axis, labels: List[str], limit: int) -> None:
    """Show at most `limit` labels, evenly spaced."""
    places = range(0, len(labels), -(-len(labels) // limit))
    axis.set_ticks(list(places))
    axis.set_ticklabels([labels[k] for k in places], fontsize=8)
