"""The recipe of an image run: complete and frozen before data, network or devices are opened."""

import functools
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from gluon_amp.base.messages import UsageError
from gluon_amp.training.data import SMALL
from gluon_amp.training.networks.models import full_name
from gluon_amp.training.runs import defaults, options
from gluon_amp.training.runs.image_options import CALTECH, add_image_options
from gluon_amp.training.runs.options import Options, TrainingParser

LARGEST_RESIZED = 16_384  # pixels of the shorter side before the crop: 0.8 GB in memory


# An example for each group of the help; `gluon-amp fine-tune` takes them, too.
EXAMPLES = {
    "model": "--model mobilenet0.5 --use-pretrained",
    "data": "--image-folder photos --input-size 96",
    "precision": "--dtype float16 --loss-scale dynamic:1024",
    "schedule": "--num-epochs 6 --batch-size 32 --lr 0.05 --lr-mode cosine",
    "checkpoints": "--save-dir run --save-batches 500 --resume",
    "devices": "--gpus 0,1",
    options.LOGS: "--log-json run.jsonl --plot errors.png",
}


def _parser(of_command: Dict[str, Any], **about: Optional[str]) -> TrainingParser:
    parser = TrainingParser(groups=options.GROUPS, examples=EXAMPLES, **about)
    add_image_options(parser)
    parser.set_defaults(**{**defaults.OTHER_DEFAULTS, **of_command})
    return parser


def train_parser(prog: Optional[str] = None) -> TrainingParser:
    """Return the parser of `gluon-amp train`."""
    digits = defaults.DATA_DEFAULTS["digits"]
    listed = "; ".join(
        f"{options.flag_of(name)} {value}"
        for name, value in digits.items()
        if name not in defaults.OTHER_DEFAULTS
    )
    return _parser(
        {},
        prog=prog,
        description="Train an image classifier in float32, or in mixed precision with --dtype "
        "float16, mixed_float16 or bfloat16.",
        epilog="Without ImageNet, it trains on handwritten digits, with these defaults: "
        f"{listed}; --lr {digits['lr_per_256']} * total batch / 256; and in a run "
        f"of fewer epochs --batch-size {digits['short_batch']}.",
    )


def fine_tuning_parser(prog: Optional[str] = None) -> TrainingParser:
    """Return the parser of `gluon-amp fine-tune`: the same options with other defaults."""
    return _parser(
        defaults.FINE_TUNING,
        prog=prog,
        description="Fine-tune a pretrained classifier in float32, or in mixed precision with "
        "--dtype float16, mixed_float16 or bfloat16.",
        epilog="Without --dataset it needs no files: a network learns the handwritten digits 0 to "
        "4, and is then fine-tuned on 5 to 9.",
    )


class Recipe(Options):
    """All options of an image run, as attributes, and what follows from them.

    An option on the command line wins over the default of the data, this over that of the network,
    and this over that of the command. `data` is a data set's name, 'rec' for packed images,
    'image-folder', 'folder' for ``train/CLASS`` and ``val/CLASS``, or 'synthetic'; `notice` says
    which data and why, if no option names them. Without ``--lr``, `lr_per_256` is the learning rate
    for every 256 images of a batch.
    """

    def __init__(self, chosen: Dict[str, Any], command: Dict[str, Any]):
        data = described_data(chosen, command)
        of_data = defaults.FINE_TUNING_DATA if command["fine_tunes"] else defaults.DATA_DEFAULTS
        of_model = defaults.MODEL_DEFAULTS.get({**command, **chosen}["model"], {})
        super().__init__(chosen, data, of_data.get(data["data"], {}), of_model, command)
        _check(self)

    @property
    def policy(self) -> str:
        """The name of the policy of the network."""
        return "mixed_float16" if self.amp else self.dtype

    arithmetic = policy  # what runs that resume must agree in

    @property
    def network(self) -> str:
        """The zoo's name of the network."""
        return full_name(self.model, self.num_layers)

    @property
    def input_size(self) -> int:
        """Height and width of the network's input."""
        smallest = defaults.input_side(self.data, self.network)
        return self.mapping["input_size"] or smallest

    @property
    def share_of_epochs(self) -> float:
        """How many of the usual epochs the run has: 1 for a run of as many or more."""
        return min(1, self.num_epochs / self.mapping.parents["num_epochs"])

    @property
    def warmup_epochs(self) -> float:
        """Epochs in which the learning rate rises: by default, of a shorter run the same share."""
        share = 1 if "warmup_epochs" in self.chosen else self.share_of_epochs
        return self.mapping["warmup_epochs"] * share

    @property
    def batch_size(self) -> int:
        """Images of a batch on each device; some data have a smaller default for shorter runs."""
        if self.short_batch and self.share_of_epochs < 1 and "batch_size" not in self.chosen:
            return self.short_batch
        return self.mapping["batch_size"]

    @property
    def lr_decay_epoch(self) -> Tuple[int, ...]:
        """The epochs that begin with a decay of the learning rate in step mode."""
        period = self.lr_decay_period
        if not period:
            return self.mapping["lr_decay_epoch"]
        return tuple(range(period, self.num_epochs, period))

    @property
    def mixup(self) -> float:
        """The parameter of the beta distribution of mixup; 0 for none."""
        return self.mapping["mixup"] if self.mixup_alpha is None else self.mixup_alpha

    def learning_rate(self, total_batch: int) -> float:
        """Return ``--lr``, or else 0.1 (digits: 0.4) for every 256 images of a batch.

        That is 0.4 for 8 × 128 images, as in MXNet's float16 FAQ; the rule is that of Goyal et al.,
        "Accurate, Large Minibatch SGD" (2017).
        """
        return self.lr_per_256 * total_batch / 256 if self.lr is None else self.lr


