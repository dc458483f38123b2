"""Which versions of MXNet and which systems gluon_amp runs on: one sentence for each other one.

MXNet is not imported here: its file ``libinfo.py``, which imports nothing of MXNet, has the version
and the path of the library. That holds for every wheel, and for a build from the sources.
"""

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

from gluon_amp.base.messages import install
from gluon_amp.base.startup.cuda_libraries import DRIVER, LIBRARIES

VERSIONS = ("1.9.1", "1.9.0")

CPU, GPU = (install(extra, "pip install") for extra in ("cpu", "cu117"))
INSTALL = f"`{CPU}`, or for an NVIDIA GPU `{GPU}` or the same with cu112"
MISSING = f"MXNet is not installed: run {INSTALL} (only one of the three; they exclude each other)."

# Names of the packages on PyPI that hold a whole MXNet, of all its versions
WHEEL = re.compile(r"mxnet(-native|-mkl|-cu\d+(mkl)?)?", re.IGNORECASE)

SYSTEMS = {
    "win32": "MXNet 1.9.1 has no wheel for Windows, and gluon_amp was never run there: "
    "use Linux, for example in WSL 2.",
    "musl": "MXNet's wheels need glibc, and this Linux has musl, as Alpine does: "
    "use Debian, Ubuntu or Fedora, for example the image debian:13-slim.",
}

# The libraries that a bare system may lack: Debian's and Ubuntu's package, Fedora's and RHEL's
PACKAGES = {
    "libgomp.so.1": ("libgomp1", "libgomp"),
    "libquadmath.so.0": ("libquadmath0", "libquadmath"),
    "libstdc++.so.6": ("libstdc++6", "libstdc++"),
    "libgcc_s.so.1": ("libgcc-s1", "libgcc"),
    "libopenblas.so.0": ("libopenblas0", "openblas"),
}
MANAGERS = ("on Debian or Ubuntu run `apt-get install {}`", "on Fedora or RHEL `dnf install {}`")
ARM = ("libarmpl_lp64_mp.so", "libamath.so", "libastring.so")
ARM_CURE = (
    "install Arm Compiler for Linux, which has those of Arm, and add the folders of its libraries "
    "to LD_LIBRARY_PATH"
)


def check() -> None:
    """Raise an `ImportError` if gluon_amp cannot run on this system or with the installed MXNet."""
    is_musl = sys.platform == "linux" and not hasattr(ctypes.CDLL(None), "gnu_get_libc_version")
    system = "musl" if is_musl else sys.platform
    if system in SYSTEMS:
        raise ImportError(SYSTEMS[system])
    version = getattr(sys.modules.get("mxnet"), "__version__", None)
    version = version or _libinfo().get("__version__", VERSIONS[0])
    number = re.match(r"[\d.]*\d", version)
    if number is None or number[0] not in VERSIONS:
        names = (one.metadata["Name"] or "" for one in importlib.metadata.distributions())
        wheels = " ".join(sorted(filter(WHEEL.fullmatch, names)))
        raise ImportError(
            f"gluon_amp needs MXNet {' or '.join(VERSIONS)}, and this is MXNet {version}: run "
            f"`pip uninstall {wheels or 'mxnet'}`, then {INSTALL}."
        )


def cannot_load(error: OSError) -> str:
    """Return the sentence for an error of the loader: all libraries that this system lacks."""
    missing = _missing_libraries() or re.findall(r"^(\S+\.so\S*): cannot open", str(error))
    if not missing:
        return f"MXNet could not be loaded: {error}."
    known = [PACKAGES[name] for name in missing if name in PACKAGES]
    cures = [manager.format(" ".join(p)) for manager, p in zip(MANAGERS, zip(*known))]
    cures += [ARM_CURE] if set(ARM).intersection(missing) else []
    names = " and ".join([*filter(None, [", ".join(missing[:-1])]), missing[-1]])
    cure = ", ".join(cures) or "install the package that has it"
    return f"MXNet needs {names}, which this system's loader does not find: {cure}."


def _missing_libraries() -> List[str]:
    """Return the libraries that MXNet needs and the loader does not find, as ldd lists them."""
    loaded = {DRIVER, *(library.soname for library in LIBRARIES)}  # of CUDA, from their packages
    paths = _libinfo().get("find_lib_path", list)()
    with contextlib.suppress(OSError):  # there is no ldd
        done = subprocess.run(["ldd", *paths[:1]], capture_output=True, text=True)
        names = re.findall(r"^\s*(\S+) => not found", done.stdout, re.MULTILINE)
        return [name for name in dict.fromkeys(names) if name not in loaded]
    return []


def _libinfo() -> Dict[str, Any]:
    """Return the names in MXNet's ``libinfo.py``; none if MXNet is not installed."""
    with contextlib.suppress(ImportError, ValueError):  # it is hidden, or half imported
        spec = importlib.util.find_spec("mxnet")
        for folder in (spec and spec.submodule_search_locations) or ():
            if Path(folder, "libinfo.py").is_file():
                return runpy.run_path(str(Path(folder, "libinfo.py")))
    return {}
