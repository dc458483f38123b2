"""A virtual environment for each family, made once in ``.clients/``."""

from pathlib import Path

from experiments import ROOT, environments
from experiments.clients.cases import REQUIREMENTS, Family

FOLDER = ROOT / ".clients"


def prepare(family: Family) -> Path:
    """Return the Python of a family's environment; make it if the requirements are new.

    The programs import gluon_amp from this checkout (see `run`).

    Raises
    ------
    UsageError
        The version of Python is not installed, or a requirement cannot be installed.
    """
    requirements = REQUIREMENTS / family.requirements
    options = ["--no-deps"] if family.complete else []
    return environments.prepare(
        FOLDER / family.name,
        family.python,
        requirements.read_text(),
        [[*options, "-r", str(requirements)]],
    )
