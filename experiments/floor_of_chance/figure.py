"""Draws the distances from float32 by epoch: the floor beside each dtype."""

import textwrap
from pathlib import Path

import numpy as np

from experiments.floor_of_chance.compare import QUANTITIES, Results, magnitudes
from gluon_amp.inspection.figures import COLOURS, SUPPORT
from gluon_amp.training.tables.figure import new_figure, styled

# The floor is a wide grey band, on which the lines of the dtypes are drawn.
STYLES = {
    "floor": {"color": SUPPORT, "linewidth": 5},
    "float16": {"color": COLOURS["float16"], "linestyle": "-"},
    "float16_static": {"color": COLOURS["float16"], "linestyle": ":"},
    "mixed_float16": {"color": COLOURS["mixed_float16"], "linestyle": "--"},
    "bfloat16": {"color": COLOURS["bfloat16"], "linestyle": "-"},
}


@styled()
def draw(results: Results, path: Path) -> None:
    """Write a PNG: a panel for each quantity, and a line with a band for each row.

    The line is the mean over the seeds. The band extends from the lowest to the highest seed. If
    matplotlib is not installed, that is a `UsageError`.
    """
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
        axes.set(xlabel="Epoch", yscale="log", title=quantity.title)
        axes.set_ylabel(quantity.unit)
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(title="float32 against")
    count = len(results["seeds"])
    title = (
        f"{results['model']} on {results['data']}, {results['hardware']}: mean, lowest and highest "
        f"of {count} seeds"
    )
    figure.suptitle(textwrap.fill(title, 150))
    figure.savefig(path)
