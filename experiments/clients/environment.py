"""A virtual environment for each family, made once in ``.clients/``."""

import subprocess
from pathlib import Path

from experiments import ROOT
from experiments.clients.cases import REQUIREMENTS, Family
from experiments.matrix import find_python
from gluon_amp.command_line import UsageError

FOLDER = ROOT / ".clients"
STAMP = ".installed"  # the requirements that an environment was made from


def prepare(family: Family) -> Path:
    """Return the Python of a family's environment; make it if the requirements are new.

    The programs import gluon_amp from this checkout (see `run`).

    Raises
    ------
    UsageError
        The version of Python is not installed, or a requirement cannot be installed.
    """
    folder = FOLDER / family.name
    requirements = REQUIREMENTS / family.requirements
    stamp, python = folder / STAMP, folder / "bin" / "python"
    text = f"python {family.python}\n{requirements.read_text()}"
    if stamp.exists() and stamp.read_text() == text:
        return python
    base = find_python(family.python)
    if base is None:
        raise UsageError(f"{family.name} needs python{family.python}: install it.")
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps"] if family.complete else []
    for command in (
        [base, "-m", "venv", "--clear", str(folder)],
        [*pip, "install", *options, "-r", str(requirements)],
    ):
        done = subprocess.run(command, capture_output=True, encoding="utf-8")
        if done.returncode:
            errors = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise UsageError(f"the environment of {family.name} cannot be made: {errors[-1]}")
    stamp.write_text(text)
    return python
