"""Finds a library in the cache that works on this machine, or builds one."""

import logging
import os
import sys
from pathlib import Path
from typing import Optional

from gluon_amp.kernels import build, cache
from gluon_amp.kernels.build import BuildError

import mxnet as mx

logger = logging.getLogger("gluon_amp")

MXNET_VERSION = "1.9.1"

# Seconds after which the trial fails; it takes about three.
TRIAL_SECONDS = 300

# Runs `check` with the search path of this process, but after the standard library and without the
# current directory.
TRIAL = """
import sys
sys.path += sys.argv[2:]
import runpy
runpy.run_module("gluon_amp.kernels.check", run_name="__main__")
"""


def find() -> Optional[Path]:
    """Return the path of an intact library that has worked on this machine, if there is one."""
    try:
        cached = cache.CachedLibrary(cache.folder(create=False) / _file_name())
    except BuildError:
        return None
    return cached.path if cached.intact() and cached.worked_here() else None


def find_or_build() -> Path:
    """Return the path of an intact library that works here; build it if there is none."""
    folder = cache.folder()
    cached = cache.CachedLibrary(folder / _file_name())
    if cached.intact() and cached.worked_here():
        return cached.path
    with cache.locked(folder):
        # Another process may have built it in the meantime, or a container image may contain it.
        if cached.intact():
            if cached.worked_here():
                return cached.path
            try:
                try_in_subprocess(cached.path)
            except BuildError as error:
                if build.compiler() is None:
                    raise
                logger.debug("the library in the cache is rebuilt: %s", error)
            else:
                cached.note_that_it_works_here()
                return cached.path
        compiler = build.compiler()
        if compiler is None:
            names = ", ".join(build.COMPILERS)
            raise BuildError(f"no C++ compiler: none of $CXX, {names} was found")
        logger.warning(
            "Building gluon_amp's C++ kernels with %s: this takes a minute or two and happens "
            "once, they are kept in %s. `gluon-amp build` does it beforehand.",
            compiler[0],
            folder,
        )
        with cache.build_folder(folder) as temporary:
            built = temporary / cached.path.name
            build.build(compiler, built)
            try_in_subprocess(built)
            cached.store(built)
    return cached.path


def _file_name() -> str:
    """Return the name of the library for these sources and the installed MXNet."""
    if sys.platform != "linux":
        raise BuildError("they are built on Linux only")
    if mx.__version__ != MXNET_VERSION:
        raise BuildError(f"they are for MXNet {MXNET_VERSION}, and this is {mx.__version__}")
    if not mx.runtime.Features().is_enabled("MKLDNN"):
        raise BuildError("they call oneDNN, and this MXNet was compiled without it")
    return f"native-{build.source_digest()}.so"


def try_in_subprocess(path: Path) -> None:
    """Use a library in a separate process, since it may crash (see src/nnvm_binary.h)."""
    # -I excludes the current directory, -S all but the standard library. The folders of MXNet and
    # gluon_amp are added in case this process found them by a relative path, or by the import hook
    # of an editable install.
    search = [entry for entry in sys.path if isinstance(entry, str) and os.path.isabs(entry)]
    for package in (Path(mx.__file__).parent, Path(__file__).parents[1]):
        folder = os.path.abspath(package.parent)
        if folder not in search:
            search.insert(0, folder)
    build.run(
        [sys.executable, "-I", "-S", "-c", TRIAL, str(path), *search],
        env={**os.environ, "GLUON_AMP_NATIVE": "0"},
        timeout=TRIAL_SECONDS,
        what="the trial of the built kernels",
    )
