"""The recipe of a language model, read from the command line of train_lstm.py."""

from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Sequence, Tuple, Union

from gluon_amp.command_line import (
    UsageError,
    option,
    parser,
    positive,
    positive_int,
    same_option,
    whole,
)
from gluon_amp.recipes.recipe import Recipe

OPTIMIZERS = ("sgd", "nag", "adam", "adamw")


@dataclass(frozen=True)
class LanguageRecipe:
    """Everything that decides a run; what images need as well is as in `Recipe`."""

    dtype: str = same_option(Recipe, "dtype")
    loss_scale: Optional[Union[str, float]] = same_option(Recipe, "loss_scale")
    batch_size: int = same_option(
        Recipe, "batch_size", 32, help="streams of text in a batch, per device"
    )
    bptt: int = option(
        32, "--bptt", type=positive_int, metavar="N",
        help="characters that a gradient goes back through",
    )  # fmt: skip
    characters: int = option(
        500_000, "--characters", type=positive_int, metavar="N",
        help="train on so many; a tenth as many, of other files, validate",
    )  # fmt: skip
    embedding: int = option(
        64, "--embedding", type=whole(1, 65536), metavar="N", help="size of a character's vector"
    )
    hidden: int = option(
        128, "--hidden", type=whole(1, 65536), metavar="N", help="size of an LSTM layer"
    )
    layers: int = option(1, "--layers", type=whole(1, 1024), metavar="N", help="LSTM layers")
    num_epochs: int = same_option(Recipe, "num_epochs", 4, help="passes over the text")
    lr: Optional[float] = same_option(
        Recipe, "lr", type=positive,
        help="learning rate, which falls as a cosine (default: 0.004 * total batch / 32)",
    )  # fmt: skip
    optimizer: str = same_option(Recipe, "optimizer", "adam", choices=OPTIMIZERS)
    momentum: float = same_option(Recipe, "momentum", help="of sgd and nag")
    wd: float = same_option(Recipe, "wd", 0.0)
    clip_grad: Optional[float] = same_option(Recipe, "clip_grad", 1.0)
    num_gpus: Optional[int] = same_option(Recipe, "num_gpus")
    gpus: Optional[Tuple[int, ...]] = same_option(Recipe, "gpus")
    cpus: Optional[int] = same_option(Recipe, "cpus")
    seed: int = same_option(Recipe, "seed")
    deterministic: bool = same_option(Recipe, "deterministic")
    save_dir: Optional[Path] = same_option(Recipe, "save_dir")
    save_batches: Optional[int] = same_option(
        Recipe,
        "save_batches",
        help="write a checkpoint every N batches, too, not only after an epoch",
    )
    keep: int = same_option(Recipe, "keep", help="keep the newest N checkpoints")
    resume: Optional[str] = same_option(Recipe, "resume")
    max_batches: Optional[int] = same_option(Recipe, "max_batches")
    log_interval: int = same_option(Recipe, "log_interval", 100)
    log_json: Optional[Path] = same_option(Recipe, "log_json")
    summary_json: Optional[Path] = same_option(Recipe, "summary_json")

    @property
    def model(self) -> str:
        """The network in words."""
        return f"{self.layers}-layer LSTM of {self.hidden}, embedding of {self.embedding}"


def learning_rate(recipe: LanguageRecipe, total_batch: int) -> float:
    """Return the learning rate: as given, or 0.004 for each 32 streams of a batch."""
    return 0.004 * total_batch / 32 if recipe.lr is None else recipe.lr


def read(arguments: Optional[Sequence[str]] = None) -> LanguageRecipe:
    """Read the command line of train_lstm.py.

    Raises
    ------
    UsageError
        Two options contradict each other.
    """
    made = parser(
        LanguageRecipe,
        "Train a character language model, an LSTM, in mixed precision.",
        "The text is the sources of Python's own standard library.",
    )
    recipe = LanguageRecipe(**vars(made.parse_args(arguments)))
    gpus = ",".join(map(str, recipe.gpus or ()))
    conflicts = [
        (recipe.gpus and recipe.num_gpus is not None and recipe.num_gpus != len(recipe.gpus),
         f"--num-gpus {recipe.num_gpus} and --gpus {gpus} disagree: give one of them."),
        (recipe.cpus and (recipe.gpus or recipe.num_gpus),
         "--cpus and GPUs were both asked for: give one of them."),
        (recipe.resume == "auto" and recipe.save_dir is None,
         "--resume auto looks into --save-dir, which was not given."),
    ]  # fmt: skip
    for wrong, sentence in conflicts:
        if wrong:
            raise UsageError(sentence)
    return recipe
