"""What a table compares: a data table of recipes, each a script, its options and its rows.

The first row is the reference. Batches are of all devices together, as in MXNet's float16 FAQ.
"""

from dataclasses import dataclass
from typing import Optional, Tuple

from experiments.results.record import Configuration

Options = Tuple[str, ...]

# A killed run goes on where it was.
RESUME = ("--save-dir", "{folder}/checkpoints", "--keep", "1", "--resume", "auto")


@dataclass(frozen=True)
class Experiment:
    """A recipe of a table.

    Attributes
    ----------
    name, title : str
        On the command line, and above the table.
    script : str
        In ``scripts/``; it takes ``--seed``, ``--batch-size`` and ``--summary-json``, and writes
        the log lines of `gluon_amp.recipes.log`.
    options : tuple of str
        Of every run, the data set among them, so that no script takes another one instead;
        ``{folder}`` stands for the run's directory.
    margin : float
        Default margin of the equivalence test, percentage points of top-1.
    sd : float
        From seed to seed, percentage points, as a pilot found it or a publication has it; decides
        how many seeds are trained by default.
    rows : tuple of (Configuration, tuple of str)
        And the options of each.
    note : str
        What a reader has to know of the rows.
    """

    name: str
    title: str
    script: str
    options: Options
    margin: float
    sd: float
    rows: Tuple[Tuple[Configuration, Options], ...]
    note: str = ""


def _rows(
    *pairs: Tuple[str, int], rate: Optional[Tuple[float, int]] = None
) -> Tuple[Tuple[Configuration, Options], ...]:
    """Return a row for each dtype and batch.

    Parameters
    ----------
    pairs : tuple of (str, int)
        The first is the reference.
    rate : tuple of (float, int), optional
        A learning rate and its batch, for a script whose own rate does not follow the batch as the
        linear rule has it (Goyal et al., "Accurate, Large Minibatch SGD", 2017).
    """
    made = []
    for dtype, batch in pairs:
        options = ("--dtype", dtype)
        if rate is not None:
            options += ("--lr", f"{rate[0] * batch / rate[1]:g}")
        label = f"{dtype}, batch {batch}"
        made.append((Configuration(f"{dtype}-{batch}", label, dtype, batch), options))
    return tuple(made)


EXPERIMENTS = {
    made.name: made
    for made in (
        Experiment(
            name="digits",
            title="Handwritten digits",
            script="train_imagenet.py",
            options=("--dataset", "digits", "--num-epochs", "24", *RESUME),
            margin=0.5,
            sd=0.47,  # pooled over a pilot of 5 seeds of the three rows in float32 and float16
            rows=_rows(
                ("float32", 64), ("float16", 64), ("float16", 128), ("bfloat16", 64)
            ),
            note="On a CPU half of float32's time goes into two of oneDNN 2.4's reference "
            "kernels, for the gradients of this network's global pooling and of the BatchNorm "
            "before it. So bfloat16 gains more here than on a larger network, as in "
            "docs/benchmarks/step.md.",
        ),
        Experiment(
            name="caltech101",
            title="Fine-tuning on Caltech-101, small enough for a CPU",
            script="fine_tune.py",
            options=(
                "--dataset", "caltech101", "--model", "mobilenet0.5", "--input-size", "96",
                "--num-epochs", "5", "--confusions", "0", *RESUME,
            ),
            margin=0.5,
            # Assumed, as there is no pilot: the binomial sd, in points, of 90 % right out of the
            # 5,647 images that prepare_caltech.py leaves to validate with, sqrt(0.9 * 0.1 / 5647).
            sd=0.4,
            rows=_rows(
                ("float32", 32), ("float16", 32), ("float16", 64), ("bfloat16", 32),
                rate=(0.01, 32),
            ),
        ),
        Experiment(
            name="lstm",
            title="A character language model on Python's standard library",
            script="train_lstm.py",
            options=RESUME,
            margin=0.5,
            sd=0.2,  # above the 0.06 of a pilot's 4 seeds in float32, which are few to tell it
            rows=_rows(
                ("float32", 32), ("float16", 32), ("float16", 64), ("bfloat16", 32)
            ),
            note="With bfloat16 the dense layer alone computes in it, the LSTM in float32: MXNet "
            "1.9.1 has no bfloat16 kernel for it that pays. The emulated float16 LSTM rounds what "
            "goes into a chunk and comes out of it, not its state in between.",
        ),
        Experiment(
            name="imagenet",
            title="ImageNet as in MXNet's float16 FAQ",
            script="train_imagenet.py",
            options=(
                "--dataset", "imagenet", "--model", "resnet50_v1", "--num-epochs", "90",
                "--lr-mode", "step", "--lr-decay", "0.1", "--lr-decay-epoch", "30,60,80", *RESUME,
            ),
            margin=0.3,
            sd=0.098,  # NVIDIA's eight seeds of 90 epochs in float16 (DeepLearningExamples)
            rows=_rows(("float32", 1024), ("float16", 1024), ("float16", 2048)),
        ),
    )
}  # fmt: skip
