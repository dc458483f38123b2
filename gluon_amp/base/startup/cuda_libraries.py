"""Loads the CUDA 11 libraries of MXNet's GPU wheels from PyPI packages before `import mxnet`.

mxnet-cu112 and mxnet-cu117 are linked against CUDA 11 and cuDNN 8 but do not contain them. NVIDIA's
packages on PyPI do (`pip install 'gluon-amp[cu117]'`), in folders that the system's loader does not
search. The loader does not search for a library that is already loaded, so they are loaded here in
advance. Only the driver's library, libcuda.so.1, has to come from the system.

The sonames are those that `readelf -d libmxnet.so` prints for the two wheels, in the order in which
they depend on each other. libnvrtc is added because cuDNN searches for it outside of its package.
"""

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from typing import List, NamedTuple, Optional, Tuple

CUDA_WHEELS = ("mxnet-cu112", "mxnet-cu117")
WHEELS = ("mxnet", *CUDA_WHEELS)
DRIVER = "libcuda.so.1"


class Library(NamedTuple):
    """A shared library: its folder below `nvidia/`, its soname, and the wheels that need it."""

    folder: str
    soname: str
    wheels: Tuple[str, ...] = CUDA_WHEELS


LIBRARIES = (
    Library("cuda_runtime", "libcudart.so.11.0"),
    Library("cuda_nvrtc", "libnvrtc.so.11.2"),
    Library("nvtx", "libnvToolsExt.so.1"),
    Library("cublas", "libcublasLt.so.11"),
    Library("cublas", "libcublas.so.11"),
    Library("cufft", "libcufft.so.10"),
    Library("curand", "libcurand.so.10"),
    Library("cusparse", "libcusparse.so.11", ("mxnet-cu117",)),
    Library("cusolver", "libcusolver.so.11"),
    Library("nccl", "libnccl.so.2"),
    Library("cudnn", "libcudnn.so.8"),
)


def installed_wheels() -> List[str]:
    """Return the names of the installed wheels of MXNet, as in ['mxnet-cu117']."""
    found = []
    for name in WHEELS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            importlib.metadata.distribution(name)
            found.append(name)
    return found


def preload() -> None:
    """Load the libraries that the installed wheel is linked against; none for the CPU wheel.

    Two wheels, a missing library and a missing driver are an `ImportError` that names the fix.
    """
    if "mxnet" in sys.modules:
        return
    wheels = installed_wheels()
    if len(wheels) > 1:
        extra = wheels[-1].partition("-")[2]
        raise ImportError(
            f"{' and '.join(wheels)} are both installed and have overwritten each other's files: "
            f"run `pip uninstall {' '.join(wheels)}`, then `pip install 'gluon-amp[{extra}]'` "
            "(or `'gluon-amp[cpu]'` for a machine without a GPU)."
        )
    for wheel in set(wheels).intersection(CUDA_WHEELS):
        for library in LIBRARIES:
            if wheel in library.wheels:
                _load(library, wheel)
        _load_driver(wheel)


def _load(library: Library, wheel: str) -> None:
    """Load a library from its package; without the package, from where the loader finds it."""
    packaged = _packaged(library)
    try:
        ctypes.CDLL(str(packaged or library.soname), ctypes.RTLD_GLOBAL)
    except OSError as error:
        extra = wheel.partition("-")[2]
        raise ImportError(
            f"{wheel} needs {library.soname}, which could not be loaded ({error}): "
            f"run `pip install 'gluon-amp[{extra}]'`, which brings it."
        ) from None


def _packaged(library: Library) -> Optional[Path]:
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations or () if spec else ()
    paths = (Path(folder, library.folder, "lib", library.soname) for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def _load_driver(wheel: str) -> None:
    try:
        ctypes.CDLL(DRIVER, ctypes.RTLD_GLOBAL)
    except OSError:
        raise ImportError(
            f"{wheel} needs NVIDIA's driver, which this machine does not have ({DRIVER} is not "
            f"found): install the driver, or run `pip uninstall {wheel}`, then "
            "`pip install 'gluon-amp[cpu]'` for a machine without a GPU."
        ) from None
