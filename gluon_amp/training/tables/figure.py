"""Draws a table: every run, the differences between rows within the margin, and learning curves."""

import contextlib
import textwrap
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Iterator, Optional, Tuple

import numpy as np

from gluon_amp.base.messages import from_extra
from gluon_amp.inspection.figures import BAND, COLOURS, OTHER, STYLE, SUPPORT
from gluon_amp.training.tables.record import RunRecord
from gluon_amp.training.tables.statistics import CONFIDENCE, Comparison
from gluon_amp.training.tables.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE_WIDTH = 120  # characters that fit above the axes
SPREAD = 0.22  # of the points of a row, to either side of its line
# The attribute of a run, of a row and of a contrast, with the unit; the margin is the table's.
METRICS: Tuple[Tuple[str, str, str], ...] = (
    ("top1", "Top-1 accuracy (%)", "percentage points"),
    ("cross_entropy", "Validation cross-entropy (nats)", "nats"),
)
LINES = ("-", "--", ":", "-.")  # of the rows of one colour


def draw(table: Table, path: Path) -> None:
    """Write a PNG: runs and means, a forest plot of the differences, and the curve of each run."""
    plot(table).savefig(path)


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Draw in the style of all figures; use it as a context or as a decorator."""
    with from_extra("results", "matplotlib is not installed"):
        import matplotlib.style
    with matplotlib.style.context(STYLE):
        yield


@styled()
def plot(table: Table) -> "Figure":
    """Return the figure that `draw` writes."""
    metrics = [each for each in METRICS if any(getattr(row, each[0]) for row in table.rows)]
    heights = [1.1 + 0.6 * len(table.rows)] * len(metrics)
    has_curves = any(len(run.cross_entropies) > 1 for run in table.runs)
    heights += [4.0] * has_curves
    figure = new_figure(12, 0.9 + sum(heights))
    ratios = {"height_ratios": heights}
    panels = figure.subplots(len(heights), 2, squeeze=False, gridspec_kw=ratios)
    margins = {"top1": table.margin, "cross_entropy": table.cross_entropy_margin}
    for (points, forest), (field, title, unit) in zip(panels, metrics):
        _draw_runs(points, table, field, title)
        _draw_differences(forest, table, field, margins[field], unit)
        forest.sharey(points)
        forest.tick_params(labelleft=False)
    if has_curves:
        _draw_curves(panels[-1][0], panels[-1][1], table)
    when = f", {table.dates}" if table.dates else ""
    title = f"{table.model} on {table.data}, {table.source} on {table.hardware}{when}"
    figure.suptitle(textwrap.fill(title, TITLE_WIDTH))
    return figure


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure of a size in inches, which needs no screen. Call it in `styled`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _draw_runs(axes: "Axes", table: Table, field: str, title: str) -> None:
    # a seed has the same place in every row
    seeds = sorted({run.seed for run in table.runs})
    step = 2 * SPREAD / max(1, len(seeds) - 1)
    for number, row in enumerate(table.rows):
        values = [
            (getattr(run, field), number - SPREAD + step * seeds.index(run.seed))
            for run in table.runs
            if run.configuration == row.configuration and run.failure is None
        ]
        points = [point for point in values if point[0] is not None]
        colour = COLOURS.get(row.configuration.dtype, OTHER)
        xs, ys = [x for x, _ in points], [y for _, y in points]
        axes.scatter(xs, ys, s=12, color=colour, alpha=0.7)
        summary = getattr(row, field)
        if summary is not None:
            ends = (number - 1.6 * SPREAD, number + 1.6 * SPREAD)
            axes.vlines(summary.mean, *ends, color=colour, linewidth=1.6)
    axes.set_yticks(range(len(table.rows)), [row.configuration.label for row in table.rows])
    axes.set_ylim(len(table.rows) - 0.5, -0.5)
    axes.set_xlabel(f"{title}: runs and mean")
    axes.locator_params(axis="x", nbins=6)  # so that long numbers do not touch
    axes.grid(axis="y", visible=False)


def _draw_differences(axes: "Axes", table: Table, field: str, margin: float, unit: str) -> None:
    axes.axvspan(-margin, margin, color=BAND, zorder=0)
    axes.axvline(0, color=SUPPORT, linewidth=0.8, zorder=1)
    furthest = margin
    for number, row in enumerate(table.rows):
        tested = [each for each in row.contrasts if getattr(each, field) is not None]
        for place, contrast in enumerate(tested):
            comparison = getattr(contrast, field)
            height = number + 0.42 * (place - (len(tested) - 1) / 2)
            colour = COLOURS.get(row.configuration.dtype, OTHER)
            text = f"minus {contrast.label}:\n{comparison}"
            face = colour if contrast.same_batch else "white"
            extent = draw_difference(axes, comparison, height, colour, text, 7.5, face)
            furthest = max(furthest, extent)
    axes.set_xlim(-1.15 * furthest, 1.15 * furthest)
    axes.set_xlabel(f"Difference ({unit}), {CONFIDENCE:.0%} interval, margin ±{margin:g}")
    axes.grid(axis="y", visible=False)


def _draw_curves(curves: "Axes", differences: "Axes", table: Table) -> None:
    """Draw the validation cross-entropy of each run, and its distance from the first row's run."""
    first = table.rows[0].configuration
    reference = {run.seed: _curve(run) for run in table.runs if run.configuration == first}
    of_colour: Counter = Counter()
    for row in table.rows:
        colour = COLOURS.get(row.configuration.dtype, OTHER)
        line = {"color": colour, "linestyle": LINES[of_colour[colour] % len(LINES)]}
        of_colour[colour] += 1
        for run in table.runs:
            if run.configuration != row.configuration or run.failure is not None:
                continue
            curve, other = _curve(run), reference.get(run.seed, np.empty(0))
            epochs = np.arange(1, len(curve) + 1)
            curves.plot(epochs, curve, linewidth=0.8, alpha=0.7, **line)
            if row.configuration != first and len(other) == len(curve):
                differences.plot(epochs, curve - other, linewidth=0.8, alpha=0.7, **line)
        differences.plot([], [], label=row.configuration.label, **line)
    margin = table.cross_entropy_margin
    differences.axhspan(-margin, margin, color=BAND, zorder=0)
    differences.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7.5)
    curves.set_ylabel("Validation cross-entropy (nats)")
    differences.set_ylabel("minus the first row's run of its seed")
    for axes in (curves, differences):
        axes.set_xlabel("Epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)


def _curve(run: RunRecord) -> np.ndarray:
    """Return the cross-entropies by epoch; what is not finite is NaN, which is not drawn."""
    return np.array(run.cross_entropies, dtype=float)


def draw_difference(
    axes: "Axes",
    comparison: Comparison,
    height: float,
    colour: str,
    text: str,
    fontsize: float,
    face: Optional[str] = None,
) -> float:
    """Draw a difference on its interval, with a text; return the larger distance from 0."""
    low, high = comparison.low, comparison.high
    if low is None or high is None:
        low = high = comparison.difference
    axes.hlines(height, low, high, color=colour, linewidth=1.6)
    axes.plot(comparison.difference, height, "o", color=colour, markersize=5, markerfacecolor=face)
    place = {"xycoords": ("axes fraction", "data"), "annotation_clip": False}
    axes.annotate(text, (1.02, height), fontsize=fontsize, va="center", **place)
    return max(-low, high)