def read(
    arguments: Optional[Sequence[str]] = None,
    prog: Optional[str] = None,
    parser: Callable[[Optional[str]], TrainingParser] = train_parser,
) -> Recipe:
    """Return the recipe of a command line of `gluon-amp train`."""
    of = parser(prog)
    command, chosen = of.parse_explicit(arguments)
    return Recipe(chosen, {**command, "names": of.names})


# The same for a command line of `gluon-amp fine-tune`.
read_fine_tuning = functools.partial(read, parser=fine_tuning_parser)


PACKED = ("use_rec", "rec_train", "rec_train_idx", "rec_val", "rec_val_idx")


def described_data(chosen: Dict[str, Any], command: Dict[str, Any]) -> Dict[str, Any]:
    """Return what the options on a command line say of the data: a layer of the recipe."""
    packed = any(chosen.get(name) for name in PACKED)
    in_files = packed or "data_dir" in chosen
    dataset = chosen.get("dataset", None if in_files else command["dataset"])
    notice = None
    if chosen.get("benchmark"):
        data = "synthetic"
    elif chosen.get("image_folder"):
        data = "image-folder"
    elif in_files or "dataset" in chosen:
        whole = dataset in (*SMALL, *CALTECH)
        data = dataset if whole else "rec" if packed or dataset == "rec" else "folder"
    else:
        found = not dataset and command["data_dir"].expanduser().exists()
        data = "folder" if found else dataset or "digits"
        folder = command["data_dir"]
        used = folder if found else "digits (8x8 images from scikit-learn)"
        missing = "" if found or dataset else f"\n(there is no ImageNet at {folder})"
        notice = f"data: {used}, as no option names others{missing}"
    if chosen.get("image_folder"):
        dataset = "folder"
    at = {"data_dir": defaults.FOLDERS[data]} if data in defaults.FOLDERS else {}
    return {"data": data, "dataset": dataset, "notice": notice, "reads_records": packed, **at}


# Options that exclude others, and what both choose
ALTERNATIVES = (
    ("amp", ("dtype",), "the dtype"),
    ("image_folder", ("dataset", "data_dir", "use_rec", "rec_train", "rec_val"), "the data"),
    ("resume", ("resume_epoch", "resume_params", "resume_states"), "where to resume"),
    ("pretrained_file", ("use_pretrained", "from_scratch"), "the first weights"),
    ("from_scratch", ("use_pretrained",), "the first weights"),
)
WITHOUT_MODULE = "export freeze_features mixup clip_grad ema_decay accumulate resume_params".split()


def _check(recipe: Recipe) -> None:
    """Raise `UsageError` if two options contradict each other."""
    chosen, size = recipe.chosen, recipe.input_size
    for one, others, choice in ALTERNATIVES:
        for other in others:
            if one in chosen and other in chosen:
                flags = f"{options.flag_of(one)} and {options.flag_of(other)}"
                raise UsageError(f"{flags} both choose {choice}: give one of them.")
    options.check_devices(recipe)
    if "data_dir" in chosen and not recipe.data_dir.expanduser().exists():
        raise UsageError(
            f"--data-dir {recipe.data_dir} was not found: give the folder that holds the images."
        )
    resized = size / recipe.crop_ratio
    if resized > LARGEST_RESIZED:
        raise UsageError(
            f"--crop-ratio {recipe.crop_ratio:g} would resize images to {resized:.0f} pixels: give "
            f"at least {size / LARGEST_RESIZED:.2g} for --input-size {size}."
        )
    _check_resume(recipe)
    if recipe.warmup_epochs >= recipe.num_epochs and "warmup_epochs" in chosen:
        raise UsageError(
            f"--warmup-epochs {recipe.warmup_epochs} leaves none of --num-epochs "
            f"{recipe.num_epochs}: give fewer."
        )
    for kept in ("features", "statistics"):
        if getattr(recipe, f"freeze_{kept}") and recipe.from_scratch:
            raise UsageError(
                f"--freeze-{kept} keeps {kept} that --from-scratch never learns: give one of them."
            )
    for name in WITHOUT_MODULE:
        wanted = recipe.accumulate > 1 if name == "accumulate" else getattr(recipe, name)
        if recipe.mode == "module" and wanted:
            raise UsageError(f"--mode module has no {options.flag_of(name)}: use --mode hybrid.")


def _check_resume(recipe: Recipe) -> None:
    chosen = recipe.chosen
    options.check_resume(recipe)
    if recipe.mode == "module":
        if "resume_epoch" in chosen and recipe.save_dir is None:
            raise UsageError("--load-epoch reads from --model-prefix, which was not given.")
    elif {"resume_epoch", "resume_params", "resume_states"} & chosen.keys() and (
        recipe.resume_epoch is None or recipe.resume_params is None
    ):
        raise UsageError("--resume-epoch and --resume-params belong together: give both.")
