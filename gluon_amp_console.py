"""The command `gluon-amp`, and `python -m gluon_amp`: it imports a command only to run it.

It is beside the package, as importing gluon_amp imports MXNet: ``--help`` and ``--version`` need
neither the seconds that this takes nor an MXNet that works. The standard library is enough for it.
"""

import difflib
import functools
import importlib
import os
import re
import sys
import textwrap
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Iterable, List, Optional, Sequence, Set

PROG = "gluon-amp"
DESCRIPTION = "Mixed precision for Apache MXNet 1.9.1."
LISTED = f": {PROG} --help lists them"

# The commands in the order of the help; `gluon_amp.training.console` has a module for each.
COMMANDS = {
    "build": "build the C++ kernels for CPUs, which the first training would do otherwise",
    "doctor": "report whether this machine can run a policy, and how",
    "train": "train an image classifier; without images, on handwritten digits",
    "fine-tune": "fine-tune a pretrained classifier",
    "train-text": "train a character language model: an LSTM, a GRU or a transformer",
    "prepare-caltech": "download Caltech-101 or Caltech-256 and pack it for training",
    "pack": "pack folders of images into RecordIO files for training",
    "export": "write a checkpoint's network as an ONNX file, run and compared",
    "results": "train in several dtypes over seeds, and compare their accuracies",
    "launch": "start a distributed run, here or on several machines",
}

# What other programs call an option of a training, and what it is called here
ELSEWHERE = {
    "--bf16": "--dtype bfloat16",
    "--fp16": "--dtype float16",
    "--half": "--dtype float16",
    "--precision": "--dtype float16",
    "--mixed-precision": "--amp",
    "--device": "--gpus 0, or --num-gpus 0 for the CPU",
    "--output": "--save-dir DIR",
    "--output-dir": "--save-dir DIR",
    "--checkpoint": "--resume FILE",
}

# Earlier names of commands
EARLIER = {"train-lstm": "train-text"}

# The launcher starts processes that train, and does not train itself.
WITHOUT_MXNET = ("launch",)


def main(arguments: Optional[Sequence[str]] = None, prog: str = PROG) -> int:
    """Run a command, which ends the process; return the exit status if none ran: 0, or 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words:
        return _refused(prog, f"expected a command: {', '.join(COMMANDS)}.")
    name, *rest = words
    name = EARLIER.get(name, name)
    if name in ("-h", "--help"):
        return _printed(usage(prog))
    if name == "--version":
        return _printed(f"{PROG} {version()}")
    if name not in COMMANDS:
        return _refused(prog, f"there is no command {name!r}{_did_you_mean(name)}.")
    module = f"gluon_amp.training.console.{name.replace('-', '_')}"
    known = _options(module) if name not in WITHOUT_MXNET else set()
    for word in rest[: rest.index("--")] if "--" in rest else rest:
        option = word.partition("=")[0]
        if known and option.startswith("--") and option not in known:
            here = ELSEWHERE.get(option) if "--dtype" in known else None
            near = f": use {here}." if here else f"{_did_you_mean(option, known, '')}."
            return _refused(f"{prog} {name}", f"unrecognized arguments: {word}{near}")
    if name in WITHOUT_MXNET:
        enter_without_mxnet()
        return importlib.import_module(module).main(rest, f"{prog} {name}")
    try:
        import gluon_amp  # noqa: F401
    except ImportError as error:  # MXNet is missing or cannot be loaded
        return _refused(prog, error)
    from gluon_amp.training.workers.group import leave

    command = importlib.import_module(module)
    return leave(functools.partial(command.main, rest, f"{prog} {name}"))


def enter_without_mxnet() -> None:
    """Make `gluon_amp` a package whose rooms can be imported, without what its import does."""
    if "gluon_amp" not in sys.modules:
        sys.modules["gluon_amp"] = module_from_spec(_spec())


def usage(prog: str) -> str:
    """Return the help: the commands, in 80 columns."""
    lines: List[str] = [f"usage: {prog} [--help] [--version] COMMAND ...", "", DESCRIPTION, ""]
    width = max(map(len, COMMANDS)) + 4
    for name, text in COMMANDS.items():
        lines += textwrap.wrap(
            text, 80, initial_indent=f"  {name}".ljust(width), subsequent_indent=" " * width
        )
    return "\n".join([*lines, "", f"{prog} COMMAND --help describes the options of a command."])


def version() -> str:
    """Return ``gluon_amp.__version__`` without importing the package."""
    source = Path(str(_spec().origin)).read_text(encoding="utf-8")
    return re.findall(r'^__version__ = "(.+)"$', source, re.MULTILINE)[0]


def _spec() -> ModuleSpec:
    spec = find_spec("gluon_amp")
    assert spec is not None, "this module is installed with the package"
    return spec


def _options(module: str) -> Set[str]:
    """Return all options that the sources of a command name, and perhaps some of other commands.

    They are read as text, since importing them imports MXNet.
    """
    folder = Path(str(_spec().origin)).parent / "training"
    command = folder / "console" / f"{module.rpartition('.')[2]}.py"
    text = command.read_text(encoding="utf-8")
    for room in re.findall(r"from gluon_amp\.training\.(\w+)", text):  # its parser may be there
        files = (folder / room).rglob("*.py")
        text += "".join(path.read_text(encoding="utf-8") for path in files)
    return {"--help", *re.findall(r"(?<=[\" ])--[a-z0-9][a-zA-Z0-9_-]*", text)}


def _did_you_mean(name: str, known: Iterable[str] = COMMANDS, otherwise: str = LISTED) -> str:
    """Return near matches, as `gluon_amp.base.messages.did_you_mean` does inside the package."""
    matches = difflib.get_close_matches(name.lower(), sorted(known))
    matches = matches or [one for one in sorted(known) if name and one.startswith(name)][:3]
    return f" (did you mean {' or '.join(matches)}?)" if matches else otherwise


def _printed(text: str) -> int:
    """Print a text; return the exit status, which is 141 if the reader of the output has left."""
    try:
        print(text, flush=True)
        return 0
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _refused(prog: str, sentence: object) -> int:
    print(f"{prog}: {sentence}", file=sys.stderr)
    return 2
