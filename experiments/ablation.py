"""Show what master weights, loss scaling and pins are for: without one of them, a network fails.

    python -m experiments.ablation --output docs/results

Dense networks learn the handwritten digits in float32, in float16, and in float16 without one of
the three. docs/results/ablation.md says why each of them then fails.
"""

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

import gluon_amp as amp
from experiments import pages
from gluon_amp.inspection.figures import BROKEN, COLOURS
from gluon_amp.training.command_line import Parser, path, positive_int, status_of
from gluon_amp.training.data.digits import load_digits
from gluon_amp.training.tables.figure import new_figure, styled
from gluon_amp.training.tables.render import difference
from gluon_amp.training.tables.statistics import compare_pairs, spread

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

MOMENTUM, BATCH = 0.9, 64
MARGIN = 1.0  # points; smaller differences from float32 count as none
LINES = ("-", "--", ":", "-")  # of the rows of a study
LOSS_WEIGHT = 2.0**-22
SUMS_IN_FLOAT16 = amp.Policy.parse("float16").pin(ops=["square", "sum"], dtype="float16")


class Row(NamedTuple):
    """One way to train: a row of a table."""

    label: str
    policy: Any  # of amp.cast
    loss_scale: Any = "dynamic"  # of amp.Trainer
    masters: bool = True
    broken: bool = False  # whether it lacks what the study is about


class Study(NamedTuple):
    """Networks that differ in one setting. The first row is the reference."""

    title: str
    rate: float
    epochs: int
    rows: Tuple[Row, ...]
    loss_weight: float = 1.0
    unit_length: bool = False  # whether the first layer divides pixels from 0 to 255 by their norm


class UnitLength(gluon.HybridBlock):
    """Divides each row by its Euclidean norm, as in networks that compare angles."""

    def hybrid_forward(self, F, x):
        return F.broadcast_div(x, F.sqrt(F.sum(F.square(x), axis=1, keepdims=True)))


def dense(study: "Study") -> nn.HybridSequential:
    """Return three dense layers without normalisation, which would compensate lost gradients."""
    net = nn.HybridSequential()
    net.add(*([UnitLength()] if study.unit_length else []))
    net.add(nn.Dense(64, activation="relu"), nn.Dense(64, activation="relu"), nn.Dense(10))
    return net


FLOAT32 = Row("float32", "float32", None)

STUDIES = (
    Study(
        title="Loss scaling",
        rate=0.02 / LOSS_WEIGHT,
        loss_weight=LOSS_WEIGHT,
        epochs=12,
        rows=(
            FLOAT32,
            Row("float16, dynamic scale", "float16"),
            Row("float16, static scale 2^15", "float16", 2.0**15),
            Row("float16, no scale", "float16", None, broken=True),
        ),
    ),
    Study(
        title="Master weights",
        rate=1e-4,
        epochs=60,
        rows=(
            FLOAT32,
            Row("float16, masters", "float16"),
            Row("float16, no masters", "float16", None, masters=False, broken=True),
        ),
    ),
    Study(
        title="Pins",
        unit_length=True,
        rate=0.05,
        epochs=40,
        rows=(
            FLOAT32,
            Row("float16, sums pinned to float32", "float16"),
            Row("float16, sums in float16", SUMS_IN_FLOAT16, broken=True),
        ),
    ),
)


def rows_of(study: Study, images: np.ndarray) -> np.ndarray:
    """Return images as float32 rows of pixels."""
    pixels = images[:, ::2, ::2].reshape(len(images), -1).astype(np.float32)
    return pixels if study.unit_length else pixels / 127.5 - 1


