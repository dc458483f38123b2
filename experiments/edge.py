"""Find the learning rates at which networks diverge, in each dtype.

    python -m experiments.edge --output docs/results

A run diverges if a training loss is not finite, or if the validation loss after the last epoch is
not finite or is above that of a guess, which is what a network can do before its first step: the
logarithm of the number of classes. Finished runs are not repeated.
"""

import argparse
import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from experiments import pages
from gluon_amp.inspection.figures import COLOURS, SUPPORT
from gluon_amp.training.command_line import Parser, path, positive_int, status_of
from gluon_amp.training.runs import images, log, recipe
from gluon_amp.training.runs.language import recipe as text_recipe
from gluon_amp.training.runs.language import run as text
from gluon_amp.training.runs.loop import DivergedError
from gluon_amp.training.tables.designs import PRECISIONS
from gluon_amp.training.tables.figure import new_figure, styled
from gluon_amp.training.tables.render import difference
from gluon_amp.training.tables.statistics import Comparison, compare_pairs

DTYPES = ("float32", "float16", "mixed_float16", "bfloat16", "float8")
REFERENCE = DTYPES[0]
STYLES = {"mixed_float16": "--"}  # besides a line
MARGIN = 1.0  # steps of the rates, each a factor of 2; smaller differences of edges count as none


class Network(NamedTuple):
    """A network, how a command trains it, and the learning rates to try."""

    title: str
    prepare: Callable[[Sequence[str]], Any]
    options: str
    classes: int
    rates: Tuple[float, ...]  # each twice the last


def _images(words: Sequence[str]) -> Any:
    return images.prepare(recipe.read(words))[0]


def _text(words: Sequence[str]) -> Any:
    return text.prepare(text_recipe.read(words))[0]


DIGITS = "--dataset digits --batch-size 32 --warmup-epochs 0 --num-epochs 1 --model "
NETWORKS = {
    "cnn": Network(
        "A CNN on the digits, SGD", _images, f"{DIGITS}convnet", 10, (0.25, 0.5, 1.0, 2.0, 4.0)
    ),
    "mlp": Network(
        "An MLP on the digits, SGD", _images, f"{DIGITS}mlp", 10, (0.01, 0.02, 0.04, 0.08, 0.16)
    ),
    "transformer": Network(
        "A transformer on text, Adam",
        _text,
        "--model transformer --embedding 48 --hidden 128 --bptt 32 --batch-size 16 "
        "--characters 10000 --num-epochs 3",
        98,
        (0.04, 0.08, 0.16, 0.32, 0.64),
    ),
}


def train(name: str, dtype: str, rate: float, seed: int) -> Dict[str, Any]:
    """Train once; return the validation loss after each epoch, None if it is not finite."""
    network = NETWORKS[name]
    precision = PRECISIONS[dtype][1]
    words = f"{network.options} {precision} --lr {rate} --seed {seed} --log-interval 1".split()
    with log.silence():
        training = network.prepare(words)
        losses: List[float] = []
        for epoch in range(training.recipe.num_epochs):
            try:
                training.loop.train(training.batches, epoch)
            except (DivergedError, FloatingPointError):  # a loss, or gradients at every scale
                losses.append(math.nan)
                break
            losses.append(training.validate(epoch).cross_entropy)
    finite = [loss if math.isfinite(loss) else None for loss in losses]
    found = {"network": name, "dtype": dtype, "rate": rate, "seed": seed, "losses": finite}
    return {**found, "skipped": training.loop.skipped, "steps": training.loop.steps}


def diverged(run: Dict[str, Any]) -> bool:
    """Return whether a run diverged, as this module defines it."""
    last = run["losses"][-1]
    return last is None or last > math.log(NETWORKS[run["network"]].classes)


class Runs:
    """The runs of a network, by dtype, rate and seed."""

    def __init__(self, values: Sequence[Dict[str, Any]], name: str):
        of_network = [run for run in values if run["network"] == name]
        self.by_key = {(run["dtype"], run["rate"], run["seed"]): run for run in of_network}
        self.rates = sorted({run["rate"] for run in of_network})
        self.seeds = sorted({run["seed"] for run in of_network})

    def _of(self, dtype: str) -> List[List[Dict[str, Any]]]:
        return [[self.by_key[dtype, rate, seed] for seed in self.seeds] for rate in self.rates]

    def diverged(self, dtype: str) -> np.ndarray:
        """Return whether the runs of a dtype diverged, (rates, seeds)."""
        return np.array([list(map(diverged, runs)) for runs in self._of(dtype)])

    def losses(self, dtype: str) -> np.ndarray:
        """Return the last validation loss of the runs of a dtype, NaN if not finite: as above."""
        return np.array([[run["losses"][-1] for run in runs] for runs in self._of(dtype)], float)

    def edges(self, dtype: str) -> np.ndarray:
        """Return the step of the lowest rate at which each seed diverged; one too many if none."""
        found = self.diverged(dtype)
        return np.where(found.any(axis=0), found.argmax(axis=0), len(self.rates))


def parts(values: pages.Values) -> pages.Parts:
    """Return the parts of the page: a table of each network, and how they were measured."""
    first = Runs(values["runs"], next(iter(NETWORKS)))
    return {
        **{name: table(Runs(values["runs"], name)) for name in NETWORKS},
        "figure": "![Share of diverged runs and last losses by learning rate](edge.png)",
        "seeds": f"{len(first.seeds)} seeds",
        "measured": pages.measured(values),
    }


