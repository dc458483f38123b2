"""The command `gluon-amp`, and `python -m gluon_amp`: it imports a command only to run it.

It is beside the package, as importing gluon_amp imports MXNet: ``--help`` and ``--version`` need
neither the seconds that this takes nor an MXNet that works. The standard library is enough for it.
"""

import difflib
import functools
import importlib
import re
import sys
import textwrap
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import List, Optional, Sequence

PROG = "gluon-amp"
DESCRIPTION = "Mixed precision for Apache MXNet 1.9.1."

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
        print(usage(prog))
        return 0
    if name == "--version":
        print(f"{PROG} {version()}")
        return 0
    if name not in COMMANDS:
        return _refused(prog, f"there is no command {name!r}{_did_you_mean(name)}.")
    module = f"gluon_amp.training.console.{name.replace('-', '_')}"
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


def _did_you_mean(name: str) -> str:
    """Return near matches, as `gluon_amp.base.messages.did_you_mean` does inside the package."""
    matches = difflib.get_close_matches(name.lower(), COMMANDS)
    matches = matches or [command for command in COMMANDS if name and command.startswith(name)]
    return f" (did you mean {' or '.join(matches)}?)" if matches else f": {PROG} --help lists them"


def _refused(prog: str, sentence: object) -> int:
    print(f"{prog}: {sentence}", file=sys.stderr)
    return 2
