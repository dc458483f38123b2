"""Draws the cross-validation: every fold as a point, and the differences within the margins."""

from pathlib import Path
from typing import TYPE_CHECKING

from experiments.photographs.comparisons import METRICS, Results, comparison, reference, verdict
from experiments.photographs.fits import ROWS
from gluon_amp.inspection.figures import BAND, COLOURS, SUPPORT
from gluon_amp.training.tables.figure import SPREAD, draw_difference, new_figure, styled
from gluon_amp.training.tables.statistics import spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@styled()
def draw(results: Results, path: Path) -> None:
    """Write a PNG with a row of panels for each metric.

    The left panel has a point for each fold and a line for each mean. The right one is a forest
    plot: the differences from float32 with their intervals, and each row's margin as a band. If
    matplotlib is not installed, that is a `UsageError`.
    """
    figure = new_figure(10, 8)
    for (points, forest), metric in zip(figure.subplots(len(METRICS), 2, sharey="row"), METRICS):
        _draw_folds(points, results, metric)
        _draw_differences(forest, results, metric)
    figure.suptitle("EfficientNet-Lite0 on photographs, with ImageNet's weights")
    figure.savefig(path)


def _draw_folds(axes: "Axes", results: Results, metric: str) -> None:
    for number, row in enumerate(ROWS):
        values = [fold[metric] for _, fold in sorted(results[row].items())]
        step = 2 * SPREAD / max(1, len(values) - 1)
        heights = [number - SPREAD + step * place for place in range(len(values))]
        axes.scatter(values, heights, s=12, color=COLOURS[row.dtype], alpha=0.6)
        ends = (number - 1.6 * SPREAD, number + 1.6 * SPREAD)
        axes.vlines(spread(values).mean, *ends, color=COLOURS[row.dtype], linewidth=1.6)
    labels = [f"{row.training.label},\n{row.dtype}" for row in ROWS]
    axes.set_yticks(range(len(ROWS)), labels, fontsize=8)
    axes.set_ylim(len(ROWS) - 0.5, -0.5)
    name, unit, _ = METRICS[metric]
    axes.set_xlabel(f"{name} ({unit}): each fold, and the mean")
    axes.grid(axis="y", visible=False)


def _draw_differences(axes: "Axes", results: Results, metric: str) -> None:
    """Draw the differences between dtypes; that of training from scratch is far outside."""
    furthest = 0.0
    for number, row in enumerate(ROWS):
        if row == reference(row) or row.training.from_scratch:
            continue
        compared = comparison(results, row, metric)
        margin, colour = compared.margin, COLOURS[row.dtype]
        axes.fill_betweenx((number - 0.5, number + 0.5), -margin, margin, color=BAND, zorder=0)
        extent = draw_difference(axes, compared, number, colour, verdict(compared), fontsize=8)
        furthest = max(furthest, margin, extent)
    axes.axvline(0, color=SUPPORT, linewidth=0.8, zorder=1)
    axes.set_xlim(-1.15 * furthest, 1.15 * furthest)
    unit = {"%": "percentage points"}.get(METRICS[metric].unit, METRICS[metric].unit)
    axes.set_xlabel(f"Minus float32 ({unit}), 95 % interval; grey: the margin")
    axes.grid(axis="y", visible=False)
