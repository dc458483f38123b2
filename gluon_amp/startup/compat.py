"""What MXNet 1.9.1 needs to import on today's Python and numpy; runs before `import mxnet`.

MXNet and GluonCV read aliases (`np.bool`, `np.int`, `np.float`, ...) that numpy 1.24 removed, some
of them at call time, so the aliases stay. Nothing else is patched, here or elsewhere in gluon_amp.
"""

import numpy as np

NUMPY_ALIASES = {
    "bool": bool,
    "int": int,
    "float": float,
    "object": object,
    "complex": complex,
    "str": str,
}

MXNET_MISSING = (
    "MXNet is not installed: run `pip install 'gluon-amp[cpu]'` for a machine without a GPU, "
    "or `pip install 'gluon-amp[cu112]'` / `'gluon-amp[cu117]'` for an NVIDIA GPU "
    "(only one of the three; they exclude each other)."
)


def restore_numpy_aliases() -> None:
    """Give numpy 1.24-1.26 back the aliases of Python's own types; a no-op on older numpy."""
    for name, builtin in NUMPY_ALIASES.items():
        if name not in vars(np):  # hasattr would warn on 1.20-1.23 and raise on 1.24+
            setattr(np, name, builtin)


def import_mxnet():
    """Import MXNet with the aliases in place.

    Raises
    ------
    ImportError
        One sentence that names the extra to install, or the system library that is missing.
    """
    restore_numpy_aliases()
    try:
        import mxnet
    except ModuleNotFoundError as error:
        if error.name == "mxnet":
            raise ImportError(MXNET_MISSING) from None
        if error.name and error.name.split(".")[0] == "distutils":
            raise ImportError(
                "MXNet 1.9.1 needs distutils, which Python 3.12 dropped: "
                "run `pip install setuptools`."
            ) from None
        raise
    except OSError as error:
        raise ImportError(
            f"MXNet could not load a system library ({error}): on Debian or Ubuntu run "
            "`apt-get install libgomp1 libquadmath0`."
        ) from None
    return mxnet
