"""The page of results: every sentence and every number is computed from the results."""

from typing import Dict, Sequence

import numpy as np

from experiments.floor_of_chance.compare import (
    QUANTITIES,
    Quantity,
    Results,
    against_floor,
    magnitudes,
)
from gluon_amp.training.tables.statistics import CONFIDENCE, Comparison

INTRODUCTION = """\
Training amplifies the smallest disturbance. Each seed is trained in float32 and then again in the
other ways of the table, with the same order and augmentation of the images. The initial weights are
the same, except in the row *{floor}*. There each initial weight is moved to the next float32
number, up or down at random. The distance of these runs from float32 is the floor of chance. A
dtype that ends no farther from float32 adds nothing to chance. A step that a loss scale skips is a
disturbance, too."""
SAME_BITS = """\
Without a disturbance, float32 trained again ends with the same bits: all outputs and weights of
seed {seed} are equal after every epoch."""
OTHER_BITS = """\
**Float32 trained again without a disturbance does not end with the same bits** (seed {seed}). Runs
do not repeat on this machine, so a part of the floor is not due to the disturbance."""
READING = """\
Numbers are means over the seeds, with the lowest and the highest in brackets. The difference of
the cross-entropies is its absolute value. Differences from the floor are those of the last epoch,
paired by seed, with a {confidence:.0%} interval. “Equivalent” means that two one-sided tests (TOST)
show a difference of less than the margin at the {level:.0%} level, “different” that the paired
t-test shows a difference, and “undecided” that neither does. The margins are {margins}."""


def page(results: Results, figure: str) -> str:
    """Return the page as Markdown; `figure` is the name of the file of the curves."""
    rows, about = results["rows"], results["about"]
    first_seed = results["seeds"][0]
    margins = ", ".join(f"{results['margins'][each.name]:g} ({each.unit})" for each in QUANTITIES)
    parts = [
        f"# The floor of chance: {results['dataset']}",
        f"{results['model']} on {results['data']}, batch {results['batch']}, "
        f"{results['epochs']} epochs; seeds: {', '.join(results['seeds'])}.",
        INTRODUCTION.format(floor=rows["floor"]["label"]),
        (SAME_BITS if results["identical"] else OTHER_BITS).format(seed=first_seed),
        f"![Distances from float32 by epoch]({figure})",
        "\n".join(f"- {sentence(results, name)}" for name in rows if name != "floor"),
        READING.format(
            confidence=CONFIDENCE,
            level=1 - CONFIDENCE,
            margins=margins,
        ),
    ]
    for quantity in QUANTITIES:
        parts += [f"## {quantity.title}", f"In {quantity.unit}.", table(results, quantity)]
    trained = (results["reference"], *rows.values())
    times = ", ".join(f"{row['label']} {_mean_of(row, 'seconds'):.0f} s" for row in trained)
    parts += [
        "## How it was measured",
        f"Training time of a run, with {results['parallel']} at a time and {about['threads']} "
        f"thread{'s' if about['threads'] > 1 else ''} each: {times}.",
        f"{about['date']}, {results['hardware']}, {about['system']}, Python {about['python']}, "
        f"MXNet {about['mxnet']}, gluon_amp {about['gluon_amp']}, numpy {about['numpy']}. "
        f"Command: `{results['command']}`.",
    ]
    return "\n\n".join(parts) + "\n"


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
    skipped = np.mean([seed["skipped_steps"] for seed in row["seeds"].values()])
    return (
        f"**{row['label']}**{summary}: {'; '.join(details)}. Top-1 {tops} %; "
        f"{skipped:.1f} steps were skipped."
    )


def verdict(comparison: Comparison) -> str:
    """Return the verdict of a comparison, with the direction where there is a difference."""
    if not comparison.differs:
        return str(comparison)
    side = "farther than" if comparison.difference > 0 else "nearer than"
    return f"{side} the floor{' but within the margin' if comparison.equivalent else ''}"


def table(results: Results, quantity: Quantity) -> str:
    """Return a Markdown table of a quantity, a line for each row."""
    lines = [
        "| float32 against | at the start | after epoch 1 | after the last epoch "
        "| minus the floor | p (differ) | p (equivalent) | verdict |",
        "| :--- | ---: | ---: | ---: | ---: | ---: | ---: | :--- |",
    ]
    for name, row in results["rows"].items():
        values = magnitudes(results, name, quantity)
        cells = [row["label"], _number(values[:, 0].mean()), _number(values[:, 1].mean())]
        last = values[:, -1]
        cells.append(f"{_number(last.mean())} [{_number(last.min())}, {_number(last.max())}]")
        cells += ["–"] * 4 if name == "floor" else _tests(against_floor(results, name, quantity))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _tests(comparison: Comparison) -> Sequence[str]:
    difference = f"{comparison.difference:+.2g}"
    if comparison.low is None:
        return difference, "–", "–", str(comparison)
    interval = f"{difference} ({comparison.low:+.2g} to {comparison.high:+.2g})"
    return interval, f"{comparison.p:.3f}", f"{comparison.p_tost:.3f}", str(comparison)


def _number(value: float) -> str:
    return f"{value:.3g}"


def _mean_of(row: Dict, field: str) -> float:
    """Return the mean over seeds of a number, or of the last number of a series."""
    return float(np.mean([np.ravel(seed[field])[-1] for seed in row["seeds"].values()]))
