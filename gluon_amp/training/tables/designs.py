"""What each table compares, as data: a command, the options of all runs, and those of each row.

The first row is the reference. A batch is that of all devices together, as in MXNet's float16 FAQ.
"""

from dataclasses import dataclass, replace
from typing import Dict, Optional, Tuple

from gluon_amp.training.tables.record import Configuration

Options = Tuple[str, ...]

# A killed run resumes from its last checkpoint.
RESUME = ("--save-dir", "{folder}/checkpoints", "--keep", "1", "--resume", "auto")


@dataclass(frozen=True)
class Design:
    """The rows of one table and how to train them; `--recipe` of `gluon-amp results` names one.

    The options of every run name the data set, so that a command's default cannot change it.
    ``{folder}`` stands for the run's directory.
    """

    name: str  # on the command line
    title: str  # above the table
    command: str  # of `gluon-amp`
    options: Options  # of every run
    margin: float  # default of the equivalence test, percentage points of top-1
    # Standard deviation, percentage points, from a pilot or a publication, between seeds or of the
    # differences between two rows with the same seed. It decides how many seeds are trained.
    sd: float
    rows: Tuple[Tuple[Configuration, Options], ...]  # each with its own options
    note: str = ""  # what a reader has to know about the rows
    paired: bool = False  # whether `sd` is of differences


# The ways to train of a row: the compute dtype, and the options that choose it. The static scale is
# that of MXNet's float16 FAQ.
PRECISIONS: Dict[str, Tuple[str, str]] = {
    "float32": ("float32", "--dtype float32"),
    "float16": ("float16", "--dtype float16"),
    "bfloat16": ("bfloat16", "--dtype bfloat16"),
    "mixed_float16": ("float16", "--dtype mixed_float16"),
    "float16, static scale": ("float16", "--dtype float16 --loss-scale 128"),
    # without the search for the first scale, as torch's GradScaler begins
    "float16, first scale 65536": ("float16", "--dtype float16 --loss-scale dynamic:65536"),
    "tfloat32": ("tfloat32", "--dtype compute=tfloat32"),
    # E4M3 with gradients in E5M2, as the OCP's specification and Transformer Engine combine them
    "float8": ("float8_e4m3", "--dtype compute=float8_e4m3,gradients=float8_e5m2"),
    "float8_e5m2": ("float8_e5m2", "--dtype compute=float8_e5m2"),
    # controls: float16 without what keeps it close to float32
    "float16, no masters": ("float16", "--dtype float16 --without masters"),
    "float16, no loss scale": ("float16", "--dtype float16 --loss-scale none"),
    "float16, norms too": ("float16", "--dtype float16 --without wide-norms"),
    "float16, attention too": ("float16", "--dtype float16 --without wide-attention"),
}


def _rows(
    *pairs: Tuple[str, int], rate: Optional[Tuple[float, int]] = None
) -> Tuple[Tuple[Configuration, Options], ...]:
    """Return a row for each of `PRECISIONS` and batch; `rate` is a learning rate and its batch."""
    rows = []
    for precision, batch in pairs:
        dtype, options = PRECISIONS[precision]
        if rate is not None:
            options += f" --lr {rate[0] * batch / rate[1]:g}"
        name = f"{precision.replace(', ', '-').replace(' ', '-')}-{batch}"
        label = f"{precision}, batch {batch}"
        rows.append((Configuration(name, label, dtype, batch), tuple(options.split())))
    return tuple(rows)


def _with_controls(batch: int, *more: str) -> Tuple[Tuple[str, int], ...]:
    """Return pairs for `_rows`: every dtype and `more`, and at twice the batch two dtypes.

    Without float32 at twice the batch, an effect of the batch looks like one of float16.
    """
    once = ("float32", "float16", "bfloat16", *more)
    return (*((each, batch) for each in once), ("float32", 2 * batch), ("float16", 2 * batch))


DIGITS = Design(
    name="digits",
    title="Handwritten digits",
    command="train",
    options=("--dataset", "digits", "--num-epochs", "24", *RESUME),
    margin=0.5,
    sd=0.62,  # docs/results/digits/pilot.csv: the largest of the differences from the first row
    paired=True,
    rows=_rows(*_with_controls(64)),
)

STUDIED = ("float32", "tfloat32", "float8", "float8_e5m2")
NOTE_ON_STUDY = (
    "tfloat32 and float8 are emulated for study: the operands of matrix products and the gradients "
    "of their results are rounded, and all else is float32. float8 is E4M3 with gradients in E5M2, "
    "and float8_e5m2 is E5M2 with gradients in E5M2. Each 8-bit tensor has a scale by delayed "
    "scaling. The first and the last product of the network stay in float32 in 8 bits, so that "
    "{} are rounded."
)


def _in_formats_for_study(design: Design, batch: int, products: str) -> Design:
    """Return a table of the same task in these formats; `products` says how many are rounded."""
    return replace(
        design,
        name=f"{design.name}-formats",
        title=f"{design.title} in formats for study",
        rows=_rows(*((precision, batch) for precision in STUDIED)),
        note=NOTE_ON_STUDY.format(products),
    )