def table(runs: Runs) -> str:
    """Return how many runs diverged at each rate, and the edges compared with float32's."""
    rows = []
    for dtype in DTYPES:
        found = runs.diverged(dtype)
        cells = [f"{count} of {len(runs.seeds)}" for count in found.sum(axis=1)]
        compared = ["", ""]
        if dtype != REFERENCE:
            edges = (runs.edges(one).tolist() for one in (dtype, REFERENCE))
            compared = in_words(compare_pairs(*edges, MARGIN))
        rows.append([dtype, *cells, *compared, parted(runs, dtype)])
    head = ["trained in", *(f"{rate:g}" for rate in runs.rates)]
    return pages.table([*head, "edge, in steps", "verdict", "losses part at"], rows)


def in_words(comparison: Comparison) -> List[str]:
    """Return a difference of edges and its verdict."""
    if comparison.low is None:  # the same in each seed, which no test needs
        return [f"{comparison.difference:+.2f}", "the same" if not comparison.difference else "–"]
    return [difference(comparison), str(comparison)]


def parted(runs: Runs, dtype: str) -> str:
    """Return the lowest rate at which the last losses differ from float32's by a t test at 5 %.

    Seeds of which neither run diverged are compared; fewer than three are not.
    """
    if dtype == REFERENCE:
        return ""
    diverged_in_one = runs.diverged(dtype) | runs.diverged(REFERENCE)
    pairs = zip(runs.rates, runs.losses(dtype), runs.losses(REFERENCE), ~diverged_in_one)
    for rate, losses, others, compared in pairs:
        if compared.sum() > 2:
            test = compare_pairs(losses[compared].tolist(), others[compared].tolist(), 1.0)
            if test.differs:
                return f"{rate:g} ({test.difference:+.3f} nats)"
    return "none"


@styled()
def draw(values: pages.Values, path: Path) -> None:
    """Draw the share of diverged runs and the median of the last losses, a column for a network."""
    figure = new_figure(13, 7)
    for column, (name, network) in zip(figure.subplots(2, len(NETWORKS)).T, NETWORKS.items()):
        runs, guess = Runs(values["runs"], name), math.log(network.classes)
        for number, dtype in enumerate(DTYPES):
            line = {"color": COLOURS[PRECISIONS[dtype][0]], "linestyle": STYLES.get(dtype, "-")}
            # moved apart, so that equal shares do not cover each other
            rates = np.array(runs.rates) * 1.03 ** (number - len(DTYPES) // 2)
            share = 100 * runs.diverged(dtype).mean(axis=1)
            column[0].plot(rates, share, marker="o", markersize=3, label=dtype, **line)
            losses = np.median(np.nan_to_num(runs.losses(dtype), nan=np.inf), axis=1)
            column[1].plot(rates, np.minimum(losses, 2 * guess), marker="o", markersize=3, **line)
        column[0].set(title=network.title, ylabel="diverged runs in %", ylim=(-4, 104))
        column[1].axhline(guess, color=SUPPORT, linewidth=0.8)
        column[1].set(ylabel="median of last losses in nats", ylim=(0, 2.05 * guess))
        for axes in column:
            axes.set(xlabel="learning rate", xscale="log")
            axes.set_xticks(runs.rates, [f"{rate:g}" for rate in runs.rates])
            axes.minorticks_off()
    column[0].legend()
    figure.savefig(path)


def run(options: argparse.Namespace, words: Sequence[str]) -> None:
    """Train what is missing, and write the page."""
    options.runs.parent.mkdir(parents=True, exist_ok=True)
    options.runs.touch()
    done = read(options.runs)
    keys = itertools.product(range(options.seeds), NETWORKS, DTYPES)
    keys = [(name, dtype, rate, s) for s, name, dtype in keys for rate in NETWORKS[name].rates]
    for key in keys:
        if key not in done:
            done[key] = train(*key)
            with options.runs.open("a") as file:
                file.write(json.dumps(done[key]) + "\n")
            print(*key, done[key]["losses"], flush=True)
    runs = [done[key] for key in keys]
    values = {**pages.about("edge", words), "runs": runs}
    pages.write(options.output / "edge", "results/edge.md", parts(values), values, draw)


def read(path: Path) -> Dict[Tuple[str, str, float, int], Dict[str, Any]]:
    """Return the runs in a file, by network, dtype, rate and seed."""
    runs = map(json.loads, path.read_text().splitlines())
    return {(run["network"], run["dtype"], run["rate"], run["seed"]): run for run in runs}


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Read the command line and run it; return the status of the process."""
    words = sys.argv[1:] if arguments is None else arguments
    parser = Parser(prog="edge", description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    add("--seeds", type=positive_int, default=4, metavar="N", help="default: %(default)s")
    runs = "a line of JSON for each run; finished ones are not repeated (default: %(default)s)"
    add("--runs", type=path, metavar="FILE", default=Path("results/edge.jsonl"), help=runs)
    output = Path("results")
    add("--output", type=path, metavar="DIR", default=output, help="default: %(default)s")
    options = parser.parse_args(words)
    return status_of("edge", lambda: run(options, words))


if __name__ == "__main__":
    sys.exit(main())
