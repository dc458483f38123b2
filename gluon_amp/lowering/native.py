"""The C++ part of gluon_amp: built on first use into a cache, loaded once, never required.

It holds operators that round to float16 in place (`native/rounding.cc`), and others that check and
update all parameters in one pass (`native/updates.cc`, called by `native_updates`). Without it
MXNet's own operators give the same bits, only slower: with `GLUON_AMP_NATIVE=0`, without a
compiler, or wherever building, trying or loading it fails. (Only sums over a batch, such as
BatchNorm's, may be taken in another order, since with our operators tensors stay in oneDNN's own
layouts.)

The library lies in `$XDG_CACHE_HOME/gluon_amp` or `~/.cache/gluon_amp`, under a name that tells
apart sources, MXNet builds and compilers.
"""

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, List, Optional

import mxnet as mx
from mxnet.base import _LIB, c_str, check_call

logger = logging.getLogger("gluon_amp")

SOURCES = Path(__file__).with_name("native")

# What GLUON_AMP_NATIVE may say; the numbers are those of `select_kernels` in native/kernels.h.
INSTRUCTION_SETS = {"plain": 1, "avx2": 2, "avx512": 3}

COMPILERS = ("g++", "c++", "clang++")

# No contraction to fused multiply-adds: all instruction sets, and MXNet, give the same bits.
FLAGS = ["-std=gnu++14", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"]

# The macros with which MXNet's wheels were built, as far as its headers depend on them, and the
# string type of their GCC.
MXNET_MACROS = {
    "_GLIBCXX_USE_CXX11_ABI": 0,
    "MSHADOW_USE_CBLAS": 0,
    "MSHADOW_USE_CUDA": 0,
    "MSHADOW_USE_F16C": 0,
    "MSHADOW_USE_MKL": 0,
    "MSHADOW_USE_SSE": 0,
    "MXNET_USE_CUDA": 0,
}


class BuildError(RuntimeError):
    """The library cannot be had here; the message says why, in one line."""


def available() -> bool:
    """Return whether the operators and kernels can be used; the first call may take seconds."""
    return library() is not None


@functools.lru_cache(maxsize=None)
def library() -> Optional[ctypes.CDLL]:
    """Return the library, loaded into MXNet; None where it cannot be had, which is logged once."""
    wanted = os.environ.get("GLUON_AMP_NATIVE", "")
    if wanted == "0":
        return None
    try:
        loaded = _load(_path())
        if wanted in INSTRUCTION_SETS and not select(wanted, loaded):
            raise BuildError(f"this processor does not run GLUON_AMP_NATIVE={wanted}")
        return loaded
    except (BuildError, OSError, mx.base.MXNetError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        logger.warning(
            "gluon_amp's C++ kernels are not used, which makes it slower on this CPU: %s. "
            "GLUON_AMP_NATIVE=0 silences this.",
            lines[0].rstrip("."),
        )
        return None


def select(instruction_set: Optional[str], loaded: Optional[ctypes.CDLL] = None) -> bool:
    """Use one of `INSTRUCTION_SETS` from here on, or the best (None); False where it cannot run."""
    number = 0 if instruction_set is None else INSTRUCTION_SETS[instruction_set]
    return bool((loaded or library()).gluon_amp_select(number))


def _load(path: Path) -> ctypes.CDLL:
    # mx.library.load, less its renewing of every function in mx.nd and mx.sym
    check_call(_LIB.MXLoadLib(c_str(str(path)), 0))
    return ctypes.CDLL(str(path))


# -------------------------------------------------------------------------------------- the cache


def _path() -> Path:
    """Return the path of the library for this MXNet, building it if need be."""
    folder = _cache_folder()
    compiler = _compiler()
    if compiler is None:
        # an image may bring the library but no compiler
        built = sorted(folder.glob(f"native-{_digest()}-*.so"))
        if not built:
            raise BuildError(f"no C++ compiler: none of $CXX, {', '.join(COMPILERS)} was found")
        return built[0]
    version = _run([*compiler, "--version"])
    path = folder / f"native-{_digest()}-{_short_hash(' '.join(compiler) + version)}.so"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / "lock"):
            if not path.exists():
                _build(compiler, path)
    return path


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "gluon_amp"


def _compiler() -> Optional[List[str]]:
    try:
        named = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise BuildError(f"$CXX cannot be split into words ({error})") from None
    if named:
        return named
    return next(([name] for name in COMPILERS if shutil.which(name)), None)


@functools.lru_cache(maxsize=None)
def _digest() -> str:
    """Return a name for the sources, how they are compiled, and the MXNet they are for."""
    contents = [path.read_bytes() for path in sorted(SOURCES.glob("*.*"))]
    library_size = os.path.getsize(_mxnet_library())
    told = [mx.__version__, platform.machine(), str(library_size), str(_macros()), str(FLAGS)]
    return _short_hash(b"\0".join(contents) + "\0".join(told).encode())


def _short_hash(content) -> str:
    content = content if isinstance(content, bytes) else content.encode()
    return hashlib.sha256(content).hexdigest()[:16]


@contextlib.contextmanager
def _locked(path: Path):
    """Let one process at a time build; the others then find what it has built."""
    try:
        import fcntl
    except ImportError:  # not on Windows; there two may build, and the second replaces the first
        yield
        return
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# -------------------------------------------------------------------------------------- the build


def _mxnet_library() -> str:
    return mx.libinfo.find_lib_path()[0]


def _macros() -> Dict[str, int]:
    onednn = mx.runtime.Features().is_enabled("MKLDNN")
    return {**MXNET_MACROS, "MXNET_USE_MKLDNN": int(onednn)}


def _build(compiler: List[str], path: Path) -> None:
    """Compile, link and try the library; `path` is either complete or not there."""
    include = mx.libinfo.find_include_path()
    headers = [f"-D{name}={value}" for name, value in _macros().items()]
    # -isystem: no warnings of MXNet's headers
    headers += ["-isystem", include, "-isystem", os.path.join(include, "mkldnn")]
    kernels = ["-O3", str(SOURCES / "kernels.cc")]
    lib_api = os.path.join(os.path.dirname(mx.__file__), "src", "lib_api.cc")
    units = {
        "plain": kernels,
        "dispatch": ["-O2", str(SOURCES / "dispatch.cc")],
        "layouts": ["-O2", "-fopenmp", *headers, str(SOURCES / "layouts.cc")],
        "rounding": ["-O2", "-fopenmp", *headers, str(SOURCES / "rounding.cc")],
        "updates": ["-O2", "-fopenmp", *headers, str(SOURCES / "updates.cc")],
        "library": ["-O1", *headers, str(SOURCES / "library.cc")],
        "lib_api": ["-O0", "-w", "-fvisibility=default", *headers, lib_api],
    }
    if platform.machine() in ("x86_64", "AMD64"):
        units["avx2"] = ["-DGLUON_AMP_AVX2", "-mavx2", "-mf16c", *kernels]
        units["avx512"] = ["-DGLUON_AMP_AVX512", "-mavx512f", *kernels]
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as folder:
        objects = [os.path.join(folder, f"{name}.o") for name in units]
        _run_all(
            [*compiler, *FLAGS, *flags, "-c", "-o", target]
            for flags, target in zip(units.values(), objects)
        )
        linked = os.path.join(folder, path.name)
        folder_of_mxnet, name_of_mxnet = os.path.split(_mxnet_library())
        # -z defs: what this MXNet does not export has to show now
        link = ["-shared", "-fopenmp", "-Wl,-z,defs", f"-Wl,-rpath-link,{folder_of_mxnet}"]
        mxnet = [f"-L{folder_of_mxnet}", f"-l:{name_of_mxnet}"]
        _run([*compiler, *link, "-o", linked, *objects, *mxnet])
        _try(linked)
        os.replace(linked, path)


def _try(path: str) -> None:
    """Use a new library in a process of its own, which may crash (see native/nnvm_binary.h)."""
    command = [sys.executable, "-m", "gluon_amp.lowering.native_check", path]
    package = str(Path(__file__).parents[2])
    search = os.pathsep.join([package, *filter(None, sys.path)])
    _run(command, env={**os.environ, "GLUON_AMP_NATIVE": "0", "PYTHONPATH": search})


def _run_all(commands) -> None:
    """Run commands side by side."""
    running = [(command, _start(command)) for command in commands]
    for command, process in running:
        _finish(command, process)


def _run(command: List[str], **kwargs) -> str:
    return _finish(command, _start(command, **kwargs))


def _start(command: List[str], **kwargs) -> subprocess.Popen:
    try:
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
            **kwargs,
        )  # fmt: skip
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run ({error.strerror})") from None


def _finish(command: List[str], process: subprocess.Popen) -> str:
    output, _ = process.communicate()
    if process.returncode == 0:
        return output
    logger.debug("%s\n%s", " ".join(command), output)
    errors = [line for line in output.splitlines() if "rror" in line]
    reason = errors[0].strip() if errors else f"exit status {process.returncode}"
    raise BuildError(f"{os.path.basename(command[0])} failed ({reason})")
