"""The virtual environment in ``.horovod``, for which Horovod is built once."""

import shutil
from pathlib import Path
from typing import Dict, List

from experiments import ROOT, environments
from gluon_amp.base.messages import UsageError

FOLDER = ROOT / ".horovod"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
PYTHON = "3.11"  # the only one with which it was built

TOOLS = {"cmake": "cmake", "make": "make", "c++": "g++"}  # the packages of Debian
BUILD = {
    "HOROVOD_WITH_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "MAKEFLAGS": "-j1",  # each compiler needs about 1 GB
}
# An isolated build has no MXNet; a cached wheel may have been built without Gloo.
OPTIONS = ["--no-build-isolation", "--no-cache-dir"]


def prepare() -> Path:
    """Return the Python of the environment; make it if the requirements are new.

    Raises
    ------
    UsageError
        A tool that builds Horovod is missing, or an installation fails.
    """
    missing = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if missing:
        raise UsageError(f"Horovod is built from its sources: install {' '.join(missing)}.")
    first, horovod, last = groups()
    constraints = ["-c", str(ROOT / "constraints.txt")]
    installs = [[*constraints, *first], [*OPTIONS, *horovod], [*constraints, *last]]
    return environments.prepare(FOLDER, PYTHON, REQUIREMENTS.read_text(), installs, BUILD)


def groups() -> List[List[str]]:
    """Return the requirements, which an empty line divides into what is installed together."""
    paragraphs = REQUIREMENTS.read_text().split("\n\n")
    return [[line for line in one.splitlines() if not line.startswith("#")] for one in paragraphs]


def versions() -> Dict[str, str]:
    """Return the versions of the packages that the page names."""
    pins = dict(line.split("==") for group in groups() for line in group)
    return {name: pins[name] for name in ("horovod", "mxnet", "numpy")}
