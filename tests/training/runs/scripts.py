"""Scripts as the tests run them: loaded into this process, or as a user does."""

import importlib.util
import os

import pytest

from gluon_amp.base import bfloat16
from tests import ROOT

# The fields of a summary that depend on the clock or on the machine's memory
OF_THE_CLOCK = set("seconds train_seconds images_per_second waited_share peak_mebibytes".split())


def load(name, folder="scripts"):
    """Return a script as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def skip_without_native_bfloat16():
    if not bfloat16.is_native():
        pytest.skip("bfloat16 is emulated here")


def environment(**changes):
    """Return the variables of a process that imports this checkout."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **changes}
