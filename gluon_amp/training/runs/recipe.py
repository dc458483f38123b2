"""The recipe of an image run: its options, from the command line, a data set and the defaults."""

import argparse
import functools
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from gluon_amp.base.messages import UsageError
from gluon_amp.training.networks import efficientnet_lite
from gluon_amp.training.runs.image_options import add_image_options
from gluon_amp.training.runs.options import GROUPS, check_devices, check_resume
from gluon_amp.training.runs.parser import TrainingParser

IMAGENET_SIZE = 224
LARGEST_RESIZED = 16_384  # pixels of the shorter side before the crop: 0.8 GB in memory

# What else a recipe holds, besides options: the learning rate per 256 images, which depends on the
# data set, and whether the run fine-tunes, which depends on the script.
OTHER_DEFAULTS: Dict[str, Any] = {"lr_per_256": 0.1, "fine_tunes": False}

# Defaults of data sets that differ from those for ImageNet; an option on the command line wins.
DATA_DEFAULTS: Dict[str, Dict[str, Any]] = {
    "imagenet": {},
    "synthetic": {"num_epochs": 1, "warmup_epochs": 0, "lr": 1e-4, "max_batches": 20},
    "digits": {
        # An epoch has only 6 batches of 256: a higher rate and more decay than for ImageNet. The
        # run ends after a minute or two on two cores that emulate float16.
        "model": "cifar_resnet8_v1",
        "num_epochs": 24,
        "lr_per_256": 0.4,
        "lr_mode": "cosine",
        "warmup_epochs": 2,
        "wd": 5e-4,
        "num_workers": 0,
        "log_interval": 6,
    },
    "fashion-mnist": {
        # The run ends in about a minute on one core.
        "model": "convnet",
        "num_epochs": 4,
        "lr_per_256": 0.1,
        "lr_mode": "cosine",
        "warmup_epochs": 1,
        "wd": 5e-4,
        "num_workers": 0,
        "log_interval": 100,
    },
}

# Defaults of networks: the colours that their weights were trained with, and no higher rate for the
# head where its many large features make ten times the rate diverge.
MODEL_DEFAULTS: Dict[str, Dict[str, Any]] = {
    efficientnet_lite.NAME: {
        "rgb_mean": efficientnet_lite.RGB_MEAN,
        "rgb_std": efficientnet_lite.RGB_STD,
        "head_lr_mult": 1.0,
    },
}

# Defaults of fine-tuning that differ from those of training: a short run at a low rate, and ten
# times that rate for the head, as in Zhang et al., "Dive into Deep Learning", section 14.2.
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


def train_parser(prog: Optional[str] = None) -> TrainingParser:
    """Return the parser of `gluon-amp train`."""
    digits = "; ".join(
        f"--{name.replace('_', '-')} {value}"
        for name, value in DATA_DEFAULTS["digits"].items()
        if name not in OTHER_DEFAULTS
    )
    parser = TrainingParser(
        groups=GROUPS,
        prog=prog,
        description="Train an image classifier in mixed precision.",
        epilog="Without ImageNet, it trains on handwritten digits, with these defaults: "
        f"{digits}; --lr {DATA_DEFAULTS['digits']['lr_per_256']} * total batch / 256.",
    )
    add_image_options(parser)
    parser.set_defaults(**OTHER_DEFAULTS)
    return parser


def fine_tuning_parser(prog: Optional[str] = None) -> TrainingParser:
    """Return the parser of `gluon-amp fine-tune`: the same options with other defaults."""
    parser = TrainingParser(
        groups=GROUPS,
        prog=prog,
        description="Fine-tune a pretrained classifier in mixed precision.",
        epilog="Without --dataset it needs no files: a network learns the handwritten digits 0 to "
        "4, and is then fine-tuned on 5 to 9.",
    )
    add_image_options(parser)
    parser.set_defaults(**{**OTHER_DEFAULTS, **FINE_TUNING})
    return parser


@functools.lru_cache(maxsize=None)
def defaults() -> Dict[str, Any]:
    """Return the default of every option of `gluon-amp train`."""
    return train_parser().parse_explicit([])[0]


class Recipe(argparse.Namespace):
    """All options of an image run, as attributes; `replace` returns a copy with other values.

    Parameters
    ----------
    options
        Values by the name of the option, as in ``batch_size``; others have the defaults of
        `gluon-amp train`.

    Raises
    ------
    TypeError
        There is no option of that name.
    """

    def __init__(self, **options: Any):
        for name in options.keys() - defaults().keys():
            raise TypeError(f"a recipe has no option {name!r}")
        super().__init__(**{**defaults(), **options})

    def replace(self, **changes: Any) -> "Recipe":
        """Return a copy with other values for some options."""
        return Recipe(**{**vars(self), **changes})

    @property
    def reads_records(self) -> bool:
        """Whether the data is packed."""
        files = (self.rec_train, self.rec_train_idx, self.rec_val, self.rec_val_idx)
        return self.use_rec or any(path is not None for path in files)

    @property
    def policy(self) -> str:
        """The name of the policy of the network."""
        return "mixed_float16" if self.amp else self.dtype


