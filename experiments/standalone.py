"""The modules of gluon_amp that need the standard library alone, for programs without MXNet.

Importing gluon_amp imports MXNet. MXNet may not be installed where a program runs, and in the
process that compares benchmarks it would hold memory and threads.
"""

import importlib.util
from types import ModuleType

from experiments import ROOT


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "gluon_amp" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


command_line, figures, hardware = (_load(n) for n in ("command_line", "figures", "hardware"))
waiting = _load("startup/waiting")
