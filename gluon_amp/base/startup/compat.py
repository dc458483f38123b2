"""Modules and names that MXNet 1.9.1 and GluonCV import, and that later versions removed.

gluon_amp changes nothing else in other packages.
"""

import contextlib
import sys

import numpy as np

ALIASED = (bool, int, float, object, complex, str)


def restore_numpy_aliases() -> None:
    """Add the aliases of Python's types to numpy 1.24-1.26; do nothing on older numpy.

    They are `np.bool`, `np.int`, `np.float` and so on. Some are used when functions of MXNet and
    GluonCV are called, so the aliases stay.
    """
    for builtin in ALIASED:
        if builtin.__name__ not in vars(np):  # hasattr would warn on 1.20-1.23 and raise on 1.24+
            setattr(np, builtin.__name__, builtin)


def restore_distutils() -> None:
    """Make setuptools' distutils importable on Python 3.12, which has none of its own.

    A `.pth` file of setuptools does this when Python starts, but not with `python -S`.
    """
    if sys.version_info >= (3, 12):
        with contextlib.suppress(ImportError):
            import setuptools  # noqa: F401
