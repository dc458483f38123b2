"""The C++ library of gluon_amp: built beforehand, loaded once, never required.

It contains operators that round to a format in place (`src/rounding.cc`), and operators that check
and update all parameters in one pass (`src/updates.cc`, called by `updates`). Without it, or with
`GLUON_AMP_NATIVE=0`, MXNet's own operators compute instead, more slowly. Both compute the same
bits, with three exceptions. Sums over a batch, such as BatchNorm's, may be computed in another
order, since our operators keep tensors in oneDNN's own layouts. Average pooling with the `full`
convention and a clipped window has the gradient of finite differences here, and another one in
MXNet. The maximum of an empty window is -inf here, but under `fused_float32`.

`obtain` finds the library, in the cache or in the wheel, or builds it: `build` compiles it, `check`
tries it in a separate process, and `cache` stores it. A library is only loaded if its bytes have
the digest in its name, and if it passed a trial on this machine.

Loading registers operators, which moves MXNet's tables of them. MXNet 1.9.1 reads these tables
without a lock, in its engine and in every call of an operator (`Op::GetAttr` in
3rdparty/tvm/nnvm/include/nnvm/op.h), and would read freed memory. So `import gluon_amp` loads the
library if it passed its trial, which `gluon-amp build` runs. Otherwise `prepare` does when a net is
cast or a trainer is made. Both register while no operator runs: see `load`.
"""

import contextlib
import ctypes
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Callable, Iterable, Iterator, List, Optional

from gluon_amp.base.messages import reason_of
from gluon_amp.kernels import cache, obtain
from gluon_amp.kernels.build import BuildError

import mxnet as mx

logger = logging.getLogger("gluon_amp")

# The values of GLUON_AMP_NATIVE, and their numbers for `select_kernels` in src/kernels.h
INSTRUCTION_SETS = {"plain": 1, "avx2": 2, "avx512": 3}

# Results of gluon_amp_register (src/library.cc)
_FAILED, _REGISTERED, _BUSY, _USERS_ERROR = range(4)

# Seconds to wait for other threads that call MXNet without a pause
PATIENCE = 60


class Library(ctypes.CDLL):
    """The library; `prebuilt` says whether it is that of a wheel."""

    prebuilt: bool
    forget_weights: Callable[[], int]  # keeps the GIL, unlike the library's other functions


# One element once it is decided whether this process has the library: the library, or None.
_decided: List[Optional[Library]] = []
_deciding = threading.Lock()


def available() -> bool:
    """Return whether the operators and kernels can be used: whether the library is loaded."""
    return library() is not None


def library() -> Optional[Library]:
    """Return the library if it is loaded into MXNet, else None."""
    return _decided[0] if _decided else None


def load_if_built() -> None:
    """Load the library if it passed its trial on this machine; `import gluon_amp` calls this.

    It reads files only: it starts no program and creates nothing.
    """
    _load_or_warn(obtain.find)


def prepare(contexts: Iterable[mx.Context] = ()) -> None:
    """Load the library, and build it if necessary, before the first operator needs it.

    Everything calls this that begins a computation in low precision: casts, trainers, optimizers.
    It decides once in a process, while other threads wait. Warnings announce a build, and say why
    the library is not available. One of the devices has to be a CPU. If they are unknown (none),
    the library is not built on a machine with a GPU.
    """
    types = {context.device_type for context in contexts}
    if not _decided and (types != {"gpu"} if types else mx.context.num_gpus() == 0):
        _load_or_warn(obtain.find_or_build)


def _load_or_warn(find: Callable[[], Optional[Path]]) -> None:
    """Load the library that `find` returns, unless it is decided, switched off or not found."""
    setting = os.environ.get("GLUON_AMP_NATIVE", "")
    with _deciding:
        if _decided or setting == "0":
            return
        try:
            path = find()
            if path is None:
                return
            loaded = load(path)
            if setting in INSTRUCTION_SETS and not select(setting, loaded):
                raise BuildError(f"this processor does not run GLUON_AMP_NATIVE={setting}")
            _decided.append(loaded)
        except (BuildError, OSError) as error:
            _decided.append(None)
            logger.warning(
                "gluon_amp's C++ kernels are not used, which makes it slower on this CPU: %s. "
                "GLUON_AMP_NATIVE=0 silences this.",
                reason_of(error),
            )


def select(instruction_set: Optional[str], loaded: Optional[Library] = None) -> bool:
    """Use one of `INSTRUCTION_SETS` from now on; None is the best one of this processor.

    Return False, and change nothing, if the library or this processor does not have it.
    """
    loaded = loaded or library()
    number = 0 if instruction_set is None else INSTRUCTION_SETS[instruction_set]
    return loaded is not None and bool(loaded.gluon_amp_select(number))


def forget_weights() -> None:
    """Free the weights that are packed for oneDNN, since a net is gone; others are packed again.

    This thread keeps the GIL, so that no other one forks meanwhile (`src/packed_weights.h`).
    """
    loaded = library()
    if loaded is not None:
        loaded.forget_weights()


def load(path: Path) -> Library:
    """Load a library and register its operators, which a process can do only once.

    The operators are registered when MXNet runs none: the engine is idle, and this thread holds
    the GIL, without which no other Python thread can call MXNet. While that cannot be had, this
    thread releases the GIL again and again, since a custom operator needs it to end. An operator
    of the user that failed before raises its MXNetError here, as in `mx.nd.waitall`.
    """
    register = ctypes.PyDLL(str(path)).gluon_amp_register  # unlike CDLL, it keeps the GIL
    message = ctypes.create_string_buffer(1000)
    deadline = time.monotonic() + PATIENCE
    with _no_thread_switches():
        while True:
            threads = _threads_in_mxnet()
            numbers = (ctypes.c_int * len(threads))(*threads)
            status = register(message, ctypes.c_size_t(len(message)), numbers, len(threads))
            if status != _BUSY:
                break
            if time.monotonic() > deadline:
                raise BuildError(f"other threads call MXNet without a pause for {PATIENCE} seconds")
            time.sleep(0.01)
    if status != _REGISTERED:
        kind = mx.base.MXNetError if status == _USERS_ERROR else BuildError
        raise kind(message.value.decode(errors="replace"))
    loaded = Library(str(path))
    loaded.gluon_amp_take_largest.restype = ctypes.c_float
    loaded.forget_weights = ctypes.PyDLL(str(path)).gluon_amp_forget_weights
    loaded.prebuilt = path.parent == cache.PREBUILT
    return loaded


@contextlib.contextmanager
def _no_thread_switches() -> Iterator[None]:
    """Return a context in which this thread keeps the GIL except while it waits or sleeps."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(2 * PATIENCE)
    try:
        time.sleep(2 * before)  # until no thread has asked for the GIL with the old interval
        yield
    finally:
        sys.setswitchinterval(before)


def _threads_in_mxnet() -> List[int]:
    """Return the native numbers of the other threads that may be inside a call of MXNet."""
    frames, folder = sys._current_frames(), os.path.dirname(mx.__file__)
    return [
        thread.native_id
        for thread in threading.enumerate()
        if thread is not threading.current_thread()
        and thread.native_id is not None
        and thread.ident in frames
        and frames[thread.ident].f_code.co_filename.startswith(folder)
    ]
