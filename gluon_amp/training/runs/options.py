"""The parser of training runs, and the options that those on images and on text share.

`add_...` return what adds more to the same group.
"""

import argparse
import math
from collections import ChainMap
from typing import Any, Dict, Optional, Sequence, Tuple, Union

from gluon_amp.base.messages import UsageError
from gluon_amp.base.startup import waiting
from gluon_amp.policy import PRESETS, Policy, near_preset
from gluon_amp.training import command_line as read
from gluon_amp.training.command_line import Add, HelpFormatter, Parser, adding_to

# The groups of the help, in its order.
LOGS = "logs and measurements"
GROUPS = ("model", "data", "precision", "schedule", "checkpoints", "devices", LOGS)

NORM = {"type": read.positive, "metavar": "NORM"}
EPOCHS = {"type": read.whole(1, 10**6), "metavar": "N"}
MOMENTUM = {"type": read.share, "metavar": "M"}
DECAY = {"type": read.non_negative, "metavar": "WD"}
AVERAGE = {"type": read.real(0, 1, above=True, below=True), "metavar": "D"}


class TrainingParser(Parser):
    """A parser for many options, in groups with these titles; its help shows all defaults."""

    def __init__(
        self, groups: Sequence[str] = (), examples: Optional[Dict[str, str]] = None, **options: Any
    ):
        """`examples` has a line of options for each group, which its help shows."""
        super().__init__(usage="%(prog)s [OPTION ...]", formatter_class=_HelpFormatter, **options)
        lines = {title: f"%(prog)s {words}" for title, words in (examples or {}).items()}
        self._titled = {t: self.add_argument_group(t, lines.get(t)) for t in groups}

    def group(self, title: str) -> Add:
        """Return the function that adds an option to the group of this title."""
        return adding_to(self._titled[title])

    def refuse(self, flag: str, replacement: str) -> None:
        """Name the replacement if `flag`, an option of other scripts, is on the command line."""
        self.add_argument(flag, action=_Refused, dest=argparse.SUPPRESS, replacement=replacement)

    def parse_explicit(
        self, arguments: Optional[Sequence[str]] = None
    ) -> Tuple[Dict[str, Any], Dict[str, Any]]:
        """Return the defaults of all options, and the values that are on the command line."""
        options = vars(self.parse_args(arguments, _Explicit()))
        return vars(self.parse_args([])), options


class _Explicit(argparse.Namespace):
    """Stays without defaults, as argparse sets one only if there is no attribute of that name."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)


class _HelpFormatter(HelpFormatter):
    def _get_help_string(self, action: argparse.Action) -> Optional[str]:
        default = action.default
        if default in (None, argparse.SUPPRESS) or isinstance(default, bool):
            return action.help
        values = default if isinstance(default, tuple) else (default,)
        shown = ",".join(f"{v:g}" if isinstance(v, float) else str(v) for v in values)
        return f"{(action.help or '').partition(' (default: ')[0]} (default: {shown})"

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Show the metavar once, after the last alias."""
        text = super()._format_action_invocation(action)
        if action.option_strings and action.nargs != 0:
            metavar = self._get_default_metavar_for_optional(action)
            text = f"{', '.join(action.option_strings)} {self._format_args(action, metavar)}"
        lines = self._split_lines(text, self._width - self._current_indent)
        return f"\n{' ' * 2 * self._current_indent}".join(lines)


class _Refused(argparse.Action):
    """An option of another script that has a replacement here."""

    def __init__(self, replacement: str, **options: Any):
        super().__init__(nargs="*", help=argparse.SUPPRESS, **options)
        self.replacement = replacement

    def __call__(
        self, parser: argparse.ArgumentParser, _space: Any, _values: Any, flag: Any = None
    ):
        parser.error(f"{flag} is not an option here: {self.replacement}.")


class Options:
    """The options of a run, as attributes that cannot be changed.

    They are one mapping in layers: what is `chosen`, as on a command line, wins over the defaults,
    and of these the first that has the option.
    """

    def __init__(self, chosen: Dict[str, Any], *defaults: Dict[str, Any]):
        vars(self).update(chosen=chosen, mapping=ChainMap(chosen, *defaults))

    def __getattr__(self, name: str) -> Any:
        try:
            return vars(self)["mapping"][name]
        except KeyError:
            raise AttributeError(f"a recipe has no option {name!r}") from None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a recipe cannot be changed, so {name} cannot be set.")


def dtype(text: str) -> str:
    """Read a policy, by name or as in 'compute=float8_e4m3'; of two names, return the first."""
    if "=" in text:
        try:
            return Policy(text).name
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error).rstrip(".")) from None
    if text not in PRESETS:
        near = near_preset(text)
        raise argparse.ArgumentTypeError(f"expected {', '.join(PRESETS)}, got {text[:99]!r}{near}")
    return next(name for name in PRESETS if PRESETS[name] == PRESETS[text])


def loss_scale(text: str) -> Union[str, float]:
    """Read 'dynamic', 'none', a power of two, or 'dynamic:65536', which begins at 65536."""
    if text in ("dynamic", "none"):
        return text
    kind, _, number = text.rpartition(":")
    value = read.positive(number) if kind in ("", "dynamic") else 0.0
    if math.frexp(value)[0] != 0.5 or not 2.0**-24 <= value <= 2.0**24:
        raise argparse.ArgumentTypeError(
            "expected dynamic, none or a power of two such as 1024, from 2^-24 to 2^24, or "
            f"dynamic:1024 to begin there, got {text!r}"
        )
    return text if kind else value


