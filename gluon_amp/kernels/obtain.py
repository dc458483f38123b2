"""Finds a library that works on this machine: in the cache, in the wheel, or built here."""

import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Optional

from gluon_amp.kernels import build, cache
from gluon_amp.kernels.build import BuildError

import mxnet as mx

logger = logging.getLogger("gluon_amp")

# Seconds after which the trial fails; it takes about three.
TRIAL_SECONDS = 300

# Runs `check` with the search path of this process, but after the standard library and without the
# current directory.
TRIAL = """
import runpy, sys
sys.path += sys.argv[2:]
runpy.run_module("gluon_amp.kernels.check", run_name="__main__")
"""


def find() -> Optional[Path]:
    """Return the path of an intact library that has worked on this machine, if there is one."""
    try:
        _refuse_other_systems()
        folder = cache.folder(create=False)
    except BuildError:
        return None
    for path in cache.libraries(folder):
        if cache.trial(folder, path).exists() and cache.intact(path):
            return path
    return None


def find_or_build() -> Path:
    """Return the path of an intact library that works here; build it if there is none."""
    _refuse_other_systems()
    try:
        folder = cache.folder()
    except BuildError:  # as in a read-only container: each process tries the library of the wheel
        for path in filter(cache.intact, cache.PREBUILT.glob("*.so")):
            try_in_subprocess(path)
            return path
        raise
    with cache.locked(folder):
        found = find()  # another process may have built it in the meantime
        if found is not None:
            return found
        problem = None
        for path in cache.libraries(folder):  # a container image may contain one, too
            try:
                return _tried(path, folder)
            except BuildError as error:
                problem = error
        return _tried(_build(folder, problem), folder)


def _tried(path: Path, folder: Path) -> Path:
    """Return a library if it works here, and record that in the cache."""
    if not cache.intact(path):
        raise BuildError(f"{path} is damaged, or was compiled from other sources")
    try_in_subprocess(path)
    cache.trial(folder, path).touch(0o600)
    return path


def _build(folder: Path, problem: Optional[BuildError]) -> Path:
    """Build the library in the cache; `problem` is why an existing one is not used."""
    compiler = build.compiler()
    if compiler is None:
        names = ", ".join(build.COMPILERS)
        why = problem or "this is not the manylinux wheel of gluon_amp, which contains them"
        raise BuildError(f"no C++ compiler: none of $CXX, {names} was found, and {why}")
    logger.warning(
        "Building gluon_amp's C++ kernels with %s%s. This takes a minute or two, once. The result "
        "is kept in %s.",
        compiler[0],
        f", since {problem}" if problem else "",
        folder,
    )
    with tempfile.TemporaryDirectory(dir=folder, prefix="build-") as temporary:
        built = Path(temporary) / "native.so"
        build.build(compiler, built)
        built.chmod(0o600)
        path = folder / cache.file_name(built.read_bytes())
        os.replace(built, path)
    return path


def _refuse_other_systems() -> None:
    """Raise an error where the library cannot work."""
    if sys.platform != "linux":
        raise BuildError("they are built on Linux only")
    if not mx.runtime.Features().is_enabled("MKLDNN"):
        raise BuildError("they call oneDNN, and this MXNet was compiled without it")


def try_in_subprocess(path: Path) -> None:
    """Use a library in a separate process, since it may crash (see src/nnvm_binary.h)."""
    # -I excludes the current directory, -S all but the standard library. MXNet and gluon_amp come
    # first, in case this process found them by a relative path, or by the import hook of an
    # editable install.
    packages = (Path(mx.__file__).parents[1], Path(__file__).parents[2])
    search = [os.path.abspath(folder) for folder in packages]
    search += [entry for entry in sys.path if isinstance(entry, str) and os.path.isabs(entry)]
    build.run(
        [sys.executable, "-I", "-S", "-c", TRIAL, str(path), *search],
        what="the trial of the kernels",
        timeout=TRIAL_SECONDS,
        GLUON_AMP_NATIVE="0",
    )
