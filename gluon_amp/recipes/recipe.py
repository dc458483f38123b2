"""The recipe of a training run: every choice in one frozen record, read from the command line.

Names and defaults are GluonCV's, with the spellings of MXNet's own example scripts as aliases, but
for defaults known to mislead: here 90 epochs, not 3, and a learning rate that follows the batch.
"""

import argparse
import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Optional, Sequence, Tuple, Type, Union

from gluon_amp.command_line import (
    UsageError,
    input_file,
    natural,
    non_negative,
    option,
    parser,
    path,
    positive,
    positive_int,
    real,
    several,
    share,
    threads,
    whole,
)
from gluon_amp.distributed.workers import KV_STORES

DATASETS = ("imagenet", "caltech101", "caltech256", "folder", "rec", "digits")
DTYPES = ("float32", "float16", "bfloat16")
MODES = ("hybrid", "imperative", "module")
LR_MODES = ("step", "cosine", "poly", "linear", "constant")
OPTIMIZERS = ("sgd", "nag", "adam", "adamw", "lars", "lamb")
IMAGENET_SIZE = 224
LARGEST_RESIZED = 16_384  # pixels of the shorter side before the crop: 0.8 GB in memory


def loss_scale(text: str) -> Union[str, float]:
    """Read a loss scale: 'dynamic', 'none', or a power of two."""
    if text in ("dynamic", "none"):
        return text
    value = positive(text)
    if math.frexp(value)[0] != 0.5 or not 2.0**-24 <= value <= 2.0**24:
        raise argparse.ArgumentTypeError(
            "expected dynamic, none or a power of two such as 1024, from 2^-24 to 2^24, "
            f"got {text!r}"
        )
    return value


def image_side(text: str) -> int:
    """Read a size as one number, or as the examples of MXNet write it: 3,224,224."""
    parts = text.split(",")
    if len(parts) == 3 and parts[0] == "3" and parts[1] == parts[2]:
        text = parts[1]
    return whole(1, 8192)(text)


def checkpoint(text: str) -> str:
    """Read 'auto', or the path of a checkpoint."""
    return text if text == "auto" else str(input_file(text))


