"""The recipe of a language run: the options of `gluon-amp train-lstm`."""

from typing import Optional, Sequence

from gluon_amp.training.command_line import positive, whole
from gluon_amp.training.runs import options
from gluon_amp.training.runs.options import (
    COUNT,
    DECAY,
    EPOCHS,
    MOMENTUM,
    NORM,
)
from gluon_amp.training.runs.parser import TrainingParser

OPTIMIZERS = ("sgd", "nag", "adam", "adamw")


class LanguageRecipe(options.Options):
    """All options of a language run; those that only image runs have are constants."""

    eval_only, notice = False, None
    eval_frequency = save_frequency = 1

    @property
    def policy(self) -> str:
        """The name of the policy of the network."""
        return self.dtype

    @property
    def model(self) -> str:
        """The network in words."""
        return f"{self.layers}-layer LSTM of {self.hidden}, embedding of {self.embedding}"

    def learning_rate(self, total_batch: int) -> float:
        """Return ``--lr``, or else 0.004 for every 32 streams of a batch."""
        return 0.004 * total_batch / 32 if self.lr is None else self.lr


def parser(prog: Optional[str] = None) -> TrainingParser:
    """Return the parser of `gluon-amp train-lstm`."""
    parser = TrainingParser(
        groups=options.GROUPS,
        prog=prog,
        description="Train a character language model, an LSTM, in mixed precision.",
        epilog="The text is the source code of Python's standard library.",
    )
    _add_model_and_text(parser)
    options.add_precision(parser)
    _add_training(parser)
    options.add_average(parser)
    options.add_random_numbers(parser)
    options.add_checkpoints(parser, kept="keep the newest N checkpoints")
    options.add_devices(parser)
    options.add_logs(parser, interval=100)
    options.add_trials(parser)
    return parser


def _add_model_and_text(parser: TrainingParser) -> None:
    size = {"type": whole(1, 65536), "metavar": "N"}
    add = parser.group("model")
    add("--embedding", "size of the vector of a character", size, default=64)
    add("--hidden", "size of an LSTM layer", size, default=128)
    add("--layers", "number of LSTM layers", type=whole(1, 1024), default=1, metavar="N")
    characters = "characters to train on; a tenth as many, from other files, are for validation"
    parser.group("data")("--characters", characters, COUNT, default=500_000)


def _add_training(parser: TrainingParser) -> None:
    add = parser.group("schedule")
    add("--batch-size -b", "streams of text on each device", COUNT, default=32)
    add("--bptt", "characters that a gradient is propagated back through", COUNT, default=32)
    add("--num-epochs --epochs", "passes over the text", EPOCHS, default=4)
    rate = "learning rate, which falls as a cosine (default: 0.004 * total batch / 32)"
    add("--lr", rate, type=positive, metavar="RATE")
    add("--optimizer", "update rule", choices=OPTIMIZERS, default="adam")
    add("--momentum --mom", "momentum of sgd and nag", MOMENTUM, default=0.9)
    add("--wd --weight-decay", "weight decay", DECAY, default=0.0)
    add("--clip-grad", "clip the gradient of the mean loss to this norm", NORM, default=1.0)


def read(arguments: Optional[Sequence[str]] = None, prog: Optional[str] = None) -> LanguageRecipe:
    """Return the recipe of a command line of `gluon-amp train-lstm`."""
    recipe = LanguageRecipe(**vars(parser(prog).parse_args(arguments)))
    options.check_devices(recipe)
    options.check_resume(recipe)
    return recipe
