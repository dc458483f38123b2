"""One file for each family, with its cases and their edits; a file defines `FAMILY`."""

import importlib
import pkgutil
from typing import List

from experiments.clients.cases import Family

FAMILIES: List[Family] = [
    importlib.import_module(f"{__name__}.{module.name}").FAMILY
    for module in pkgutil.iter_modules(__path__)
]
