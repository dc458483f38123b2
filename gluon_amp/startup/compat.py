"""The numpy aliases that MXNet 1.9.1 and GluonCV need.

They use aliases (`np.bool`, `np.int`, `np.float`, ...) that numpy 1.24 removed, some of them when
their functions are called, so the aliases stay. gluon_amp changes nothing else in other packages.
"""

import numpy as np

ALIASED = (bool, int, float, object, complex, str)


def restore_numpy_aliases() -> None:
    """Add the aliases of Python's types to numpy 1.24-1.26; do nothing on older numpy."""
    for builtin in ALIASED:
        if builtin.__name__ not in vars(np):  # hasattr would warn on 1.20-1.23 and raise on 1.24+
            setattr(np, builtin.__name__, builtin)