device_numbers = several(natural, "the numbers of devices, as in 0,1")
epochs = several(natural, "whole numbers of at least 0, as in 30,60,80")
colours = several(real(-1e3, 1e3), "three numbers, as in 123,117,104", 3)
colour_ranges = several(real(1e-3, 1e3), "three numbers from 0.001 to 1000, as in 58,57,57", 3)


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a run. Fields that are None are filled in where they are used."""

    model: str = option(
        "resnet50_v1", "--model", "--network",
        help="a name from GluonCV's or MXNet's model zoo",
    )  # fmt: skip
    num_layers: Optional[int] = option(
        None, "--num-layers", type=positive_int, metavar="N",
        help="with a name of MXNet's examples, as in --network resnet-v1 --num-layers 50",
    )  # fmt: skip
    mode: str = option(
        "hybrid", "--mode", choices=MODES,
        help="Gluon hybridized or not, or the Symbol and Module API",
    )  # fmt: skip
    dtype: str = option(
        "float32", "--dtype", choices=DTYPES,
        help="what the network computes in",
    )  # fmt: skip
    amp: bool = option(
        False, "--amp", switch=True,
        help="compute in float16 with float32 parameters, cast where they are used, as "
             "mxnet.contrib.amp does; --dtype float16 stores them in float16",
    )  # fmt: skip
    loss_scale: Optional[Union[str, float]] = option(
        None, "--loss-scale", type=loss_scale, metavar="dynamic|none|NUMBER",
        help="what the loss is multiplied by (default: dynamic for float16, else none)",
    )  # fmt: skip
    batch_size: int = option(
        128, "--batch-size", "-b", type=positive_int, metavar="N",
        help="images in a batch, per device",
    )  # fmt: skip
    accumulate: int = option(
        1, "--accumulate", type=positive_int, metavar="N",
        help="add up the gradients of N batches for each update",
    )  # fmt: skip
    num_gpus: Optional[int] = option(
        None, "--num-gpus", type=whole(0, 1024), metavar="N",
        help="use the first N GPUs, 0 for the CPU (default: all there are)",
    )  # fmt: skip
    gpus: Optional[Tuple[int, ...]] = option(
        None, "--gpus", type=device_numbers, metavar="0,1",
        help="use these GPUs, by number",
    )  # fmt: skip
    cpus: Optional[int] = option(
        None, "--cpus", type=whole(1, 1024), metavar="N",
        help="train on N CPU devices, to try out what several GPUs would do",
    )  # fmt: skip
    kv_store: str = option(
        "device", "--kv-store", "--kvstore", choices=KV_STORES,
        help="how gradients are added up over devices and machines",
    )  # fmt: skip
    dataset: Optional[str] = option(
        None, "--dataset", choices=DATASETS,
        help="what to train on (default: what --data-dir or --rec-train name)",
    )  # fmt: skip
    data_dir: Path = option(
        Path("~/.mxnet/datasets/imagenet"), "--data-dir", "--data", type=path, metavar="DIR",
        help="holds train/CLASS/*.jpg and val/CLASS/*.jpg",
    )  # fmt: skip
    rec_train: Optional[Path] = option(
        None, "--rec-train", "--data-train", type=input_file, metavar="FILE",
        help="packed training images",
    )  # fmt: skip
    rec_train_idx: Optional[Path] = option(
        None, "--rec-train-idx", "--data-train-idx", type=input_file, metavar="FILE",
        help="their index (default: the .idx beside the .rec)",
    )  # fmt: skip
    rec_val: Optional[Path] = option(
        None, "--rec-val", "--data-val", type=input_file, metavar="FILE",
        help="packed validation images",
    )  # fmt: skip
    rec_val_idx: Optional[Path] = option(
        None, "--rec-val-idx", "--data-val-idx", type=input_file, metavar="FILE",
        help="their index",
    )  # fmt: skip
    use_rec: bool = option(
        False, "--use-rec", switch=True,
        help="read DATA_DIR/rec/{train,val}.rec; implied by --rec-train",
    )  # fmt: skip
    num_classes: Optional[int] = option(
        None, "--num-classes", type=positive_int, metavar="N",
        help="stop if the data has another number of classes",
    )  # fmt: skip
    num_training_samples: Optional[int] = option(
        None, "--num-training-samples", "--num-examples", type=positive_int, metavar="N",
        help="stop if the data has another number of training images",
    )  # fmt: skip
    input_size: Optional[int] = option(
        None, "--input-size", "--image-shape", type=image_side, metavar="N",
        help="height and width that the network gets (default: 224; on the digits, the least that "
             "the network takes)",
    )  # fmt: skip
    crop_ratio: float = option(
        0.875, "--crop-ratio", type=real(0, 1, above=True), metavar="SHARE",
        help="validation resizes the short side to INPUT_SIZE / SHARE before it crops",
    )  # fmt: skip
    rgb_mean: Tuple[float, ...] = option(
        (123.68, 116.779, 103.939), "--rgb-mean", type=colours, metavar="R,G,B",
        help="subtracted from pixels of 0 to 255",
    )  # fmt: skip
    rgb_std: Tuple[float, ...] = option(
        (58.393, 57.12, 57.375), "--rgb-std", type=colour_ranges, metavar="R,G,B",
        help="divides them",
    )  # fmt: skip
    num_workers: Optional[int] = option(
        None, "--num-workers", "-j", "--num-data-workers", "--workers", "--num-worker",
        "--data-nthreads", type=threads, metavar="N",
        help="threads that load images, 0 for none (default: one for each core)",
    )  # fmt: skip
    num_epochs: int = option(
        90, "--num-epochs", "--epochs", type=whole(1, 10**6), metavar="N",
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
        (30, 60, 80), "--lr-decay-epoch", "--lr-steps", "--lr-step-epochs", type=epochs,
        metavar="EPOCHS", help="step mode: at these epochs, counted from 0",
    )  # fmt: skip
    lr_decay_period: int = option(
        0, "--lr-decay-period", type=natural, metavar="N",
        help="step mode: every N epochs, instead of at --lr-decay-epoch",
    )  # fmt: skip
    warmup_epochs: int = option(
        5, "--warmup-epochs", type=natural, metavar="N",
        help="epochs in which the learning rate rises",
    )  # fmt: skip
    warmup_lr: float = option(
        0.0, "--warmup-lr", type=non_negative, metavar="RATE",
        help="where it rises from",
    )  # fmt: skip
    optimizer: str = option("sgd", "--optimizer", choices=OPTIMIZERS, help="update rule")
    momentum: float = option(
        0.9, "--momentum", "--mom", type=share, metavar="M",
        help="of sgd, nag and lars",
    )  # fmt: skip
    wd: float = option(
        1e-4, "--wd", "--weight-decay", type=non_negative, metavar="WD",
        help="weight decay",
    )  # fmt: skip
    no_wd: bool = option(
        False, "--no-wd", switch=True,
        help="no weight decay on biases and normalisation",
    )  # fmt: skip
    last_gamma: bool = option(
        False, "--last-gamma", switch=True,
        help="begin with 0 as the gamma of the last BatchNorm of each residual block",
    )  # fmt: skip
    label_smoothing: float = option(
        0.0, "--label-smoothing", type=share, bare=0.1, metavar="EPS",
        help="share of the label that goes to all classes alike; 0.1 without a number",
    )  # fmt: skip
    mixup: float = option(
        0.0, "--mixup", type=non_negative, bare=0.2, metavar="ALPHA",
        help="mix pairs of images, with weights from Beta(ALPHA, ALPHA); 0.2 without a number",
    )  # fmt: skip
    mixup_alpha: Optional[float] = option(
        None, "--mixup-alpha", type=positive, metavar="ALPHA",
        help="the ALPHA of --mixup",
    )  # fmt: skip
    mixup_off_epoch: int = option(
        0, "--mixup-off-epoch", type=natural, metavar="N",
        help="no mixing in the last N epochs",
    )  # fmt: skip
    clip_grad: Optional[float] = option(
        None, "--clip-grad", type=positive, metavar="NORM",
        help="scale the gradient of the mean loss down to this norm where it is longer",
    )  # fmt: skip
    use_pretrained: bool = option(
        False, "--use-pretrained", switch=True,
        help="begin with the zoo's weights",
    )  # fmt: skip
    pretrained_file: Optional[Path] = option(
        None, "--pretrained-file", "--pretrained-model", type=input_file, metavar="FILE",
        help="begin with these weights; layers of other shapes begin anew",
    )  # fmt: skip
    from_scratch: bool = option(
        False, "--from-scratch", switch=True,
        help="begin with random weights all the same",
    )  # fmt: skip
    root: Path = option(
        Path("~/.mxnet/models"), "--root", type=path, metavar="DIR",
        help="where the zoo's weights are kept",
    )  # fmt: skip
    freeze_features: bool = option(
        False, "--freeze-features", switch=True,
        help="train the head alone",
    )  # fmt: skip
    head_lr_mult: float = option(
        1.0, "--head-lr-mult", type=positive, metavar="FACTOR",
        help="learning rate of the head over that of the features",
    )  # fmt: skip
    seed: int = option(0, "--seed", type=natural, metavar="N", help="of everything random")
    deterministic: bool = option(
        False, "--deterministic", switch=True,
        help="on GPUs, only algorithms that repeat bit for bit (CPUs always do)",
    )  # fmt: skip
    save_dir: Optional[Path] = option(
        None, "--save-dir", "--model-prefix", type=path, metavar="DIR",
        help="checkpoints and trained float32 parameters go here (default: nowhere)",
    )  # fmt: skip
    save_frequency: int = option(
        1, "--save-frequency", "--save-period", type=positive_int, metavar="N",
        help="write a checkpoint every N epochs",
    )  # fmt: skip
    save_batches: Optional[int] = option(
        None, "--save-batches", type=positive_int, metavar="N",
        help="and every N batches",
    )  # fmt: skip
    keep: int = option(
        3, "--keep", type=positive_int, metavar="N",
        help="keep the newest N checkpoints, besides the best",
    )  # fmt: skip
    resume: Optional[str] = option(
        None, "--resume", type=checkpoint, bare="auto", metavar="auto|FILE",
        help="go on from the newest checkpoint of SAVE_DIR, if there is one, or from a file",
    )  # fmt: skip
    resume_epoch: Optional[int] = option(
        None, "--resume-epoch", "--load-epoch", "--start-epoch", type=whole(0, 10**6), metavar="N",
        help="GluonCV's way: begin with this epoch, with ...",
    )  # fmt: skip
    resume_params: Optional[Path] = option(
        None, "--resume-params", type=input_file, metavar="FILE",
        help="... these parameters, and ...",
    )  # fmt: skip
    resume_states: Optional[Path] = option(
        None, "--resume-states", type=input_file, metavar="FILE",
        help="... these trainer states",
    )  # fmt: skip
    export: Optional[Path] = option(
        None, "--export", type=path, metavar="DIR",
        help="export the trained network there, in float32 and in the policy's dtype",
    )  # fmt: skip
    confusions: int = option(
        0, "--confusions", type=natural, metavar="N",
        help="list the N pairs of classes that are confused most",
    )  # fmt: skip
    eval_only: bool = option(
        False, "--eval-only", switch=True,
        help="validate once and leave",
    )  # fmt: skip
    eval_frequency: int = option(
        1, "--eval-frequency", type=positive_int, metavar="N",
        help="validate every N epochs, and after the last",
    )  # fmt: skip
    test_io: bool = option(
        False, "--test-io", switch=True,
        help="measure how fast training images are loaded, and leave",
    )  # fmt: skip
    benchmark: int = option(
        0, "--benchmark", type=natural, bare=1, metavar="0|1",
        help="train on noise made once, without disk or log, and print JSON",
    )  # fmt: skip
    max_batches: Optional[int] = option(
        None, "--max-batches", "--benchmark-iters", type=positive_int, metavar="N",
        help="train on at most N batches of an epoch, to try things out",
    )  # fmt: skip
    log_interval: int = option(
        50, "--log-interval", "--disp-batches", type=natural, metavar="N",
        help="log every N batches, 0 for never",
    )  # fmt: skip
    logging_file: Optional[Path] = option(
        None, "--logging-file", type=path, metavar="FILE",
        help="append what is logged to this file too",
    )  # fmt: skip
    log_json: Optional[Path] = option(
        None, "--log-json", type=path, metavar="FILE",
        help="append a line of JSON for every interval and epoch",
    )  # fmt: skip
    tensorboard: Optional[Path] = option(
        None, "--tensorboard", type=path, metavar="DIR",
        help="write loss, top-1, learning rate, loss scale, skips and speed for TensorBoard",
    )  # fmt: skip
    plot: Optional[Path] = option(
        None, "--plot", type=path, metavar="FILE",
        help="draw the error of each epoch as a PNG",
    )  # fmt: skip
    summary_json: Optional[Path] = option(
        None, "--summary-json", type=path, metavar="FILE",
        help="write the results here",
    )  # fmt: skip

    lr_per_256: float = 0.1  # for the default of lr; decided by the data set
    fine_tunes: bool = False  # decided by the script

    @property
    def reads_records(self) -> bool:
        """Whether the data is packed."""
        given = (self.rec_train, self.rec_train_idx, self.rec_val, self.rec_val_idx)
        return self.use_rec or any(path is not None for path in given)

    @property
    def computes_in(self) -> str:
        """The dtype of matrix products."""
        return "float16" if self.amp else self.dtype

    @property
    def policy(self) -> str:
        """The policy that the network is cast by."""
        return "mixed_float16" if self.amp else self.dtype


# Options of GluonCV's, MXNet's and NVIDIA's scripts that have none here, and what to do instead.
REFUSED: Dict[str, str] = {
    "--teacher": "distillation is not built in, so train without a teacher",
    "--temperature": "distillation is not built in, so train without a teacher",
    "--hard-weight": "distillation is not built in, so train without a teacher",
    "--use_se": "take the network by its name, such as --model se_resnet50_v1",
    "--use-gn": "take the network by its name, such as --model resnet50_v1b_gn",
    "--batch-norm": "take the network by its name, such as --model vgg16_bn",
    "--auto_aug": "augmentation is GluonCV's default, crop, flip, jitter and lighting",
    "--data-backend": "images are decoded by OpenCV on all cores, see --num-workers",
    "--gc-type": "gradients are exchanged in float16 where the policy has them, so leave it out",
    "--gc-threshold": "gradients are exchanged in float16 where the policy has them, so leave it "
    "out",
    "--static-loss-scale": "use --loss-scale NUMBER",
    "--monitor": "use gluon_amp.gradient_report, or --tensorboard DIR",
    "--profile": "use scripts/benchmark.py",
    "--no-cuda": "use --num-gpus 0",
    "--ngpus": "use --num-gpus N",
    "--dali-threads": "use --num-workers N",
    "--top-k": "top-1 and top-5 errors are always logged",
    "--layer-before-fullc": "use scripts/fine_tune.py",
}

# What a data set needs otherwise than ImageNet does; an option on the command line wins.
DATA_DEFAULTS: Dict[str, Dict[str, Any]] = {
    "imagenet": {},
    "synthetic": {"num_epochs": 1, "warmup_epochs": 0, "lr": 1e-4, "max_batches": 20},
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

# What fine-tuning needs otherwise than training from scratch: a short run at a low rate, and the
# head's tenfold rate of Zhang et al., "Dive into Deep Learning", section 14.2.
FINE_TUNING: Dict[str, Any] = {
    "dataset": "digits",
    "batch_size": 32,
    "num_epochs": 10,
    "lr": 0.01,
    "lr_mode": "cosine",
    "warmup_epochs": 1,
    "head_lr_mult": 10.0,
    "use_pretrained": True,
    "confusions": 5,
    "fine_tunes": True,
}
FINE_TUNING_DATA: Dict[str, Dict[str, Any]] = {
    "digits": {
        "model": "cifar_resnet8_v1",
        "batch_size": 16,
        "num_epochs": 8,
        "lr": 0.02,
        "head_lr_mult": 5.0,
        "num_workers": 0,
        "log_interval": 10,
    },
}

FineTuning = dataclasses.make_dataclass(
    "FineTuning",
    [
        (field.name, field.type,
         dataclasses.field(default=FINE_TUNING[field.name], metadata=field.metadata))
        for field in dataclasses.fields(Recipe)
        if field.name in FINE_TUNING
    ],
    bases=(Recipe,),
    frozen=True,
)  # fmt: skip


def read(arguments: Optional[Sequence[str]] = None) -> Tuple[Recipe, Dict[str, Any]]:
    """Read the command line of train_imagenet.py: the recipe, and the options that were given.

    Raises
    ------
    UsageError
        Two options contradict each other.
    """
    instead = ", ".join(f"{k.replace('_', '-')} {v}" for k, v in DATA_DEFAULTS["digits"].items())
    epilog = f"Where there is no ImageNet, it trains on handwritten digits; defaults: {instead}."
    return _read(Recipe, "Train an image classifier in mixed precision.", epilog, arguments)


def read_fine_tuning(
    arguments: Optional[Sequence[str]] = None,
) -> Tuple[Recipe, Dict[str, Any]]:
    """Read the command line of fine_tune.py, as `read` does."""
    epilog = (
        "Without --dataset it needs nothing: a network learns the handwritten digits 0 to 4, and "
        "is then fine-tuned on 5 to 9."
    )
    return _read(FineTuning, "Fine-tune a pretrained classifier in mixed precision.", epilog,
                 arguments)  # fmt: skip


def _read(
    options: Type[Recipe], description: str, epilog: str, arguments: Optional[Sequence[str]]
) -> Tuple[Recipe, Dict[str, Any]]:
    made = parser(options, description, epilog, REFUSED)
    given = vars(made.parse_args(arguments))
    if "mixup_alpha" in given:
        given["mixup"] = given["mixup_alpha"]
    recipe = options(**given)
    check(recipe, given)
    return recipe, given


def check(recipe: Recipe, given: Dict[str, Any]) -> None:
    """Raise `UsageError` where two options contradict each other."""
    gpus = ",".join(map(str, recipe.gpus or ()))
    size = recipe.input_size or IMAGENET_SIZE
    resized = size / recipe.crop_ratio
    legacy = [name for name in ("resume_epoch", "resume_params", "resume_states") if name in given]
    conflicts = [
        (recipe.amp and "dtype" in given,
         f"--amp and --dtype {recipe.dtype} are two ways to choose a dtype: give one of them."),
        (recipe.gpus and recipe.num_gpus is not None and recipe.num_gpus != len(recipe.gpus),
         f"--num-gpus {recipe.num_gpus} and --gpus {gpus} disagree: give one of them."),
        (recipe.cpus and (recipe.gpus or recipe.num_gpus),
         "--cpus and GPUs were both asked for: give one of them."),
        (resized > LARGEST_RESIZED,
         f"--crop-ratio {recipe.crop_ratio:g} would resize images to {resized:.0f} pixels: give at "
         f"least {size / LARGEST_RESIZED:.2g} for --input-size {size}."),
        (recipe.resume and legacy,
         f"--resume and --{legacy[0].replace('_', '-') if legacy else ''} are two ways to go on: "
         "give one of them."),
        (recipe.resume == "auto" and recipe.save_dir is None,
         "--resume auto looks into --save-dir, which was not given."),
        (legacy and recipe.mode != "module"
         and (recipe.resume_epoch is None or recipe.resume_params is None),
         "--resume-epoch and --resume-params belong together: give both."),
        (recipe.mode == "module" and "resume_epoch" in given and recipe.save_dir is None,
         "--load-epoch reads from --model-prefix, which was not given."),
        (recipe.warmup_epochs >= recipe.num_epochs and "warmup_epochs" in given,
         f"--warmup-epochs {recipe.warmup_epochs} leaves none of --num-epochs {recipe.num_epochs}: "
         "give fewer."),
        ("use_pretrained" in given and recipe.pretrained_file,
         "--use-pretrained and --pretrained-file are two ways to begin: give one of them."),
        (recipe.from_scratch and ("use_pretrained" in given or recipe.pretrained_file),
         "--from-scratch and pretrained weights are two ways to begin: give one of them."),
        (recipe.freeze_features and recipe.from_scratch,
         "--freeze-features keeps features that --from-scratch never learns: give one of them."),
        *((recipe.mode == "module" and wanted,
           f"--mode module has no --{name}: use --mode hybrid.")
          for name, wanted in (
              ("export", recipe.export), ("freeze-features", recipe.freeze_features),
              ("mixup", recipe.mixup), ("clip-grad", recipe.clip_grad),
              ("accumulate", recipe.accumulate > 1), ("resume-params", recipe.resume_params))),
    ]  # fmt: skip
    for wrong, sentence in conflicts:
        if wrong:
            raise UsageError(sentence)


def for_data(recipe: Recipe, given: Dict[str, Any], data: str) -> Recipe:
    """Fill in the options in which a data set differs from ImageNet, unless the user set them.

    A run of fewer epochs than usual warms up for the same share of them.
    """
    table = FINE_TUNING_DATA if recipe.fine_tunes else DATA_DEFAULTS
    usual = {**(FINE_TUNING if recipe.fine_tunes else {}), **table.get(data, {})}
    defaults = {k: v for k, v in table.get(data, {}).items() if k not in given}
    recipe = dataclasses.replace(recipe, **defaults)
    if "warmup_epochs" in given:
        return recipe
    share = min(1, recipe.num_epochs / usual.get("num_epochs", Recipe.num_epochs))
    return dataclasses.replace(recipe, warmup_epochs=share * recipe.warmup_epochs)


def learning_rate(recipe: Recipe, total_batch: int) -> float:
    """Return the learning rate: as given, or 0.1 (digits: 0.4) for each 256 images of a batch.

    0.4 for 8 × 128 and 0.8 for 8 × 256, as in MXNet's float16 FAQ; the rule is that of Goyal et
    al., "Accurate, Large Minibatch SGD" (2017).
    """
    return recipe.lr_per_256 * total_batch / 256 if recipe.lr is None else recipe.lr
