"""The parts of docs/results/floor/*.md, and the figure, computed from the results."""

import textwrap
from pathlib import Path
from typing import Dict, List

import numpy as np

from experiments import pages
from experiments.floor_of_chance.compare import (
    QUANTITIES,
    Quantity,
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
HEAD = ["float32 against", "at the start", "after epoch 1", "after the last epoch"]
HEAD += ["minus the floor", "p (differ)", "p (equivalent)", "verdict"]

# The floor is a wide grey band, on which the lines of the dtypes are drawn.
STYLES = {
    "floor": {"color": SUPPORT, "linewidth": 5},
    "float16": {"color": COLOURS["float16"], "linestyle": "-"},
    "float16_static": {"color": COLOURS["float16"], "linestyle": ":"},
    "mixed_float16": {"color": COLOURS["mixed_float16"], "linestyle": "--"},
    "bfloat16": {"color": COLOURS["bfloat16"], "linestyle": "-"},
}


def parts(results: Results) -> pages.Parts:
    """Return the parts of the page."""
    rows, about, seeds = results["rows"], results["about"], results["seeds"]
    return {
        "title": f"# The noise floor: {results['dataset']}",
        "setting": f"{results['model']} on {results['data']}, batch {results['batch']}, "
        f"{results['epochs']} epochs; seeds: {', '.join(seeds)}.",
        "bits": (SAME_BITS if results["identical"] else OTHER_BITS).format(seed=seeds[0]),
        "figure": f"![Distances from float32 by epoch]({results['dataset']}.png)",
        "verdicts": "\n".join(f"- {sentence(results, name)}" for name in rows if name != "floor"),
        **{quantity.name: table(results, quantity) for quantity in QUANTITIES},
        "measured": f"{about['date']}, {results['hardware']}, {about['system']}, Python "
        f"{about['python']}, MXNet {about['mxnet']}, gluon_amp {about['gluon_amp']}, numpy "
        f"{about['numpy']}. Command: `{results['command']}`.",
    }


def sentence(results: Results, name: str) -> str:
    """Return what the comparisons of a row with the floor show."""
    row, floor = results["rows"][name], results["rows"]["floor"]
    comparisons = [against_floor(results, name, quantity) for quantity in QUANTITIES]
    details = []
    for quantity, comparison in zip(QUANTITIES, comparisons):
        ends = [magnitudes(results, each, quantity)[:, -1].mean() for each in (name, "floor")]
        numbers = " against ".join(map(_number, ends))
        details.append(f"{quantity.title.lower()} {numbers}, {verdict(comparison)}")
    same = all(comparison.equivalent and not comparison.differs for comparison in comparisons)
    summary = " is indistinguishable from the floor" if same else ""
    tops = " against ".join(f"{_mean_of(each, 'top1'):.2f}" for each in (row, floor))
    return (
        f"**{row['label']}**{summary}: {'; '.join(details)}. Top-1 {tops} %; "
        f"{_mean_of(row, 'skipped_steps'):.1f} steps were skipped."
    )


def verdict(comparison: Comparison) -> str:
    """Return the verdict of a comparison, with the direction where there is a difference."""
    if not comparison.differs:
        return str(comparison)
    side = "farther than" if comparison.difference > 0 else "nearer than"
    return f"{side} the floor{' but within the margin' if comparison.equivalent else ''}"


def table(results: Results, quantity: Quantity) -> str:
    """Return the table of a quantity, a line for each row."""
    lines = []
    for name, row in results["rows"].items():
        values = magnitudes(results, name, quantity)
        last = values[:, -1]
        cells = [row["label"], _number(values[:, 0].mean()), _number(values[:, 1].mean())]
        cells.append(f"{_number(last.mean())} [{_number(last.min())}, {_number(last.max())}]")
        tests = ["–"] * 4 if name == "floor" else _tests(against_floor(results, name, quantity))
        lines.append(cells + tests)
    return pages.table(HEAD, lines)


def _tests(comparison: Comparison) -> List[str]:
    difference = f"{comparison.difference:+.2g}"
    if comparison.low is None:
        return [difference, "–", "–", str(comparison)]
    interval = f"{difference} ({comparison.low:+.2g} to {comparison.high:+.2g})"
    return [interval, f"{comparison.p:.3f}", f"{comparison.p_tost:.3f}", str(comparison)]


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