def read(
    arguments: Optional[Sequence[str]] = None,
    prog: Optional[str] = None,
    parser: Callable[[Optional[str]], TrainingParser] = train_parser,
) -> Tuple[Recipe, Dict[str, Any]]:
    """Return the recipe of a command line of `gluon-amp train`, and the options that it sets.

    Raises
    ------
    UsageError
        Two options contradict each other.
    """
    defaults, options = parser(prog).parse_explicit(arguments)
    if "mixup_alpha" in options:
        options["mixup"] = options["mixup_alpha"]
    if "image_folder" in options:
        defaults["dataset"] = "folder"
    model = options.get("model", defaults["model"])
    recipe = Recipe(**{**defaults, **MODEL_DEFAULTS.get(model, {}), **options})
    check(recipe, options)
    return recipe, options


# The same for a command line of `gluon-amp fine-tune`.
read_fine_tuning = functools.partial(read, parser=fine_tuning_parser)


def check(recipe: Recipe, options: Dict[str, Any]) -> None:
    """Raise `UsageError` if two options contradict each other."""
    if recipe.amp and "dtype" in options:
        raise UsageError(
            f"--amp and --dtype {recipe.dtype} are two ways to choose a dtype: give one of them."
        )
    check_devices(recipe)
    if recipe.image_folder:
        _check_image_folder(recipe, options)
    size = recipe.input_size or IMAGENET_SIZE
    resized = size / recipe.crop_ratio
    if resized > LARGEST_RESIZED:
        raise UsageError(
            f"--crop-ratio {recipe.crop_ratio:g} would resize images to {resized:.0f} pixels: give "
            f"at least {size / LARGEST_RESIZED:.2g} for --input-size {size}."
        )
    _check_resume(recipe, options)
    if recipe.warmup_epochs >= recipe.num_epochs and "warmup_epochs" in options:
        raise UsageError(
            f"--warmup-epochs {recipe.warmup_epochs} leaves none of --num-epochs "
            f"{recipe.num_epochs}: give fewer."
        )
    _check_weights(recipe, options)
    if recipe.mode == "module":
        _check_module(recipe)


def _check_image_folder(recipe: Recipe, options: Dict[str, Any]) -> None:
    others = [name for name in ("dataset", "data_dir") if name in options]
    if others or recipe.reads_records:
        other = f"--{others[0].replace('_', '-')}" if others else "packed images"
        raise UsageError(f"--image-folder and {other} both name the data: give one of them.")


def _check_resume(recipe: Recipe, options: Dict[str, Any]) -> None:
    names = ("resume_epoch", "resume_params", "resume_states")
    legacy = [name for name in names if name in options]
    if recipe.resume and legacy:
        raise UsageError(
            f"--resume and --{legacy[0].replace('_', '-')} are two ways to resume: give one of "
            "them."
        )
    check_resume(recipe)
    if recipe.mode == "module":
        if "resume_epoch" in options and recipe.save_dir is None:
            raise UsageError("--load-epoch reads from --model-prefix, which was not given.")
    elif legacy and (recipe.resume_epoch is None or recipe.resume_params is None):
        raise UsageError("--resume-epoch and --resume-params belong together: give both.")


def _check_weights(recipe: Recipe, options: Dict[str, Any]) -> None:
    if "use_pretrained" in options and recipe.pretrained_file:
        raise UsageError(
            "--use-pretrained and --pretrained-file are two ways to begin: give one of them."
        )
    if recipe.from_scratch and ("use_pretrained" in options or recipe.pretrained_file):
        raise UsageError(
            "--from-scratch and pretrained weights are two ways to begin: give one of them."
        )
    for kept in ("features", "statistics"):
        if getattr(recipe, f"freeze_{kept}") and recipe.from_scratch:
            raise UsageError(
                f"--freeze-{kept} keeps {kept} that --from-scratch never learns: give one of them."
            )


def _check_module(recipe: Recipe) -> None:
    missing = {
        "export": recipe.export,
        "freeze-features": recipe.freeze_features,
        "mixup": recipe.mixup,
        "clip-grad": recipe.clip_grad,
        "accumulate": recipe.accumulate > 1,
        "resume-params": recipe.resume_params,
    }
    for name, wanted in missing.items():
        if wanted:
            raise UsageError(f"--mode module has no --{name}: use --mode hybrid.")


def for_data(recipe: Recipe, options: Dict[str, Any], data: str) -> Recipe:
    """Return the recipe with the defaults of a data set.

    A run of fewer epochs than the default warms up for the same share of them.

    Parameters
    ----------
    recipe : Recipe
    options : dict
        The options on the command line, by name; they keep their values.
    data : str
        The name of the data set.
    """
    of_data = (FINE_TUNING_DATA if recipe.fine_tunes else DATA_DEFAULTS).get(data, {})
    recipe = recipe.replace(**{k: v for k, v in of_data.items() if k not in options})
    if "warmup_epochs" in options:
        return recipe
    usual = {**defaults(), **(FINE_TUNING if recipe.fine_tunes else {}), **of_data}
    share = min(1, recipe.num_epochs / usual["num_epochs"])
    return recipe.replace(warmup_epochs=share * recipe.warmup_epochs)


def learning_rate(recipe: Recipe, total_batch: int) -> float:
    """Return ``--lr``, or else 0.1 (digits: 0.4) for every 256 images of a batch.

    These are 0.4 for 8 × 128 and 0.8 for 8 × 256 images, as in MXNet's float16 FAQ; the rule is
    that of Goyal et al., "Accurate, Large Minibatch SGD" (2017).
    """
    return recipe.lr_per_256 * total_batch / 256 if recipe.lr is None else recipe.lr
