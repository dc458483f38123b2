"""Parts of gluon_amp that need the standard library alone, for scripts that must not import MXNet.

Whoever imports the package imports MXNet, which may not be installed there, or would take memory
and threads from what is measured.
"""

import importlib.util
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).resolve().parents[1] / "gluon_amp"


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, PACKAGE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hardware, options = _load("hardware"), _load("command_line")
