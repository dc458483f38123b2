"""The recipe of a training run: every choice in one frozen record, read from the command line.

Names and defaults are GluonCV's, with the spellings of MXNet's own example scripts as aliases, but
for defaults known to mislead: here 90 epochs, not 3, and a learning rate that follows the batch.
"""

import argparse
import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Optional, Sequence, Tuple, Union

from gluon_amp.training.options import (
    UsageError,
    int_list,
    natural,
    non_negative,
    option,
    parser,
    positive,
    positive_int,
)

DTYPES = ("float32", "float16", "bfloat16")
LR_MODES = ("step", "cosine", "poly", "linear", "constant")
OPTIMIZERS = ("sgd", "nag", "adam")


def loss_scale(text: str) -> Union[str, float]:
    """Read a loss scale: 'dynamic', 'none', or a power of two."""
    if text in ("dynamic", "none"):
        return text
    value = positive(text)
    if math.frexp(value)[0] != 0.5:
        raise argparse.ArgumentTypeError(
            f"expected dynamic, none or a power of two such as 1024, got {text!r}"
        )
    return value


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a run. Fields that are None are filled in by `resolve`."""

    model: str = option(
        "resnet50_v1", "--model", "--network",
        help="a name from GluonCV's or MXNet's model zoo",
    )  # fmt: skip
    dtype: str = option(
        "float32", "--dtype", choices=DTYPES,
        help="what the network computes in",
    )  # fmt: skip
    loss_scale: Optional[Union[str, float]] = option(
        None, "--loss-scale", type=loss_scale, metavar="dynamic|none|NUMBER",
        help="what the loss is multiplied by (default: dynamic for float16, else none)",
    )  # fmt: skip
    batch_size: int = option(
        128, "--batch-size", "-b", type=positive_int, metavar="N",
        help="images in a batch, per device",
    )  # fmt: skip
    num_gpus: Optional[int] = option(
        None, "--num-gpus", type=natural, metavar="N",
        help="use the first N GPUs, 0 for the CPU (default: all there are)",
    )  # fmt: skip
    gpus: Optional[Tuple[int, ...]] = option(
        None, "--gpus", type=int_list, metavar="0,1",
        help="use these GPUs, by number",
    )  # fmt: skip
    data_dir: Path = option(
        Path("~/.mxnet/datasets/imagenet"), "--data-dir", type=Path, metavar="DIR",
        help="holds train/CLASS/*.jpg and val/CLASS/*.jpg",
    )  # fmt: skip
    rec_train: Optional[Path] = option(
        None, "--rec-train", "--data-train", type=Path, metavar="FILE",
        help="packed training images",
    )  # fmt: skip
    rec_train_idx: Optional[Path] = option(
        None, "--rec-train-idx", "--data-train-idx", type=Path, metavar="FILE",
        help="their index (default: the .idx beside the .rec)",
    )  # fmt: skip
    rec_val: Optional[Path] = option(
        None, "--rec-val", "--data-val", type=Path, metavar="FILE",
        help="packed validation images",
    )  # fmt: skip
    rec_val_idx: Optional[Path] = option(
        None, "--rec-val-idx", "--data-val-idx", type=Path, metavar="FILE",
        help="their index",
    )  # fmt: skip
    use_rec: bool = option(
        False, "--use-rec", switch=True,
        help="read DATA_DIR/rec/{train,val}.rec; implied by --rec-train",
    )  # fmt: skip
    num_workers: int = option(
        8, "--num-workers", "-j", "--num-data-workers", "--workers", "--num-worker",
        "--data-nthreads", type=natural, metavar="N",
        help="processes that load images, 0 for none",
    )  # fmt: skip
    num_epochs: int = option(
        90, "--num-epochs", "--epochs", type=positive_int, metavar="N",
        help="passes over the training images",
    )  # fmt: skip
    lr: Optional[float] = option(
        None, "--lr", type=non_negative, metavar="RATE",
        help="learning rate (default: 0.1 * total batch / 256)",
    )  # fmt: skip
    lr_mode: str = option("step", "--lr-mode", choices=LR_MODES, help="how the learning rate falls")
    lr_decay: float = option(
        0.1, "--lr-decay", "--lr-factor", type=positive, metavar="FACTOR",
        help="step mode: multiply the learning rate by this",
    )  # fmt: skip
    lr_decay_epoch: Tuple[int, ...] = option(
        (30, 60, 80), "--lr-decay-epoch", "--lr-steps", "--lr-step-epochs", type=int_list,
        metavar="EPOCHS", help="step mode: at these epochs, counted from 0",
    )  # fmt: skip
    warmup_epochs: int = option(
        5, "--warmup-epochs", type=natural, metavar="N",
        help="epochs in which the learning rate rises from 0",
    )  # fmt: skip
    optimizer: str = option("sgd", "--optimizer", choices=OPTIMIZERS, help="update rule")
    momentum: float = option(
        0.9, "--momentum", "--mom", type=non_negative, metavar="M",
        help="of sgd and nag",
    )  # fmt: skip
    wd: float = option(
        1e-4, "--wd", "--weight-decay", type=non_negative, metavar="WD",
        help="weight decay",
    )  # fmt: skip
    seed: int = option(0, "--seed", type=natural, metavar="N", help="of everything random")
    log_interval: int = option(
        50, "--log-interval", type=natural, metavar="N",
        help="log every N batches, 0 for never",
    )  # fmt: skip
    save_dir: Optional[Path] = option(
        None, "--save-dir", type=Path, metavar="DIR",
        help="save the trained float32 parameters here (default: do not)",
    )  # fmt: skip
    summary_json: Optional[Path] = option(
        None, "--summary-json", type=Path, metavar="FILE",
        help="write the results here",
    )  # fmt: skip
    max_batches: Optional[int] = option(
        None, "--max-batches", "--benchmark-iters", type=positive_int, metavar="N",
        help="train on at most N batches of an epoch, to try things out",
    )  # fmt: skip

    lr_per_256: float = 0.1  # for the default of lr; decided by the data set

    @property
    def reads_records(self) -> bool:
        """Whether the data is packed."""
        given = (self.rec_train, self.rec_train_idx, self.rec_val, self.rec_val_idx)
        return self.use_rec or any(path is not None for path in given)


# What a data set needs otherwise than ImageNet does; an option on the command line wins.
DATA_DEFAULTS: Dict[str, Dict[str, Any]] = {
    "imagenet": {},
    "digits": {
        # 6 batches to an epoch at batch 256: a higher rate and more decay than ImageNet's, for as
        # long as two cores emulate float16 in a minute or two.
        "model": "cifar_resnet8_v1",
        "num_epochs": 24,
        "lr_per_256": 0.4,
        "lr_mode": "cosine",
        "warmup_epochs": 2,
        "wd": 5e-4,
        "num_workers": 0,
        "log_interval": 6,
    },
}


def read(arguments: Optional[Sequence[str]] = None) -> Tuple[Recipe, Dict[str, Any]]:
    """Read the command line: the recipe, and the options that were given."""
    instead = ", ".join(f"{k.replace('_', '-')} {v}" for k, v in DATA_DEFAULTS["digits"].items())
    epilog = f"Where there is no ImageNet, it trains on handwritten digits; defaults: {instead}."
    made = parser(Recipe, "Train an image classifier in mixed precision.", epilog)
    given = vars(made.parse_args(arguments))
    recipe = Recipe(**given)
    if recipe.gpus and recipe.num_gpus is not None and recipe.num_gpus != len(recipe.gpus):
        raise UsageError(
            f"--num-gpus {recipe.num_gpus} and --gpus {','.join(map(str, recipe.gpus))} disagree: "
            "give one of them."
        )
    return recipe, given


def for_data(recipe: Recipe, given: Dict[str, Any], data: str) -> Recipe:
    """Fill in what a data set needs otherwise than ImageNet, where the user has not decided."""
    defaults = {k: v for k, v in DATA_DEFAULTS[data].items() if k not in given}
    return dataclasses.replace(recipe, **defaults)


def learning_rate(recipe: Recipe, total_batch: int) -> float:
    """Return the learning rate: as given, or 0.1 (digits: 0.4) for each 256 images of a batch.

    0.4 for 8 × 128 and 0.8 for 8 × 256, as in MXNet's float16 FAQ; the rule is that of Goyal et
    al., "Accurate, Large Minibatch SGD" (2017).
    """
    return recipe.lr_per_256 * total_batch / 256 if recipe.lr is None else recipe.lr
