"""The parts of docs/results/photographs/photographs.md, and its figure: every fold, compared."""

from pathlib import Path
from typing import Any, Dict, List, NamedTuple

from experiments import pages
from experiments.photographs.fits import ALL, HEAD, ROWS, SCRATCH, SIZE, Row
from experiments.photographs.stamps import CATEGORIES
from gluon_amp.inspection.figures import BAND, COLOURS, SUPPORT
from gluon_amp.training.tables.figure import SPREAD, draw_difference, new_figure, styled
from gluon_amp.training.tables.render import difference
from gluon_amp.training.tables.statistics import Comparison, compare_pairs, spread

Results = Dict[Row, Dict[int, Dict[str, Any]]]  # by row and by the seed of the fold


class Metric(NamedTuple):
    """What is measured on the validation images of a fold."""

    name: str
    unit: str
    digits: int  # after the point, in a table


METRICS = {
    "accuracy": Metric("Accuracy", "%", 2),
    "cross_entropy": Metric("Cross-entropy", "nats", 4),
}

# Smaller differences count as none. They were set before the run: those of the other tables, or the
# smallest multiples of them that the folds of a row show with a power of 80 %, by the standard
# deviations of the differences in docs/results/photographs/pilot.csv.
MARGINS = {
    HEAD.label: {"accuracy": 0.5, "cross_entropy": 0.01},
    ALL.label: {"accuracy": 1.5, "cross_entropy": 0.02},
}


def reference(row: Row) -> Row:
    """Return the row that a row is compared with: float32, and the pretrained weights."""
    return Row(ALL if row.training is SCRATCH else row.training, "float32")


def comparison(results: Results, row: Row, metric: str) -> Comparison:
    """Compare a row with its reference, fold by fold, over the folds that both have."""
    other = results[reference(row)]
    common = sorted(results[row].keys() & other.keys())
    pairs = ([part[seed][metric] for seed in common] for part in (results[row], other))
    return compare_pairs(*pairs, MARGINS[reference(row).training.label][metric])


def verdict(compared: Comparison) -> str:
    """Return the verdict of a comparison; there is no test if the pairs are equal."""
    equal = compared.p is None and compared.difference == 0
    return "equal in every fold" if equal else str(compared)


def restored(values: pages.Values) -> Results:
    """Return the results in the object of photographs.json."""
    folds = {row["name"]: row["folds"] for row in values["rows"]}
    return {row: {int(seed): fold for seed, fold in folds[row.name].items()} for row in ROWS}


def parts(values: pages.Values) -> pages.Parts:
    """Return the parts of the page."""
    results, about = restored(values), values["about"]
    folds = [fold for each in results.values() for fold in each.values()]
    hardware, versions, dates = (
        sorted({fold[field] for fold in folds}) for field in ("hardware", "versions", "date")
    )
    days = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    minutes = sum(fold["seconds"] for fold in folds) / 60
    return {
        "images": f"{about['images']} photographs of {len(CATEGORIES)} categories at {SIZE} pixels",
        **{metric: table(results, metric) for metric in METRICS},
        "costs": costs(results),
        "measured": f"{'; and on '.join(hardware)}, on {days}, with {'; and with '.join(versions)}:"
        f" {minutes:.0f} CPU minutes",
        "digest": f"`{about['digest'][:16]}…`",
        "command": f"`{about['command']}`",
    }


def table(results: Results, metric: str) -> str:
    """Return the table of one metric."""
    name, unit, digits = METRICS[metric]
    lines = []
    for row in ROWS:
        values = spread([result[metric] for result in results[row].values()])
        sd = "" if values.sd is None else f" ± {values.sd:.{digits}f}"
        cells = [row.training.label, row.dtype, f"{values.count}", f"{values.mean:.{digits}f}{sd}"]
        if row == reference(row):
            cells += ["–"] * 5
        else:
            compared = comparison(results, row, metric)
            cells += [difference(compared, digits), f"±{compared.margin:g}"]
            cells += ["–" if p is None else f"{p:.3f}" for p in (compared.p, compared.p_tost)]
            cells.append(verdict(compared))
        lines.append(cells)
    head = ["Trained", "Computed in", "Folds", f"{name} ({unit}) ± sd"]
    head += ["Minus float32 (95 % interval)", "Margin", "p (differ)", "p (equivalent)", "Verdict"]
    return pages.table(head, lines, words=2)


def costs(results: Results) -> str:
    """Return the table of skipped steps and of times."""
    lines = []
    for row in ROWS:
        steps, skipped, seconds = (
            spread([result[field] for result in results[row].values()]).mean
            for field in ("steps", "skipped_steps", "seconds")
        )
        numbers = [f"{steps:.0f}", f"{skipped:.1f}", f"{seconds:.1f}"]
        lines.append([row.training.label, row.dtype, *numbers])
    head = ["Trained", "Computed in", "Steps of a fold", "Skipped", "CPU seconds of a fold"]
    return pages.table(head, lines, words=2)


@styled()
def draw(values: pages.Values, path: Path) -> None:
    """Write a PNG: for each metric all folds with their means, and a forest plot of differences.

    The forest plot has the intervals of the differences from float32, and the margins as bands.
    """
    results = restored(values)
    figure = new_figure(12, 8)
    for (points, forest), metric in zip(figure.subplots(len(METRICS), 2, sharey="row"), METRICS):
        _draw_folds(points, results, metric)
        _draw_differences(forest, results, metric)
    figure.suptitle("EfficientNet-Lite0 on photographs, with ImageNet's weights")
    figure.savefig(path)


def _draw_folds(axes: Any, results: Results, metric: str) -> None:
    for number, row in enumerate(ROWS):
        values: List[float] = [fold[metric] for _, fold in sorted(results[row].items())]
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


def _draw_differences(axes: Any, results: Results, metric: str) -> None:
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
