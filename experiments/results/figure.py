"""Draws the curves of a table: top-1 error after each epoch, with a band over the seeds."""

import textwrap
from pathlib import Path

from experiments.results.table import Table
from gluon_amp.command_line import UsageError

# Okabe and Ito's colours ("Color Universal Design", 2008), which colour-blind readers distinguish.
COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("-", "--", "-.", ":")
LOWEST = 0.1  # percent, the lower end of the logarithmic axis
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 40, 50, 70, 100)
TITLE_WIDTH = 110  # characters that fit above the axes


def draw(table: Table, path: Path) -> None:
    """Write a PNG with the top-1 error in percent by epoch, a line for each row.

    The line is the mean; the band extends one standard deviation to either side. If matplotlib is
    not installed, that is a `UsageError`.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(
            "matplotlib is not installed: run `pip install 'gluon-amp[results]'`."
        ) from None
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, row in enumerate(row for row in table.rows if row.curve):
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        means = [max(point.mean, LOWEST) for point in row.curve]
        epochs = range(1, len(means) + 1)
        label = f"{row.configuration.label}: {row.curve[-1].mean:.2f} %"
        axes.plot(epochs, means, color=colour, linestyle=dash, linewidth=1.6, label=label)
        if all(point.sd is not None for point in row.curve):
            low = [max(point.mean - point.sd, LOWEST) for point in row.curve]
            high = [min(point.mean + point.sd, 100) for point in row.curve]
            axes.fill_between(epochs, low, high, color=colour, alpha=0.15, linewidth=0)
    seeds = max(len(row.seeds) for row in table.rows)
    over = f", mean ± sd over {seeds} seeds" if seeds > 1 else ""
    axes.set(xlabel="Epoch", ylabel=f"Top-1 error (%){over}", yscale="log")
    title = f"{table.model} on {table.data}, {table.source} on {table.hardware}"
    axes.set_title(textwrap.fill(title, TITLE_WIDTH), fontsize=9)
    axes.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.minorticks_off()
    ends = [point.mean for row in table.rows for point in row.curve]
    axes.set_ylim(max(LOWEST, 0.7 * min(ends)), 100)
    axes.grid(alpha=0.3)
    axes.legend(title="after the last epoch", fontsize=9)
    figure.savefig(path, dpi=120)
