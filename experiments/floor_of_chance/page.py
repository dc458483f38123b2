"""What docs/results/floor.md shows of a data set, and its figure, computed from the results."""

import textwrap
from pathlib import Path
from typing import Dict

import numpy as np

from experiments import pages
from experiments.floor_of_chance.compare import (
    QUANTITIES,
    Results,
    against_floor,
    magnitudes,
)
from gluon_amp.inspection.figures import COLOURS, SUPPORT
from gluon_amp.training.tables.figure import new_figure, styled
from gluon_amp.training.tables.statistics import Comparison

SAME_BITS = """\
Without a disturbance, float32 trained again ends with the same bits: all outputs and weights of
seed {seed} are equal after every epoch."""
OTHER_BITS = """\
**Float32 trained again without a disturbance does not end with the same bits** (seed {seed}). Runs
do not repeat on this machine, so a part of the floor is not due to the disturbance."""
# The floor is a wide grey band, on which the lines of the dtypes are drawn.
STYLES = {
    "floor": {"color": SUPPORT, "linewidth": 5},
    "float16": {"color": COLOURS["float16"], "linestyle": "-"},
    "float16_static": {"color": COLOURS["float16"], "linestyle": ":"},
    "mixed_float16": {"color": COLOURS["mixed_float16"], "linestyle": "--"},
    "bfloat16": {"color": COLOURS["bfloat16"], "linestyle": "-"},
}


def part(results: Results, picture: str) -> str:
    """Return what one data set shows: its table, its figure in a file, and how it was measured."""
    about, seeds = results["about"], results["seeds"]
    texts = [
        f"{results['model']} on {results['data']}, batch {results['batch']}, "
        f"{results['epochs']} epochs; seeds: {', '.join(seeds)}.",
        (SAME_BITS if results["identical"] else OTHER_BITS).format(seed=seeds[0]),
        table(results),
        f"![Distances from float32 by epoch]({picture})",
        f"Measured on {about['date']}, {results['hardware']}, {about['system']}, Python "
        f"{about['python']}, MXNet {about['mxnet']}, gluon_amp {about['gluon_amp']}, numpy "
        f"{about['numpy']}. Command: `{results['command']}`.",
    ]
    return "\n\n".join(texts)


def verdict(comparison: Comparison) -> str:
    """Return the verdict of a comparison, with the direction where there is a difference."""
    if not comparison.differs:
        return str(comparison)
    side = "farther than" if comparison.difference > 0 else "nearer than"
    return f"{side} the floor{' but within the margin' if comparison.equivalent else ''}"


def table(results: Results) -> str:
    """Return a line for each row: the distances at the end, and their verdicts."""
    lines = []
    for name, row in results["rows"].items():
        cells = [row["label"]]
        for quantity in QUANTITIES:
            cell = _number(magnitudes(results, name, quantity)[:, -1].mean())
            if name != "floor":
                comparison = against_floor(results, name, quantity)
                interval = f"{comparison.difference:+.2g}"
                if comparison.low is not None:
                    interval += f" ({comparison.low:+.2g} to {comparison.high:+.2g})"
                cell += f", {interval}, {verdict(comparison)}"
            cells.append(cell)
        lines.append(
            [*cells, f"{_mean_of(row, 'top1'):.2f}", f"{_mean_of(row, 'skipped_steps'):.1f}"]
        )
    heads = [f"{quantity.title.lower()} ({quantity.unit})" for quantity in QUANTITIES]
    return pages.table(["float32 against", *heads, "top-1 (%)", "skipped steps"], lines)


def _number(value: float) -> str:
    return f"{value:.3g}"


def _mean_of(row: Dict, field: str) -> float:
    """Return the mean over seeds of a number, or of the last number of a series."""
    return float(np.mean([np.ravel(seed[field])[-1] for seed in row["seeds"].values()]))


@styled()
def draw(results: Results, path: Path) -> None:
    """Write a PNG: a panel for each quantity, and for each row the mean and the range of seeds."""
    figure = new_figure(13, 4.6)
    for axes, quantity in zip(figure.subplots(1, len(QUANTITIES)), QUANTITIES):
        values = {name: magnitudes(results, name, quantity) for name in results["rows"]}
        positive = np.concatenate([each[each > 0] for each in values.values()])
        lowest = positive.min() / 2 if positive.size else 1.0  # stands for 0 on this axis
        for name, of_seeds in values.items():
            mean, low, high = (
                np.maximum(reduced(of_seeds, axis=0), lowest)
                for reduced in (np.mean, np.min, np.max)
            )
            style, epochs = STYLES[name], range(len(mean))
            axes.plot(epochs, mean, label=results["rows"][name]["label"], **style)
            band = {"color": style["color"], "alpha": 0.3 if name == "floor" else 0.13}
            axes.fill_between(epochs, low, high, linewidth=0, **band)
        axes.set(xlabel="Epoch", ylabel=quantity.unit, yscale="log", title=quantity.title)
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(title="float32 against")
    title = (
        f"{results['model']} on {results['data']}, {results['hardware']}: mean, lowest and highest "
        f"of {len(results['seeds'])} seeds"
    )
    figure.suptitle(textwrap.fill(title, 150))
    figure.savefig(path)
