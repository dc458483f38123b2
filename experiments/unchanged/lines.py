"""Random command lines: what each command decides to do, or the sentence in which it refuses.

A line is read, completed and checked as always. Where the command would open data, train, download
or export, its arguments are written down, and it ends.
"""

import argparse
import contextlib
import importlib
import io
import os
import random
import re
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple
from unittest import mock

from experiments.unchanged.outcome import amp, mx

# The commands, and how many lines of each
LINES = {
    "train": 3600,
    "fine-tune": 2000,
    "train-text": 2000,
    "results": 800,
    "export": 500,
    "pack": 400,
    "prepare-caltech": 300,
    "launch": 300,
    "doctor": 100,
}

# Where the work of each command begins: functions behind the public interface, and so the only
# lines to change if these move.
RUNS = "gluon_amp.training.runs"
CONSOLE = "gluon_amp.training.console"
DECISIONS = (
    (f"{RUNS}.images", "check_outputs"),  # the first that a run on images calls, with its recipe
    (f"{RUNS}.script", "training_speed"),
    (f"{RUNS}.script", "loading_speed"),
    (f"{RUNS}.language.run", "check_outputs"),
    (f"{CONSOLE}.results", "jobs"),
    (f"{CONSOLE}.export", "export_onnx"),
    (f"{CONSOLE}.pack", "pack_folders"),
    (f"{CONSOLE}.prepare_caltech", "prepare"),
    ("gluon_amp.training.workers.launcher", "tasks"),
    (f"{CONSOLE}.doctor", "doctor"),
    (f"{CONSOLE}.doctor", "show_selftest"),
)
# What a recipe derives from options; its other attributes have the options' names.
DERIVED = "data notice policy pinned_policy sizes model reads_records input_size lr_per_256".split()

PLACES = ("folder", "folder/new", "file", "net-symbol.json", "run", "/nowhere/x", "file/x", "..")
SOUND = """1 2 8 32 0.5 0.9 1024 1,2,3 58,57,57 30,60 dynamic dynamic:1024 none auto resnet18_v1
adamw cifar_resnet8_v1 resnet-v1 mobilenet0.5 efficientnet_lite0 float16 mixed_float16 digits cosine
fashion-mnist compute=float8_e4m3,gradients=float8_e5m2 module device passive transformer gru
""".split()
HOSTILE = [
    *"0 -1 -0 1.0 1e30 1e31 1e-31 nan inf 2147483648 0,0,0 , 1_0 1e3 é× - -- --- -x".split(),
    *"--no-such = @FILE ~ ~no_such_user/x /dev/null [ * 3,224 NAME= =VALUE float17".split(),
    *("residual", "", " ", "\n", "a\nb", "\x1b[31m", "%s %d {} $HOME", "'\"", " 7 "),
    *("x" * 300, "9" * 5000),
]


class DecidedError(BaseException):
    """Ends a command where its work begins."""


def lines() -> Iterator[Tuple[str, Callable[[], str]]]:
    """Yield a case for each line, and each command's help."""
    prepare()
    for command, count in LINES.items():
        yield f"{command} --help", partial(decided, command, ["--help"], [])
        actions, draw = actions_of(command), random.Random(command)
        options = [action.dest for action in actions if action.dest.isidentifier()]
        for number in range(count):
            words = line(actions, draw)
            yield f"{command} {number} {words!r}"[:400], partial(decided, command, words, options)


def prepare() -> None:
    """Make the files that lines name, in the current folder."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # else --wait-policy starts a program anew
    Path("folder").mkdir(exist_ok=True)
    Path("file").write_text("1\n")
    amp.symbolic.convert(mx.sym.var("data") * 2).save("net-symbol.json")


def module_of(command: str) -> Any:
    """Return the module of a command."""
    return importlib.import_module(f"{CONSOLE}.{command.replace('-', '_')}")


def actions_of(command: str) -> List[argparse.Action]:
    """Return the options and arguments of a command's parser, options by their names."""
    found: List[argparse.ArgumentParser] = []

    def capture(parser: argparse.ArgumentParser, *_: Any) -> None:
        found.append(parser)
        raise DecidedError

    captured = mock.patch.object(argparse.ArgumentParser, "parse_known_args", capture)
    with captured, contextlib.suppress(DecidedError):
        module_of(command).main([], command)
    return sorted(vars(found[0])["_actions"], key=lambda action: action.option_strings)


def line(actions: List[argparse.Action], draw: random.Random) -> List[str]:
    """Draw up to seven options; three lines in four have values that their options accept."""
    sound = draw.random() < 0.75
    flags = [a for a in actions if a.option_strings and a.dest != "help"]
    flags = [a for a in flags if not (sound and a.dest == argparse.SUPPRESS)]
    chosen = [a for a in flags if a.required]
    chosen += draw.sample(flags, min(len(flags), draw.randrange(8)))
    words = []
    for action in chosen:
        words.append(draw.choice(sorted(action.option_strings)))
        if action.nargs != 0:
            count = 1 if sound else draw.choice((1, 1, 0, 2))
            words += [value(action, draw, sound) for _ in range(count)]
    arguments = [action for action in actions if not action.option_strings]
    return words + [value(action, draw, sound) for action in arguments]


def value(action: argparse.Action, draw: random.Random, sound: bool) -> str:
    """Draw a value of an option or argument."""
    known = [*map(str, action.choices or ()), *(SOUND if action.option_strings else ()), *PLACES]
    if not sound:
        return draw.choice(known + HOSTILE)

    def accepts(text: str) -> bool:
        try:
            read = action.type(text) if action.type else text
        except (argparse.ArgumentTypeError, ValueError):
            return False
        return not action.choices or read in action.choices

    return draw.choice([text for text in known if accepts(text)] or known)


def decided(command: str, words: List[str], options: List[str]) -> str:
    """Return the exit status and what a command prints, or what it would do."""

    def stop(module: Any, name: str) -> Callable[..., None]:
        original = getattr(module, name)

        def begin(*arguments: Any, **named: Any) -> None:
            if name == "check_outputs":
                original(*arguments, **named)
            shown = [described(each, options) for each in (*arguments, *named.items())]
            raise DecidedError("\n".join([name, *shown]))

        return begin

    out, err = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        for path, name in DECISIONS:
            module = importlib.import_module(path)
            stack.enter_context(mock.patch.object(module, name, stop(module, name)))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        try:
            status = module_of(command).main(words, command)
        except SystemExit as error:
            status = error.code
        except DecidedError as decision:
            status = str(decision)
    return f"{status}\n{out.getvalue()}{err.getvalue()}"


def described(argument: Any, options: List[str]) -> str:
    """Return an argument as text: a recipe by its options and what is derived from them."""
    if not hasattr(argument, "learning_rate"):
        return re.sub(r" at 0x\w+", "", repr(argument))
    values: Dict[str, Any] = {name: getattr(argument, name, "absent") for name in options + DERIVED}
    values["rate"] = argument.learning_rate(64)
    return "\n".join(f"{name}={values[name]!r}" for name in sorted(values))
