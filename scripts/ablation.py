"""What masters and loss scaling are for: a float16 network that needs its loss scaled.

    python scripts/ablation.py --output docs/results

A dense network learns the handwritten digits by a loss with a weight of 2**-22, as an auxiliary
loss may have in a sum, and a learning rate that is as much higher. In float32 the weight changes
nothing. In float16 the gradients underflow, unless the loss is scaled.
"""

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

import gluon_amp as amp
from gluon_amp.data.digits import load_digits
from gluon_amp.results.statistics import Comparison, compare, spread
from gluon_amp.training.options import Parser, UsageError, positive, positive_int

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

WEIGHT = 2.0**-22
RATE, MOMENTUM, BATCH, EPOCHS = 0.02, 0.9, 64, 12


class Row(NamedTuple):
    """One way to train, as a table names it."""

    label: str
    policy: str
    loss_scale: Any  # of amp.Trainer
    masters: bool = True
    weight: float = WEIGHT  # of the loss


ROWS = (
    Row("float32", "float32", None),
    Row("float16, masters, dynamic scale", "float16", "dynamic"),
    Row("float16, masters, static scale 2^15", "float16", 2.0**15),
    Row("float16, masters, no scale", "float16", None),
    # a learning rate of 0.02 * 2**22 would itself overflow in a float16 update
    Row("float16, no masters, loss weight 1", "float16", None, masters=False, weight=1.0),
)


def data() -> Tuple[Tuple[np.ndarray, np.ndarray], Tuple[np.ndarray, np.ndarray]]:
    """Return training and validation digits as float32 rows of pixels of -1 to 1, and labels."""
    (images, labels), (val_images, val_labels) = load_digits()

    def flat(pixels: np.ndarray) -> np.ndarray:
        return pixels[:, ::2, ::2].reshape(len(pixels), -1).astype(np.float32) / 127.5 - 1

    return (flat(images), labels), (flat(val_images), val_labels)


def network() -> nn.HybridSequential:
    """Three dense layers and no normalisation, which would make up for lost gradients."""
    net = nn.HybridSequential()
    net.add(nn.Dense(64, activation="relu"), nn.Dense(64, activation="relu"), nn.Dense(10))
    return net


def train(row: Row, seed: int) -> Dict[str, Any]:
    """Return what one run came to: top-1 errors in percent by epoch, and steps skipped."""
    mx.random.seed(seed)
    (images, labels), (val_images, val_labels) = data()
    net = network()
    net.initialize(mx.init.Xavier())
    net(nd.array(images[:1]))
    amp.cast(net, row.policy)
    net.hybridize(static_alloc=True)
    settings = {"learning_rate": RATE / row.weight, "momentum": MOMENTUM}
    params = net.collect_params()
    if row.masters:
        trainer = amp.Trainer(params, "sgd", settings, loss_scale=row.loss_scale)
    else:  # amp.Trainer refuses to train float16 weights without masters
        trainer = gluon.Trainer(params, "sgd", settings)
    loss_fn = gluon.loss.SoftmaxCrossEntropyLoss(weight=row.weight)
    errors: List[float] = []
    skipped = 0
    for epoch in range(EPOCHS):
        order = np.random.default_rng((seed, epoch)).permutation(len(images))
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            with autograd.record():
                loss = loss_fn(net(nd.array(images[part])), nd.array(labels[part]))
            (trainer if row.masters else autograd).backward(loss)
            report = trainer.step(len(part))
            skipped += row.masters and not report.applied
        answers = net(nd.array(val_images)).argmax(axis=1).asnumpy()
        errors.append(100 * float((answers != val_labels).mean()))
    return {"errors": errors, "skipped": skipped}