def checkpoint(text: str) -> str:
    """Read 'auto', or the path of a checkpoint."""
    return text if text == "auto" else str(read.input_file(text))


device_numbers = read.several(read.natural, "the numbers of devices, as in 0,1")


def add_precision(parser: TrainingParser) -> Add:
    """Add the dtype and the loss scale."""
    add = parser.group("precision")
    computed = (
        "dtype of the matrix products; float16 keeps float16 parameters and float32 masters of "
        "them, mixed_float16 and bfloat16 keep float32 parameters; KEY=DTYPE,... is any policy, "
        "such as compute=float8_e4m3,gradients=float8_e5m2"
    )
    add("--dtype", computed, type=dtype, metavar="|".join(PRESETS), default="float32")
    scale = (
        "loss scale: dynamic, none or a power of two (default: dynamic for float16, else none); a "
        "dynamic one starts at N, or is found from the first gradients"
    )
    add("--loss-scale", scale, type=loss_scale, metavar="dynamic[:N]|none|N")
    return add


def add_average(parser: TrainingParser) -> None:
    """Add the average of the weights."""
    kept = (
        "also average the float32 weights, and validate and save the average; each step keeps this "
        "share of it, such as 0.9999"
    )
    parser.group("schedule")("--ema-decay", kept, AVERAGE)


def add_devices(parser: TrainingParser) -> Add:
    """Add the choice of devices."""
    add = parser.group("devices")
    first = "use the first N GPUs, 0 for the CPU (default: all GPUs)"
    add("--num-gpus", first, type=read.whole(0, 1024), metavar="N")
    add("--gpus", "use the GPUs with these numbers", type=device_numbers, metavar="0,1")
    emulated = "train on N CPU devices, to test what several GPUs would do"
    add("--cpus", emulated, type=read.whole(1, 1024), metavar="N")
    waits = (
        "how CPU threads wait for work: active is faster on an idle machine and very slow on a "
        "busy one (default: OMP_WAIT_POLICY, or else that of MXNet)"
    )
    add("--wait-policy", waits, choices=waiting.POLICIES)
    return add


def add_random_numbers(parser: TrainingParser) -> None:
    """Add what makes runs repeat."""
    parser.group("schedule")("--seed", "seed of all random numbers", read.NUMBER, default=0)
    add = parser.group("devices")
    repeats = (
        "use only algorithms that repeat bit for bit: on GPUs, and for sums over N > 2 workers, "
        "which then take (N + 1) // 2 times as many bytes (CPUs, and two workers, always repeat)"
    )
    add("--deterministic", repeats, read.SWITCH)


def add_checkpoints(parser: TrainingParser, kept: str) -> Add:
    """Add where checkpoints are saved and how a run resumes; `kept` is the help of ``--keep``."""
    add = parser.group("checkpoints")
    saved = (
        "save checkpoints and the trained float32 parameters here; without it, nothing of the "
        "network is saved"
    )
    add("--save-dir --model-prefix", saved, read.FOLDER)
    add("--save-batches", "also save a checkpoint every N batches", read.COUNT)
    add("--keep", kept, read.COUNT, default=3)
    resumed = "resume from this checkpoint, or from the newest in SAVE_DIR, if there is one"
    add("--resume", resumed, type=checkpoint, nargs="?", const="auto", metavar="auto|FILE")
    return add


def add_logs(parser: TrainingParser, interval: int) -> Add:
    """Add what is logged and written; `interval` is the default of ``--log-interval``."""
    add = parser.group(LOGS)
    logged = "log every N batches, 0 for never"
    add("--log-interval --disp-batches", logged, read.NUMBER, default=interval)
    records = "append a line of JSON for each interval and epoch to this file"
    add("--log-json", records, read.OUTPUT)
    add("--summary-json", "write the results to this file", read.OUTPUT)
    also = "also append the log to this file, with every line that a terminal does not show"
    add("--logging-file", also, read.OUTPUT)
    return add


def add_trials(parser: TrainingParser) -> Add:
    """Add the option that shortens a run."""
    add = parser.group(LOGS)
    add("--max-batches --benchmark-iters", "train on at most N batches of each epoch", read.COUNT)
    return add


def flag_of(name: str) -> str:
    """Return the flag of an option: --batch-size for batch_size."""
    return f"--{name.replace('_', '-')}"


def check_devices(recipe: Options) -> None:
    """Raise `UsageError` if options of devices contradict each other."""
    if recipe.gpus and recipe.num_gpus is not None and recipe.num_gpus != len(recipe.gpus):
        gpus = ",".join(map(str, recipe.gpus))
        raise UsageError(
            f"--num-gpus {recipe.num_gpus} and --gpus {gpus} disagree: give one of them."
        )
    if recipe.cpus and (recipe.gpus or recipe.num_gpus):
        raise UsageError("--cpus and GPUs were both asked for: give one of them.")


def check_resume(recipe: Options) -> None:
    """Raise `UsageError` if there is no folder to find the newest checkpoint in."""
    if recipe.resume == "auto" and recipe.save_dir is None:
        raise UsageError("--resume auto looks into --save-dir, which was not given.")
