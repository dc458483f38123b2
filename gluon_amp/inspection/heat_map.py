"""A heat map of looks: layers by steps, with a panel for each direction."""

from pathlib import Path
from typing import Dict, List, Tuple

import numpy as np

from gluon_amp.base.messages import UsageError, from_extra
from gluon_amp.inspection.figures import OTHER
from gluon_amp.inspection.look import Row
from gluon_amp.policy.study import DIRECTIONS

TICKS = (60, 12)  # at most so many names of layers and of steps are shown


def draw(rows: List[Row], format_: str, path: Path) -> None:
    """Draw the share of underflows by colour, and mark overflows; raise `UsageError` if it fails.

    A layer with several parameters is shown by its largest one. Grey cells have no tensor.
    """
    with from_extra("results", "plot() needs matplotlib"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    rows = [row for row in rows if format_ in row.formats]
    if not rows:
        raise UsageError(f"plot() has no look at {format_} to draw: train for a step first.")
    steps = sorted({row.step for row in rows})
    # In the order in which the network runs them, as far as it is known
    forward = [row.layer for row in rows if row.direction == "forward"]
    layers = list(dict.fromkeys([*forward, *(row.layer for row in rows)]))
    figure = Figure(
        figsize=(9, 1.4 + 0.19 * min(max(len(layers), 6), TICKS[0])),
        dpi=120,
        constrained_layout=True,
    )
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(DIRECTIONS), sharey=True)
    for panel, direction in zip(panels, DIRECTIONS):
        underflow, overflow = _shares(rows, format_, direction, layers, steps)
        panel.set_facecolor("#dddddd")
        image = panel.imshow(underflow, vmin=0, vmax=1, cmap="Blues", aspect="auto")
        y, x = np.nonzero(np.nan_to_num(overflow))
        panel.scatter(x, y, marker="x", color=OTHER, s=18, label="overflows")
        panel.set_title(direction.replace("_", " "), fontsize=10)
        panel.set_xlabel("step")
        _ticks(panel.xaxis, [str(step) for step in steps], TICKS[1] // 2)
    _ticks(panels[0].yaxis, [layer or "(net)" for layer in layers], TICKS[0])
    figure.suptitle(
        f"share of values that become 0 in {format_} (×: some overflow, grey: no tensor)",
        fontsize=11,
    )
    figure.colorbar(image, ax=list(panels), fraction=0.03)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:  # ValueError: a suffix that matplotlib does not know
        reason = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise UsageError(f"plot() cannot write {path}: {reason}.") from None


def _shares(
    rows: List[Row], format_: str, direction: str, layers: List[str], steps: List[int]
) -> Tuple[np.ndarray, np.ndarray]:
    """Return the shares of underflows and of overflows, layers by steps; NaN without a tensor."""
    cells: Dict[Tuple[str, int], Row] = {}
    for row in rows:
        place = row.layer, row.step
        if row.direction == direction:
            # Of several looks at a step, of a run that was resumed, the last one counts.
            is_smaller = place in cells and row.size < cells[place].size
            cells[place] = cells[place] if is_smaller else row
    result = np.full((2, len(layers), len(steps)), np.nan)
    for (layer, step), row in cells.items():
        effect = row.formats[format_]
        place = layers.index(layer), steps.index(step)
        result[(slice(None), *place)] = effect.underflow, effect.overflow
    return result[0], result[1]


def _ticks(axis, labels: List[str], limit: int) -> None:
    """Show at most `limit` labels, evenly spaced."""
    places = range(0, len(labels), -(-len(labels) // limit))
    axis.set_ticks(list(places))
    axis.set_ticklabels([labels[k] for k in places], fontsize=8)
