"""Compiles the C++ library of gluon_amp (`src/*.cc`) against the installed MXNet."""

import functools
import hashlib
import logging
import os
import platform
import re
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Dict, List, Optional

from gluon_amp.base import hardware

import mxnet as mx

logger = logging.getLogger("gluon_amp")

SOURCES = Path(__file__).with_name("src")

COMPILERS = ("g++", "c++", "clang++")

# Without contraction to fused multiply-adds, all instruction sets and MXNet compute the same bits.
FLAGS = ["-std=gnu++14", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"]

# The macros of MXNet's wheels that affect its headers, and the string type of their GCC
MXNET_MACROS = {
    "_GLIBCXX_USE_CXX11_ABI": 0,
    "MSHADOW_USE_CBLAS": 0,
    "MSHADOW_USE_CUDA": 0,
    "MSHADOW_USE_F16C": 0,
    "MSHADOW_USE_MKL": 0,
    "MSHADOW_USE_SSE": 0,
    "MXNET_USE_CUDA": 0,
    "MXNET_USE_MKLDNN": 1,
}

# Matches the line with the reason of a failure; the compiler's last line only says that the linker
# failed.
_ERROR = re.compile(r"\berror\b|undefined reference|\bld: (?!warning)", re.IGNORECASE)


class BuildError(RuntimeError):
    """The library cannot be built or loaded; the message says why in one line."""


def compiler() -> Optional[List[str]]:
    """Return the command of the C++ compiler, from `$CXX` or `COMPILERS`; None if there is none."""
    command = os.environ.get("CXX", "").split()
    found = [[name] for name in COMPILERS if shutil.which(name)]
    return command or (found[0] if found else None)


@functools.lru_cache(maxsize=None)
def source_digest() -> str:
    """Return a digest of the sources and the compiler's options.

    MXNet 1.9.0 and 1.9.1, for CPUs and for CUDA, run the same library: a trial says so.
    """
    sources = [path.read_bytes() for path in sorted(SOURCES.glob("*.*"))]
    parts = [platform.machine(), MXNET_MACROS, FLAGS, sources]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _instruction_sets() -> Dict[str, List[str]]:
    """Return the compiler's flags for each instruction set that the kernels are compiled for."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return {"plain": []}
    avx2 = ["-DGLUON_AMP_AVX2", "-mavx2", "-mf16c", "-mfma"]
    return {"plain": [], "avx2": avx2, "avx512": ["-DGLUON_AMP_AVX512", "-mavx512f"]}


def flags_of_mxnet() -> List[str]:
    """Return the compiler's flags for a source that includes MXNet's headers."""
    include = mx.libinfo.find_include_path()
    macros = [f"-D{name}={value}" for name, value in MXNET_MACROS.items()]
    # -isystem suppresses the warnings in the headers.
    return [*macros, "-isystem", include, "-isystem", os.path.join(include, "mkldnn")]


def build(command: List[str], path: Path) -> None:
    """Compile and link the library; the object files are written to the folder of `path`."""
    headers = flags_of_mxnet()
    units = {
        # -O2 would take half as long again to compile, and only the kernels benefit.
        "library": ["-O1", "-fopenmp", *headers, str(SOURCES / "library.cc")],
        "dispatch": ["-O1", str(SOURCES / "dispatch.cc")],
        "onednn": ["-O1", *headers, str(SOURCES / "onednn.cc")],
    }
    for name, flags in _instruction_sets().items():
        for source in sorted(SOURCES.glob("*kernels.cc")):
            units[f"{source.stem}_{name}"] = ["-O3", *flags, str(source)]
    objects = [str(path.with_name(f"{name}.o")) for name in units]
    commands = [
        [*command, *FLAGS, *flags, "-c", "-o", target]
        for flags, target in zip(units.values(), objects)
    ]
    with ThreadPoolExecutor(max(1, hardware.count_cores())) as pool:
        list(pool.map(run, commands))  # the first failure cancels those that have not begun
    folder_of_mxnet, name_of_mxnet = os.path.split(mx.libinfo.find_lib_path()[0])
    # -z defs: symbols that this MXNet does not export are errors of the linker.
    link = ["-shared", "-fopenmp", "-Wl,-z,defs", f"-Wl,-rpath-link,{folder_of_mxnet}"]
    mxnet = [f"-L{folder_of_mxnet}", f"-l:{name_of_mxnet}"]
    run([*command, *link, "-o", str(path), *objects, *mxnet])


def run(
    command: List[str], what: str = "", timeout: Optional[float] = None, **variables: str
) -> str:
    """Run a command with more environment variables, and return what it prints.

    The BuildError names `what` failed (by default the command) and its first error.
    """
    what = what or os.path.basename(command[0])
    try:
        done = subprocess.run(
            command,
            # With these two, Python starts programs by posix_spawn. A fork would stop MXNet's
            # engine (`pthread_atfork` in src/initialize.cc) while this thread holds the GIL, and
            # wait for ever for a custom operator, which needs it. Python's own files are not
            # inherited anyway.
            executable=shutil.which(command[0]),
            close_fds=False,
            env={**os.environ, "LC_ALL": "C", **variables},  # errors in English, for `_ERROR`
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"{what} took more than {timeout:g} seconds") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in $CXX
        reason = getattr(error, "strerror", None) or str(error)
        raise BuildError(f"{command[0]} cannot be run ({reason})") from None
    if done.returncode:
        logger.debug("%s\n%s", " ".join(command), done.stdout)
        raise BuildError(f"{what} failed ({_reason(done.stdout, done.returncode)})")
    return done.stdout


def _reason(output: str, status: int) -> str:
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if any(line.startswith("Traceback") for line in lines):  # Python prints the error last
        return lines[-1]
    return next((line for line in lines if _ERROR.search(line)), f"exit status {status}")
