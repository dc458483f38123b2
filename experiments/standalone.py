"""The modules of gluon_amp that need no MXNet, for programs without it.

Importing gluon_amp imports MXNet. MXNet may not be installed where a program runs, and in the
process that compares benchmarks it would hold memory and threads.
"""

import importlib
import sys

from gluon_amp_console import enter_without_mxnet

_imported_before = "gluon_amp" in sys.modules
enter_without_mxnet()

command_line, compat, figures, hardware, waiting = (
    importlib.import_module(f"gluon_amp.{name}")
    for name in (
        "training.command_line",
        "base.startup.compat",
        "inspection.figures",
        "base.hardware",
        "base.startup.waiting",
    )
)

if not _imported_before:  # a later `import gluon_amp` in this process is the usual one
    for _name in [name for name in sys.modules if name.split(".")[0] == "gluon_amp"]:
        del sys.modules[_name]
