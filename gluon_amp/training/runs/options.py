"""The parser of training runs, and the options that those on images and on text share.

`add_...` return what adds more to the same group.
"""

import argparse
import functools
import json
import math
import sys
from collections import ChainMap
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from gluon_amp.base.messages import UsageError, did_you_mean, from_extra, reason_of
from gluon_amp.base.startup import waiting
from gluon_amp.policy import PRESETS, Policy, near_preset
from gluon_amp.training import command_line as read
from gluon_amp.training.command_line import Add, HelpFormatter, Parser, adding_to
from gluon_amp.training.runs import devices

# Options that a run does not share with others
NOT_IN_CONFIG = (
    *("help", "config", "save_dir", "resume", "resume_epoch", "resume_params", "resume_states"),
    *("log_json", "summary_json", "logging_file", "tensorboard", "plot", "export", "dry_run"),
)

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

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse a command line after the options of its ``--config``, over which it wins."""
        words = list(sys.argv[1:] if args is None else args)
        first = argparse.ArgumentParser(prog=self.prog, add_help=False, allow_abbrev=False)
        first.error = self.error  # type: ignore[method-assign]
        first.add_argument("--config", type=read.input_file)
        file = first.parse_known_args(words)[0].config
        return super().parse_args([*(self._words_of(file) if file else ()), *words], namespace)

    @property
    def names(self) -> Dict[str, str]:
        """What options are called in a file, by their attributes: batch_size for --batch-size."""
        flags = {a.dest: a.option_strings[0] for a in self._actions if a.option_strings}
        return {dest: flag.lstrip("-").replace("-", "_") for dest, flag in flags.items()}

    def _words_of(self, file: Path) -> List[str]:
        """Return the options of a YAML file as words of a command line."""
        with from_extra("data", "--config needs PyYAML"):
            import yaml
        try:
            values = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as error:
            self.error(f"--config {file} cannot be read: {reason_of(error)}")
        if not isinstance(values, dict):
            self.error(f"--config {file} is not a mapping of options, as in dtype: float16")
        words = []
        for name, value in values.items():
            flag = flag_of(str(name))
            action = self._option_string_actions.get(flag)
            if action is None or flag == "--config":
                near = did_you_mean(flag, self._option_string_actions)
                self.error(f"--config {file} has an option {name!r} that does not exist{near}")
            if isinstance(value, (list, tuple)):
                value = ",".join(map(str, value))
            if action.nargs == 0 and not isinstance(value, bool):
                self.error(f"--config {file}: expected true or false for {name}, got {value!r}")
            if value is not None and value is not False:
                words.append(flag if value is True else f"{flag}={value}")
        return words

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

    @functools.cached_property
    def dtype(self) -> str:
        """The dtype that was asked for, or else the one for float32's values on these devices."""
        return self.mapping["dtype"] or devices.default_dtype(self.mapping)

    def as_config(self) -> str:
        """Return the options of the run as lines of YAML, for ``--config``.

        Those that were not chosen are comments, as they follow from the others. Where a run is
        saved and logged is left out.
        """
        lines = []
        for dest, name in self.mapping["names"].items():
            value = getattr(self, dest) if dest in self.mapping else None
            if value is None or value is False or name in NOT_IN_CONFIG:
                continue
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            quoted = isinstance(value, (str, tuple, Path))
            comment = "" if dest in self.chosen else "# "
            lines.append(f"{comment}{name}: {json.dumps(text) if quoted else text.lower()}\n")
        return "".join(lines)

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
    computed += "; default: fused_float32 where it is recommended, else float32"
    add("--dtype", computed, type=dtype, metavar="|".join(PRESETS))
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
    file = (
        "read options from this YAML file, such as the args.yaml that a run writes to SAVE_DIR; "
        "those on the command line win"
    )
    add("--config", file, read.INPUT)
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
    tried = "print the plan, train one batch, print the memory it took, and save nothing"
    add("--dry-run", tried, read.SWITCH)
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
