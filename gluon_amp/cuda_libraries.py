"""Which of MXNet's wheels is installed. Runs before `import mxnet`."""

import importlib.metadata
import re
from typing import List


def installed_wheels() -> List[str]:
    """Return the names of MXNet's wheels here, as in ['mxnet-cu117']; there should be one."""
    names = {
        (distribution.metadata["Name"] or "").lower().replace("_", "-")
        for distribution in importlib.metadata.distributions()
    }
    return sorted(name for name in names if re.fullmatch(r"mxnet(-cu\d+)?", name))
