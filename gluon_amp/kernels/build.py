"""Compiles the C++ library of gluon_amp (`src/*.cc`) against the installed MXNet."""

import functools
import hashlib
import logging
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional

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
    variable = os.environ.get("CXX", "")
    try:
        command = shlex.split(variable)
    except ValueError:  # a quote is not closed
        command = [variable]
    return command or next(([name] for name in COMPILERS if shutil.which(name)), None)


@functools.lru_cache(maxsize=None)
def source_digest() -> str:
    """Return a digest of the sources, the compiler's options and the installed MXNet."""
    contents = [path.read_bytes() for path in sorted(SOURCES.glob("*.*"))]
    size = os.path.getsize(mxnet_library())
    options = [mx.__version__, platform.machine(), str(size), str(MXNET_MACROS), str(FLAGS)]
    return _short_hash(b"\0".join(contents) + "\0".join(options).encode())


def _short_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def mxnet_library() -> str:
    """Return the path of libmxnet.so."""
    return mx.libinfo.find_lib_path()[0]


def _instruction_sets() -> Dict[str, List[str]]:
    """Return the compiler's flags for each instruction set that the kernels are compiled for."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return {"plain": []}
    avx2 = ["-DGLUON_AMP_AVX2", "-mavx2", "-mf16c", "-mfma"]
    return {"plain": [], "avx2": avx2, "avx512": ["-DGLUON_AMP_AVX512", "-mavx512f"]}


def build(command: List[str], path: Path) -> None:
    """Compile and link the library; the object files are written to the folder of `path`."""
    include = mx.libinfo.find_include_path()
    headers = [f"-D{name}={value}" for name, value in MXNET_MACROS.items()]
    # -isystem suppresses the warnings in MXNet's headers.
    headers += ["-isystem", include, "-isystem", os.path.join(include, "mkldnn")]
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
    run_all(
        [*command, *FLAGS, *flags, "-c", "-o", target]
        for flags, target in zip(units.values(), objects)
    )
    folder_of_mxnet, name_of_mxnet = os.path.split(mxnet_library())
    # -z defs: symbols that this MXNet does not export are errors of the linker.
    link = ["-shared", "-fopenmp", "-Wl,-z,defs", f"-Wl,-rpath-link,{folder_of_mxnet}"]
    mxnet = [f"-L{folder_of_mxnet}", f"-l:{name_of_mxnet}"]
    run([*command, *link, "-o", str(path), *objects, *mxnet])


# --------------------------------------------------------------------------------------- commands


def run(command: List[str], **options: Any) -> str:
    """Run a command with the options of `run_all`, and return what it prints."""
    return run_all([command], **options)[0]


def run_all(
    commands: Iterable[List[str]],
    env: Optional[Dict[str, str]] = None,
    timeout: Optional[float] = None,
    what: Optional[str] = None,
) -> List[str]:
    """Run commands, one for each core at a time, and return what they print.

    If one fails or takes longer than `timeout` seconds, the others are killed or not started. The
    BuildError names `what` failed (by default the command) and its first error.
    """
    running: List[subprocess.Popen] = []

    def complete(command: List[str]) -> str:
        running.append(_start(command, os.environ if env is None else env))
        return _finish(command, running[-1], timeout, what)

    with ThreadPoolExecutor(max(1, hardware.count_cores())) as pool:
        results = [pool.submit(complete, command) for command in commands]
        try:
            return [result.result() for result in results]
        finally:
            for result in results:
                result.cancel()
            for process in running:
                _kill(process)


def _start(command: List[str], env: Mapping[str, str]) -> subprocess.Popen:
    env = {**env, "LC_ALL": "C"}  # errors in English, whatever the user's language, for `_ERROR`
    try:
        # With these two, Python starts programs by posix_spawn. A fork would stop MXNet's engine
        # (`pthread_atfork` in src/initialize.cc) while this thread holds the GIL, and wait for ever
        # for a custom operator, which needs it. Python's own files are not inherited anyway.
        return subprocess.Popen(
            command,
            executable=shutil.which(command[0]),
            close_fds=False,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
    except (OSError, ValueError) as error:  # ValueError: a null character in $CXX
        reason = getattr(error, "strerror", None) or str(error)
        raise BuildError(f"{command[0]} cannot be run ({reason})") from None


def _finish(
    command: List[str], process: subprocess.Popen, timeout: Optional[float], what: Optional[str]
) -> str:
    what = what or os.path.basename(command[0])
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise BuildError(f"{what} took more than {timeout:g} seconds") from None
    if process.returncode == 0:
        return output
    logger.debug("%s\n%s", " ".join(command), output)
    raise BuildError(f"{what} failed ({_reason(output, process.returncode)})")


def _reason(output: str, status: int) -> str:
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.search(line)]
    if any(line.startswith("Traceback") for line in lines):  # Python prints the error last
        errors = lines[-1:]
    return errors[0] if errors else f"exit status {status}"


def _kill(process: subprocess.Popen) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    process.stdout.close()
