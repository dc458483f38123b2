"""Virtual environments for programs that need other packages than this checkout's, made once."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Dict, List, Mapping, Sequence

from experiments import ROOT
from experiments.clients.cases import Family
from experiments.matrix import find_python
from gluon_amp.base.messages import UsageError

STAMP = ".installed"  # what an environment was made from
CLIENTS, HOROVOD, HANDOVER = (ROOT / name for name in (".clients", ".horovod", ".handover"))

HANDOVER_REQUIREMENTS = ROOT / "experiments" / "handover" / "requirements.txt"
HANDOVER_PYTHON = "3.11"  # torch 2.14 needs Python 3.10 or later

HOROVOD_REQUIREMENTS = ROOT / "experiments" / "horovod" / "requirements.txt"
HOROVOD_PYTHON = "3.11"  # the only one with which it was built
TOOLS = {"cmake": "cmake", "make": "make", "c++": "g++"}  # what builds it: the packages of Debian
BUILD = {
    "HOROVOD_WITH_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "MAKEFLAGS": "-j1",  # each compiler needs about 1 GB
}
# An isolated build has no MXNet; a cached wheel may have been built without Gloo.
NOT_ISOLATED = ["--no-build-isolation", "--no-cache-dir"]


def prepare(
    folder: Path,
    version: str,
    installed_from: str,
    installs: Sequence[Sequence[str]],
    variables: Mapping[str, str] = {},
) -> Path:
    """Return the Python of an environment; make it if it is new, or made from something else.

    `installed_from` is the text of the requirements, and `installs` has the arguments of each call
    of ``pip install``. What cannot be installed is a `UsageError`.
    """
    stamp, python = folder / STAMP, folder / "bin" / "python"
    text = f"python {version}\n{installed_from}"
    if stamp.exists() and stamp.read_text() == text:
        return python
    base = find_python(version)
    if base is None:
        raise UsageError(f"{folder.name} needs python{version}: install it.")
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    commands = [[base, "-m", "venv", "--clear", str(folder)]]
    for command in [*commands, *([*pip, *arguments] for arguments in installs)]:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", env={**os.environ, **variables}
        )
        if done.returncode:
            errors = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise UsageError(f"the environment of {folder.name} cannot be made: {errors[-1]}")
    stamp.write_text(text)
    return python


def of_client(family: Family) -> Path:
    """Return the Python of a client's programs, which import gluon_amp from this checkout."""
    options = ["--no-deps"] if family.complete else []
    install = [*options, "-r", str(family.requirements)]
    text = family.requirements.read_text()
    return prepare(CLIENTS / family.name, family.python, text, [install])


def of_horovod() -> Path:
    """Return the Python for which Horovod is built; a missing tool is a `UsageError`."""
    missing = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if missing:
        raise UsageError(f"Horovod is built from its sources: install {' '.join(missing)}.")
    first, horovod, last = _groups()
    constraints = ["-c", str(ROOT / "constraints.txt")]
    installs = [[*constraints, *first], [*NOT_ISOLATED, *horovod], [*constraints, *last]]
    return prepare(HOROVOD, HOROVOD_PYTHON, HOROVOD_REQUIREMENTS.read_text(), installs, BUILD)


def of_handover() -> Path:
    """Return the Python with PyTorch, torchvision and what the tests of this checkout need."""
    own = ["-c", str(ROOT / "constraints.txt"), "-e", f"{ROOT}[cpu,gluoncv,test,export]"]
    theirs = ["-r", str(HANDOVER_REQUIREMENTS)]  # PyTorch needs a newer setuptools
    text = HANDOVER_REQUIREMENTS.read_text()
    return prepare(HANDOVER, HANDOVER_PYTHON, text, [own, theirs])


def horovod_versions() -> Dict[str, str]:
    """Return the versions of the packages that the page of Horovod names."""
    pins = dict(line.split("==") for group in _groups() for line in group)
    return {name: pins[name] for name in ("horovod", "mxnet", "numpy")}


def _groups() -> List[List[str]]:
    """Return Horovod's requirements; an empty line divides what is not installed together."""
    paragraphs = HOROVOD_REQUIREMENTS.read_text().split("\n\n")
    return [[line for line in one.splitlines() if not line.startswith("#")] for one in paragraphs]
