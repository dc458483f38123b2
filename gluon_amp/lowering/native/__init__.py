"""The C++ part of gluon_amp: built on first use, loaded once, never required.

It holds operators that round to float16 in place (`native/rounding.cc`), and others that check and
update all parameters in one pass (`native/updates.cc`, called by `native_updates`). Without it
MXNet's own operators give the same bits, only slower: with `GLUON_AMP_NATIVE=0`, without a
compiler, or wherever building, trying or loading it fails. (Only sums over a batch, such as
BatchNorm's, may be taken in another order, since with our operators tensors stay in oneDNN's own
layouts.)

`native_build` compiles the library, `native_check` tries it in a process of its own, `native_cache`
keeps it. A library is only loaded if its bytes have the digest that was recorded when it was built,
and if it passed a trial on this machine.
"""

import ctypes
import functools
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Optional

from gluon_amp.lowering.native import build, cache
from gluon_amp.lowering.native.build import BuildError

import mxnet as mx

logger = logging.getLogger("gluon_amp")

# What GLUON_AMP_NATIVE may say; the numbers are those of `select_kernels` in native/kernels.h.
INSTRUCTION_SETS = {"plain": 1, "avx2": 2, "avx512": 3}

MXNET_VERSION = "1.9.1"

# Seconds after which the trial fails; it needs about three.
TRIAL_SECONDS = 300

# Runs native_check with the search path of this process, but behind the standard library and
# without the current directory.
TRIAL = """
import sys
sys.path += sys.argv[2:]
import runpy
runpy.run_module("gluon_amp.lowering.native.check", run_name="__main__")
"""

# MXNet's registry of operators belongs to the process: one thread at a time may add to it.
_first_use = threading.Lock()


def available() -> bool:
    """Return whether the operators and kernels can be used.

    The first call loads the library, and builds it on the first use on a machine, which takes
    seconds. Threads that call meanwhile wait.
    """
    return library() is not None


def library() -> Optional[ctypes.CDLL]:
    """Return the library, loaded into MXNet; None where it cannot be had, which is logged once."""
    with _first_use:
        return _library()


@functools.lru_cache(maxsize=None)
def _library() -> Optional[ctypes.CDLL]:
    wanted = os.environ.get("GLUON_AMP_NATIVE", "")
    if wanted == "0":
        return None
    try:
        loaded = load(_tried_library())
        if wanted in INSTRUCTION_SETS and not _select(wanted, loaded):
            raise BuildError(f"this processor does not run GLUON_AMP_NATIVE={wanted}")
        return loaded
    except (BuildError, OSError) as error:
        logger.warning(
            "gluon_amp's C++ kernels are not used, which makes it slower on this CPU: %s. "
            "GLUON_AMP_NATIVE=0 silences this.",
            first_line(error).rstrip("."),
        )
        return None


def select(instruction_set: Optional[str]) -> bool:
    """Use one of `INSTRUCTION_SETS` from here on, or the best (None); False where it cannot run."""
    loaded = library()
    return loaded is not None and _select(instruction_set, loaded)


def _select(instruction_set: Optional[str], loaded: ctypes.CDLL) -> bool:
    number = 0 if instruction_set is None else INSTRUCTION_SETS[instruction_set]
    return bool(loaded.gluon_amp_select(number))


def load(path: Path) -> ctypes.CDLL:
    """Load a library and register its operators, which a process can do once."""
    loaded = ctypes.CDLL(str(path))
    message = ctypes.create_string_buffer(1000)
    if not loaded.gluon_amp_register(message, ctypes.c_size_t(len(message))):
        raise BuildError(message.value.decode(errors="replace"))
    return loaded


def first_line(error: BaseException) -> str:
    """Return what happened, in one line; an MXNetError has it below a traceback of C++."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]


def _tried_library() -> Path:
    """Return the path of an intact library that works here, building it if necessary."""
    if sys.platform != "linux":
        raise BuildError("they are built on Linux only")
    if mx.__version__ != MXNET_VERSION:
        raise BuildError(f"they are for MXNet {MXNET_VERSION}, and this is {mx.__version__}")
    folder = cache.folder()
    compiler = build.compiler()
    name = f"native-{build.source_digest()}"
    if compiler is None:
        # an image may bring the library but no compiler
        for path in sorted(folder.glob(f"{name}-*.so")):
            cached = cache.CachedLibrary(path)
            if cached.intact():
                if not cached.worked_here():
                    _try(path)
                return path
        names = ", ".join(build.COMPILERS)
        raise BuildError(f"no C++ compiler: none of $CXX, {names} was found")

    cached = cache.CachedLibrary(folder / f"{name}-{build.compiler_digest(compiler)}.so")
    if cached.intact() and cached.worked_here():
        return cached.path
    with cache.locked(folder):
        # another process may have built it meanwhile
        if cached.intact():
            if cached.worked_here():
                return cached.path
            try:
                _try(cached.path)
            except BuildError as error:
                logger.debug("the library in the cache is built anew: %s", error)
            else:
                cached.note_that_it_works_here()
                return cached.path
        logger.warning(
            "Building gluon_amp's C++ kernels with %s: this takes up to a minute and happens once, "
            "they are kept in %s.",
            compiler[0],
            folder,
        )
        with cache.build_folder(folder) as temporary:
            built = temporary / cached.path.name
            build.build(compiler, built)
            _try(built)
            cached.store(built)
    return cached.path


def _try(path: Path) -> None:
    """Use a library in a process of its own, which may crash (see native/nnvm_binary.h)."""
    # -I: not the current directory; -S: only the standard library. What this process has found by a
    # relative path, or by a hook of an editable install, gets its own folder in the path.
    search = [entry for entry in sys.path if isinstance(entry, str) and os.path.isabs(entry)]
    for package in (Path(mx.__file__).parent, Path(__file__).parents[2]):
        folder = os.path.abspath(package.parent)
        if folder not in search:
            search.insert(0, folder)
    build.run(
        [sys.executable, "-I", "-S", "-c", TRIAL, str(path), *search],
        env={**os.environ, "GLUON_AMP_NATIVE": "0"},
        timeout=TRIAL_SECONDS,
        what="the trial of the built kernels",
    )
