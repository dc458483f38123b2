"""The recipe of a language run: the options of `gluon-amp train-text`."""

from typing import Any, Dict, Optional, Sequence

from gluon_amp.base.messages import UsageError
from gluon_amp.policy import Policy
from gluon_amp.training.command_line import COUNT, SWITCH, positive, share, whole
from gluon_amp.training.networks.language_model import KINDS, RECURRENT
from gluon_amp.training.runs import options
from gluon_amp.training.runs.options import DECAY, EPOCHS, MOMENTUM, NORM, TrainingParser

OPTIMIZERS = ("sgd", "nag", "adam", "adamw")

# What a run in float16 can lack, to show what it is for, and what is then pinned to float16
CONTROLS: Dict[str, Dict[str, Any]] = {
    "masters": {},
    "wide-attention": {"ops": ("batch_dot", "softmax")},
    "wide-norms": {"blocks": (r".*norm\d*",)},
}


# What only runs on images have as options
CONSTANTS = {"eval_only": False, "notice": None, "eval_frequency": 1, "save_frequency": 1}


class LanguageRecipe(options.Options):
    """All options of a language run, as attributes, and what follows from them."""

    @property
    def policy(self) -> str:
        """The name of the policy of the network, without its pins."""
        return self.dtype

    @property
    def arithmetic(self) -> str:
        """The dtype, and what the run lacks."""
        return f"{self.dtype} --without {self.without}" if self.without else self.dtype

    @property
    def pinned_policy(self) -> Policy:
        """The policy of the network."""
        policy, pins = Policy(self.dtype), CONTROLS.get(self.without)
        return policy.pin(**pins, dtype="float16") if pins else policy

    @property
    def sizes(self) -> Dict[str, Any]:
        """The arguments of `LanguageModel`, without the number of classes."""
        names = ("kind", "embedding", "hidden", "layers", "heads", "tied", "dropout")
        others = {"length": self.bptt, "split_norms": self.without == "wide-norms"}
        return {**{name: getattr(self, name) for name in names}, **others}

    @property
    def model(self) -> str:
        """The network in words."""
        if self.kind in RECURRENT:
            size = f"{self.kind.upper()} of {self.hidden}, embedding of {self.embedding}"
        else:
            size = f"transformer of {self.embedding}, {self.heads} heads, inner size {self.hidden}"
        dropout = f", dropout of {self.dropout:g}" if self.dropout else ""
        return f"{self.layers}-layer {size}{', tied' if self.tied else ''}{dropout}"

    def learning_rate(self, total_batch: int) -> float:
        """Return ``--lr``, or else 0.004 for every 32 streams of a batch."""
        return 0.004 * total_batch / 32 if self.lr is None else self.lr


def parser(prog: Optional[str] = None) -> TrainingParser:
    """Return the parser of `gluon-amp train-text`."""
    parser = TrainingParser(
        groups=options.GROUPS,
        prog=prog,
        description="Train a character language model in mixed precision.",
        epilog="The text is the source code of Python's standard library.",
    )
    _add_model_and_text(parser)
    without = (
        "for comparison: a run in float16 whose masters are rounded to float16 after each step, or "
        "whose norms or attention compute in float16, too"
    )
    options.add_precision(parser)("--without", without, choices=tuple(CONTROLS))
    _add_training(parser)
    options.add_average(parser)
    options.add_random_numbers(parser)
    options.add_checkpoints(parser, kept="keep the newest N checkpoints")
    options.add_devices(parser)
    options.add_logs(parser, interval=100)
    options.add_trials(parser)
    return parser


def _add_model_and_text(parser: TrainingParser) -> None:
    size, count = ({"type": whole(1, most), "metavar": "N"} for most in (65536, 1024))
    add = parser.group("model")
    add("--model", "network", dest="kind", choices=KINDS, default="lstm")
    add("--embedding", "size of the vector of a character", size, default=64)
    add(
        "--hidden",
        "size of a recurrent layer, or of a transformer's inner layer",
        size,
        default=128,
    )
    add("--layers", "number of layers", count, default=1)
    add("--heads", "heads of a transformer's attention", count, default=4)
    add("--tied", "predict with the weight of the embedding", SWITCH)
    add("--dropout", "dropout rate", type=share, default=0.0, metavar="P")
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
    """Return the recipe of a command line of `gluon-amp train-text`."""
    of = parser(prog)
    command, chosen = of.parse_explicit(arguments)
    recipe = LanguageRecipe(chosen, {**CONSTANTS, **command, "names": of.names})
    options.check_devices(recipe)
    options.check_resume(recipe)
    _check_model(recipe)
    return recipe


def _check_model(recipe: LanguageRecipe) -> None:
    """Raise `UsageError` for sizes and controls that do not fit the network or the dtype."""
    embedding, recurrent = recipe.embedding, recipe.kind in RECURRENT
    if not recurrent and embedding % recipe.heads:
        raise UsageError(
            f"--embedding {embedding} cannot be shared by --heads {recipe.heads}: give a multiple."
        )
    if recipe.tied and recurrent and embedding != recipe.hidden:
        raise UsageError(
            f"--tied needs layers of the embedding's size: give --hidden {embedding} as well."
        )
    if recipe.without and recipe.dtype != "float16":
        raise UsageError(f"--without {recipe.without} is for --dtype float16: give it as well.")
    if CONTROLS.get(recipe.without) and recurrent:
        raise UsageError(f"--without {recipe.without} is for --model transformer: give it as well.")
