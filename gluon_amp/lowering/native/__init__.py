"""The C++ library of gluon_amp: built on first use, loaded once, never required.

It contains operators that round to a format in place (`src/rounding.cc`), and operators that check
and update all parameters in one pass (`src/updates.cc`, called by `updates`). Without it MXNet's
own operators compute the same bits more slowly: with `GLUON_AMP_NATIVE=0`, without a compiler, or
if it cannot be built or loaded or fails its trial. (Only sums over a batch, such as BatchNorm's,
may be computed in another order, since our operators keep tensors in oneDNN's own layouts.)

`obtain` finds or builds the library: `build` compiles it, `check` tries it in a separate process,
and `cache` stores it. A library is only loaded if its bytes have the digest that was recorded when
it was built, and if it passed a trial on this machine.
"""

import ctypes
import functools
import logging
import os
import threading
from pathlib import Path
from typing import Optional

from gluon_amp.lowering.native import obtain
from gluon_amp.lowering.native.build import BuildError

logger = logging.getLogger("gluon_amp")

# The values of GLUON_AMP_NATIVE, and their numbers for `select_kernels` in src/kernels.h
INSTRUCTION_SETS = {"plain": 1, "avx2": 2, "avx512": 3}

# MXNet's registry of operators belongs to the process: only one thread at a time may add to it.
_first_use = threading.Lock()


def available() -> bool:
    """Return whether the operators and kernels can be used.

    The first call loads the library. On the first use on a machine it also builds it, which takes
    up to a minute. Other threads wait.
    """
    return library() is not None


def library() -> Optional[ctypes.CDLL]:
    """Return the library, loaded into MXNet; None, and a warning once, if it is not available."""
    with _first_use:
        return _library()


@functools.lru_cache(maxsize=None)
def _library() -> Optional[ctypes.CDLL]:
    setting = os.environ.get("GLUON_AMP_NATIVE", "")
    if setting == "0":
        return None
    try:
        loaded = load(obtain.find_or_build())
        if setting in INSTRUCTION_SETS and not _select(setting, loaded):
            raise BuildError(f"this processor does not run GLUON_AMP_NATIVE={setting}")
        return loaded
    except (BuildError, OSError) as error:
        logger.warning(
            "gluon_amp's C++ kernels are not used, which makes it slower on this CPU: %s. "
            "GLUON_AMP_NATIVE=0 silences this.",
            first_line(error).rstrip("."),
        )
        return None


def select(instruction_set: Optional[str]) -> bool:
    """Use one of `INSTRUCTION_SETS` from now on; None is the best one of this processor.

    Return False, and change nothing, if the library or this processor does not have it.
    """
    loaded = library()
    return loaded is not None and _select(instruction_set, loaded)


def _select(instruction_set: Optional[str], loaded: ctypes.CDLL) -> bool:
    number = 0 if instruction_set is None else INSTRUCTION_SETS[instruction_set]
    return bool(loaded.gluon_amp_select(number))


def load(path: Path) -> ctypes.CDLL:
    """Load a library and register its operators, which a process can do only once.

    Raises
    ------
    BuildError
        MXNet does not accept the operators.
    """
    loaded = ctypes.CDLL(str(path))
    message = ctypes.create_string_buffer(1000)
    if not loaded.gluon_amp_register(message, ctypes.c_size_t(len(message))):
        raise BuildError(message.value.decode(errors="replace"))
    loaded.gluon_amp_take_largest.restype = ctypes.c_float
    return loaded


def first_line(error: BaseException) -> str:
    """Return an error's message in one line; an MXNetError has it after a traceback of C++."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]
