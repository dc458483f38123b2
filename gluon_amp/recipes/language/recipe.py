"""The recipe of a language run: the options of train_lstm.py."""

import argparse
from typing import Optional, Sequence

from gluon_amp.command_line import non_negative, positive, share, whole
from gluon_amp.recipes import options
from gluon_amp.recipes.options import COUNT
from gluon_amp.recipes.parser import TrainingParser

OPTIMIZERS = ("sgd", "nag", "adam", "adamw")


class LanguageRecipe(argparse.Namespace):
    """All options of a language run, as attributes."""

    @property
    def model(self) -> str:
        """The network in words."""
        return f"{self.layers}-layer LSTM of {self.hidden}, embedding of {self.embedding}"


def parser() -> TrainingParser:
    """Return the parser of train_lstm.py."""
    parser = TrainingParser(
        description="Train a character language model, an LSTM, in mixed precision.",
        epilog="The text is the source code of Python's standard library.",
    )
    _add_network(parser)
    options.add_precision(parser)
    options.add_devices(parser)
    _add_training(parser)
    options.add_random_numbers(parser)
    options.add_checkpoints(parser, kept="keep the newest N checkpoints")
    options.add_logs(parser, interval=100)
    options.add_trials(parser)
    return parser


def _add_network(parser: TrainingParser) -> None:
    size = {"type": whole(1, 65536), "metavar": "N"}
    add = parser.add_argument_group("network").add_argument
    add("--embedding", **size, default=64, help="size of the vector of a character")
    add("--hidden", **size, default=128, help="size of an LSTM layer")
    add("--layers", type=whole(1, 1024), default=1, metavar="N", help="number of LSTM layers")


def _add_training(parser: TrainingParser) -> None:
    add = parser.add_argument_group("training").add_argument
    add(
        "--characters",
        **COUNT,
        default=500_000,
        help="characters to train on; a tenth as many, from other files, are for validation",
    )
    add("--batch-size", "-b", **COUNT, default=32, help="streams of text on each device")
    add("--bptt", **COUNT, default=32, help="characters that a gradient is propagated back through")
    add(
        "--num-epochs",
        "--epochs",
        type=whole(1, 10**6),
        default=4,
        metavar="N",
        help="passes over the text",
    )
    add(
        "--lr",
        type=positive,
        metavar="RATE",
        help="learning rate, which falls as a cosine (default: 0.004 * total batch / 32)",
    )
    add("--optimizer", choices=OPTIMIZERS, default="adam", help="update rule")
    add("--momentum", "--mom", type=share, default=0.9, metavar="M", help="momentum of sgd and nag")
    add("--wd", "--weight-decay", type=non_negative, default=0.0, metavar="WD", help="weight decay")
    add(
        "--clip-grad",
        type=positive,
        default=1.0,
        metavar="NORM",
        help="clip the gradient of the mean loss to this norm",
    )


def read(arguments: Optional[Sequence[str]] = None) -> LanguageRecipe:
    """Return the recipe of a command line of train_lstm.py.

    Raises
    ------
    UsageError
        Two options contradict each other.
    """
    recipe = parser().parse_args(arguments, LanguageRecipe())
    options.check_devices(recipe)
    options.check_resume(recipe)
    return recipe


def learning_rate(recipe: LanguageRecipe, total_batch: int) -> float:
    """Return ``--lr``, or else 0.004 for every 32 streams of a batch."""
    return 0.004 * total_batch / 32 if recipe.lr is None else recipe.lr