def train(study: Study, row: Row, seed: int) -> Dict[str, Any]:
    """Return the top-1 errors in percent by epoch, and the number of skipped steps."""
    mx.random.seed(seed)
    (images, labels), (val_images, val_labels) = load_digits()
    images, val_images = rows_of(study, images), rows_of(study, val_images)
    net = dense(study)
    net.initialize(mx.init.Xavier())
    net(nd.array(images[:1]))
    amp.cast(net, row.policy)
    net.hybridize(static_alloc=True)
    options = {"learning_rate": study.rate, "momentum": MOMENTUM}
    params = net.collect_params()
    if row.masters:
        trainer = amp.Trainer(params, "sgd", options, loss_scale=row.loss_scale)
    else:  # amp.Trainer does not train float16 weights without masters
        trainer = gluon.Trainer(params, "sgd", options)
    loss_fn = gluon.loss.SoftmaxCrossEntropyLoss(weight=study.loss_weight)
    errors: List[float] = []
    skipped = 0
    for epoch in range(study.epochs):
        order = np.random.default_rng((seed, epoch)).permutation(len(images))
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            with autograd.record():
                loss = loss_fn(net(nd.array(images[batch])), nd.array(labels[batch]))
            (trainer if row.masters else autograd).backward(loss)
            report = trainer.step(len(batch))
            skipped += row.masters and not report.applied
        predictions = net(nd.array(val_images)).argmax(axis=1).asnumpy()
        errors.append(100 * float((predictions != val_labels).mean()))
    return {"errors": errors, "skipped": skipped}


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Read the command line and run it; return the status of the process."""
    parser = Parser(description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    add("--seeds", type=positive_int, default=16, metavar="N", help="default: %(default)s")
    add("--output", type=path, metavar="DIR", help="write ablation.md, .json and .png there")
    words = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(words)
    return status_of("ablation.py", lambda: run(options, words))


def run(options: argparse.Namespace, words: Sequence[str]) -> None:
    """Train all rows, print the tables, and write the files."""
    warnings.filterwarnings("ignore", "Accumulating with float16")  # one row shows just that
    values = {
        **pages.about("ablation", words),
        "margin": MARGIN,
        "studies": {
            study.title: {
                row.label: [train(study, row, seed) for seed in range(options.seeds)]
                for row in study.rows
            }
            for study in STUDIES
        },
    }
    print("\n\n".join(parts(values).values()))
    if options.output:
        target = options.output / "ablation"
        pages.write(target, "results/ablation.md", parts(values), values, draw)


def parts(values: pages.Values) -> pages.Parts:
    """Return the parts of the page: a table of each study, and how they were measured."""
    studies = values["studies"]
    first = next(iter(next(iter(studies.values())).values()))
    epochs = [len(next(iter(rows.values()))[0]["errors"]) for rows in studies.values()]
    return {
        **{
            title.split()[0].lower(): table(rows, values["margin"])
            for title, rows in studies.items()
        },
        "seeds": f"{len(first)} seeds of {', '.join(map(str, epochs))} epochs",
        "margin": f"±{values['margin']:g} points",
        "measured": pages.measured(values),
    }


def table(runs_by_label: Dict[str, List[Dict]], margin: float) -> str:
    """Return the table of a study's rows, each compared with the first, seed by seed."""
    lines, reference = [], None
    for label, runs in runs_by_label.items():
        values = [100 - run["errors"][-1] for run in runs]
        accuracy, minus, verdict = spread(values), "", ""
        if reference is None:
            reference = values
        else:
            comparison = compare_pairs(values, reference, margin)
            minus, verdict = difference(comparison), str(comparison)
        sd = "" if accuracy.sd is None else f" ± {accuracy.sd:.2f}"
        skipped = f"{np.mean([run['skipped'] for run in runs]):.1f}"
        lines.append([label, f"{accuracy.mean:.2f}{sd}", minus, verdict, skipped])
    head = ["trained in", "top-1 in %, mean ± sd", "minus float32 (95 % interval)", "verdict"]
    return pages.table([*head, "skipped steps"], lines)


@styled()
def draw(values: pages.Values, path: Path) -> None:
    """Draw the error by epoch, a panel for each study, with a band of one standard deviation."""
    results = values["studies"]
    figure = new_figure(13, 4.4)
    panels = figure.subplots(1, len(results), sharey=True)
    for panel, study in zip(panels, STUDIES):
        for row, style in zip(study.rows, LINES):
            errors = np.array([run["errors"] for run in results[study.title][row.label]])
            mean, sd = errors.mean(axis=0), errors.std(axis=0)
            epochs = np.arange(1, len(mean) + 1)
            colour = BROKEN if row.broken else COLOURS[row.policy]
            style = "-" if row.broken else style
            panel.plot(epochs, mean, style, color=colour, label=row.label)
            panel.fill_between(epochs, mean - sd, mean + sd, color=colour, alpha=0.15, linewidth=0)
        panel.set(title=study.title, xlabel="epoch", yscale="log")
        panel.legend()
    ticks = (2, 5, 10, 20, 50, 100)
    panels[0].set_yticks(ticks, [f"{tick}" for tick in ticks])
    panels[0].minorticks_off()
    panels[0].set_ylabel("top-1 error in %, mean ± sd")
    figure.savefig(path)


if __name__ == "__main__":
    sys.exit(main())