DIGITS_FORMATS = _in_formats_for_study(DIGITS, 64, "8 of its 10 products")

CALTECH101 = Design(
    name="caltech101",
    title="Fine-tuning on Caltech-101, small enough for a CPU",
    command="fine-tune",
    options=(
        *"--dataset caltech101 --model mobilenet0.5 --input-size 96".split(),
        *"--num-epochs 5 --confusions 0".split(),
        *RESUME,
    ),
    margin=0.5,
    # Assumed, as there is no pilot: the binomial standard deviation, in points, of an accuracy of
    # 90 % on the 5,647 validation images of `gluon-amp prepare-caltech`, sqrt(0.9 * 0.1 / 5647).
    sd=0.4,
    rows=_rows(*_with_controls(32), rate=(0.01, 32)),
)

LSTM = Design(
    name="lstm",
    title="A character language model on Python's standard library",
    command="train-text",
    options=RESUME,
    margin=0.5,
    sd=0.2,  # above the 0.06 of a pilot of 4 seeds in float32, which are too few to rely on
    rows=_rows(*_with_controls(32, "float16, first scale 65536")),
    note="With bfloat16 only the dense layer computes in bfloat16, and the LSTM in float32. The "
    "emulated float16 LSTM rounds the inputs and outputs of a chunk, not its state in between.",
)

OF_TRANSFORMERS = (
    *("float32", "float16", "mixed_float16", "bfloat16", "tfloat32", "float8"),
    *("float16, no masters", "float16, no loss scale"),
    *("float16, norms too", "float16, attention too"),
)
TRANSFORMER = Design(
    name="transformer",
    title="A character transformer on Python's standard library",
    command="train-text",
    options=(
        *"--model transformer --layers 2 --embedding 48 --heads 4 --hidden 128 --bptt 32".split(),
        *"--characters 40000 --num-epochs 4 --log-interval 0".split(),
        *RESUME,
    ),
    margin=0.5,
    sd=0.15,  # docs/results/transformer/pilot.csv: two other seeds of the first two rows
    paired=True,
    rows=_rows(*((precision, 16) for precision in OF_TRANSFORMERS), rate=(0.008, 16)),
    note="The attention's matrix products, softmax, the norms and the sums beside a shortcut are "
    "float32 in every row but the last two, which show what that is for: in “norms too” each "
    "operator of a LayerNorm is rounded to float16, and in “attention too” its matrix products and "
    "softmax are. “No masters” rounds the masters to float16 after each step. The mean and the "
    "variance of Adam stay float32. float8 is E4M3 with gradients in E5M2 and rounds 7 of the 9 "
    "dense products; the first and the last stay float32. The most frequent character is 23.6 % of "
    "the validation text. The margins, seeds and exclusions are from before the runs.",
)

FASHION = Design(
    name="fashion",
    title="Fashion-MNIST",
    command="train",
    options=(
        *"--dataset fashion-mnist --model lenet_bn --max-shift 0".split(),
        *"--num-epochs 8 --optimizer nag --lr 0.1".split(),
        *RESUME,
    ),
    margin=0.3,
    sd=0.14,  # docs/results/fashion/pilot.csv: two other seeds of the first two rows
    paired=True,
    rows=_rows(("float32", 128), ("float16", 128), ("bfloat16", 128)),
)

FASHION_FORMATS = replace(
    _in_formats_for_study(FASHION, 128, "2 of its 4 products"),
    options=("--dataset", "fashion-mnist", *RESUME),
    sd=0.25,  # docs/results/fashion-formats/pilot.csv: float16 against float32, 4 other seeds
)

TEACHER = Design(
    name="teacher",
    title="A teacher network's labels, with 50,000 samples for validation",
    command="train",
    options=("--dataset", "teacher", *RESUME),
    margin=0.1,
    sd=0.07,  # docs/results/teacher/pilot.csv: 4 other seeds of the first two rows
    paired=True,
    rows=_rows(*((each, 256) for each in ("float32", "float16", "mixed_float16", "bfloat16"))),
    note="Eight seeds left two rows undecided. The margin, 32 seeds, 0 to 31, all of which count, "
    "and that no more are trained were written down before these runs.",
)

IMAGENET = Design(
    name="imagenet",
    title="ImageNet as in MXNet's float16 FAQ",
    command="train",
    options=(
        *"--dataset imagenet --model resnet50_v1 --num-epochs 90".split(),
        *"--lr-mode step --lr-decay 0.1 --lr-decay-epoch 30,60,80".split(),
        *RESUME,
    ),
    margin=0.3,
    sd=0.098,  # NVIDIA's eight seeds of 90 epochs in float16 (DeepLearningExamples)
    rows=_rows(("float32", 1024), ("float16", 1024), ("float16", 2048)),
)

DESIGNS = {
    design.name: design
    for design in (
        DIGITS,
        DIGITS_FORMATS,
        FASHION,
        FASHION_FORMATS,
        TEACHER,
        CALTECH101,
        LSTM,
        TRANSFORMER,
        IMAGENET,
    )
}
