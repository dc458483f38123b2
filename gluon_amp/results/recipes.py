"""What a table compares: a data table of recipes, each a script, its options and its rows.

The first row is the reference. Batches are of all devices together, as in MXNet's float16 FAQ.
"""

from dataclasses import dataclass
from typing import Tuple

from gluon_amp.results.record import Configuration

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
        the log lines of `gluon_amp.training.log`.
    data : str
        The data set that the script must find.
    options : tuple of str
        Of every run; ``{folder}`` stands for the run's directory.
    margin : float
        Default margin of the equivalence test, percentage points of top-1.
    sd : float
        From seed to seed, percentage points, as a pilot found it or a publication has it; decides
        how many seeds are trained by default.
    rows : tuple of (Configuration, tuple of str)
        And the options of each.
    """

    name: str
    title: str
    script: str
    data: str
    options: Options
    margin: float
    sd: float
    rows: Tuple[Tuple[Configuration, Options], ...]


def _by_dtype(batch: int, *dtypes: str) -> Tuple[Tuple[Configuration, Options], ...]:
    """Return rows as the FAQ has them: each dtype at a batch, and float16 at twice that batch."""
    pairs = [(dtype, batch) for dtype in dtypes]
    pairs.insert(2, ("float16", 2 * batch))
    return tuple(
        (
            Configuration(f"{dtype}-{size}", f"{dtype}, batch {size}", dtype, size),
            ("--dtype", dtype),
        )
        for dtype, size in pairs
    )


EXPERIMENTS = {
    made.name: made
    for made in (
        Experiment(
            name="digits",
            title="Handwritten digits",
            script="train_imagenet.py",
            data="digits",
            options=("--dataset", "digits", "--num-epochs", "12", *RESUME),
            margin=0.5,
            sd=0.35,
            rows=_by_dtype(64, "float32", "float16", "bfloat16"),
        ),
        Experiment(
            name="imagenet",
            title="ImageNet as in MXNet's float16 FAQ",
            script="train_imagenet.py",
            data="imagenet",
            options=(
                "--model", "resnet50_v1", "--num-epochs", "90", "--lr-mode", "step",
                "--lr-decay", "0.1", "--lr-decay-epoch", "30,60,80", *RESUME,
            ),
            margin=0.3,
            sd=0.098,  # NVIDIA's eight seeds of 90 epochs in float16 (DeepLearningExamples)
            rows=_by_dtype(1024, "float32", "float16"),
        ),
    )
}  # fmt: skip