def main(given: Optional[Sequence[str]] = None) -> int:
    """Train all rows, write the table and the figure; return the status of the process."""
    made = Parser(description=__doc__.split("\n", 1)[0], allow_abbrev=False)
    add = made.add_argument
    add("--seeds", type=positive_int, default=10, metavar="N", help="default: %(default)s")
    add("--margin", type=positive, default=1.0, metavar="POINTS",
        help="differences to float32 below this count as none (default: %(default)s)")  # fmt: skip
    add("--output", type=Path, metavar="DIR", help="write ablation.md, .json and .png there")
    options = made.parse_args(given)
    try:
        warnings.filterwarnings("ignore", "Accumulating with float16")  # that is the point
        results = {row.label: [train(row, seed) for seed in range(options.seeds)] for row in ROWS}
        text = table(results, options.margin)
        print(text)
        if options.output:
            write(results, text, options)
    except UsageError as error:
        print(f"ablation.py: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"ablation.py: {error.filename}: {error.strerror}.", file=sys.stderr)
        return 2
    return 0


def table(results: Dict[str, List[Dict]], margin: float) -> str:
    """Return a Markdown table of all rows, each against the first."""
    top1 = {label: [100 - run["errors"][-1] for run in runs] for label, runs in results.items()}
    reference = top1[ROWS[0].label]
    lines = [
        "| trained in | top-1 in %, mean ± sd | less float32 (95 % interval) | verdict | skipped |",
        "| :--- | ---: | ---: | :--- | ---: |",
    ]
    for label, values in top1.items():
        found = spread(values)
        sd = "" if found.sd is None else f" ± {found.sd:.2f}"
        skipped = np.mean([run["skipped"] for run in results[label]])
        told = ("", "") if values is reference else in_words(compare(values, reference, margin))
        lines.append(f"| {label} | {found.mean:.2f}{sd} | {told[0]} | {told[1]} | {skipped:.1f} |")
    return "\n".join(lines)


def in_words(comparison: Comparison) -> Tuple[str, str]:
    """Return a difference with its interval, and the verdict of the tests."""
    interval = ""
    if comparison.low is not None:
        interval = f" ({comparison.low:+.2f} to {comparison.high:+.2f})"
    return f"{comparison.difference:+.2f}{interval}", str(comparison)


def write(results: Dict[str, List[Dict]], text: str, options: argparse.Namespace) -> None:
    """Write the page, the numbers and the picture."""
    options.output.mkdir(parents=True, exist_ok=True)
    command = f"python scripts/ablation.py --seeds {options.seeds} --output {options.output}"
    page = [
        "# What masters and loss scaling are for",
        " ".join(__doc__.split("\n\n")[2].split()),
        text,
        "![Top-1 error by epoch](ablation.png)",
        f"Means over {options.seeds} seeds of {EPOCHS} epochs; “equivalent” within "
        f"±{options.margin:g} points of float32 by two one-sided tests at the 5 % level. "
        f"float16 is emulated on the CPU. Made by `{command}`.",
    ]
    (options.output / "ablation.md").write_text("\n\n".join(page) + "\n", encoding="utf-8")
    (options.output / "ablation.json").write_text(json.dumps(results, indent=1) + "\n")
    draw(results, options.output / "ablation.png")


def draw(results: Dict[str, List[Dict]], path: Path) -> None:
    """Draw the error by epoch, one line for each row with a band of one standard deviation."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(8, 4.6))
    for number, (label, runs) in enumerate(results.items()):
        errors = np.array([run["errors"] for run in runs])
        mean, sd = errors.mean(axis=0), errors.std(axis=0)
        epochs = np.arange(1, EPOCHS + 1)
        style = ("-", "--", "-.", ":")[number % 4]
        (line,) = panel.plot(epochs, mean, style, label=label)
        panel.fill_between(epochs, mean - sd, mean + sd, color=line.get_color(), alpha=0.15)
    panel.set(xlabel="epoch", ylabel="top-1 error in %", yscale="log")
    ticks = (2, 5, 10, 20, 50, 100)
    panel.set_yticks(ticks, [f"{tick}" for tick in ticks])
    panel.minorticks_off()
    panel.grid(alpha=0.3)
    panel.legend(frameon=False, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
