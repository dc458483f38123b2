"""Tells whether an array was written, by the counters of MXNet's engine, without waiting.

The engine has one variable for the memory of an array and all its views. It counts the writes that
have ended, and holds the first one that has not. No function of MXNet's C API returns either, so
they are read from memory: `NDArray::ptr_->var` (include/mxnet/ndarray.h), `Var::version_`
(include/mxnet/engine.h) and `ThreadedVar::pending_write_` (src/engine/threaded_engine.h) of MXNet
1.9.1. The first call checks these places with an array of its own. Where they do not hold, for
another build of MXNet, no version is known.

Memory that MXNet shares by DLPack, as `NDArray.to_dlpack_for_write` does, can be written without
its engine, which nothing counts.
"""

import contextlib
import ctypes
import functools
import os
import threading
from typing import Iterator, Optional

from gluon_amp.base.memory import NO_SUCH_PLACE, Reader, by_file, word
from gluon_amp.base.mxnet_internals import LIB, check_call

import mxnet as mx
from mxnet import nd

_NAIVE = os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine"  # which ends a write as it begins

# Bytes from the beginning of an object to a member. With oneDNN a chunk holds a pointer more.
_VAR_OF_CHUNK = 72 if mx.runtime.Features().is_enabled("MKLDNN") else 56
_VERSION = 8
_PENDING_WRITE = 88


def version(array: nd.NDArray) -> Optional[int]:
    """Return the number of writes to an array's memory so far; None while it is being written.

    It takes microseconds and waits for nothing. Two equal numbers mean that no operator of MXNet
    has written the array in between. The result is always None if the counters cannot be read.
    """
    if not _readable():
        return None
    variable = _variable(array)
    if not _NAIVE and word(variable + _PENDING_WRITE):
        return None
    return word(variable + _VERSION)


def _variable(array: nd.NDArray) -> int:
    """Return the address of the engine's variable of an array."""
    return word(word(array.handle.value) + _VAR_OF_CHUNK)


@functools.lru_cache(maxsize=None)
def _readable() -> bool:
    """Return whether the counters are where they are expected, tried with a write that is held."""
    try:
        with by_file() as word:
            return _as_expected(nd.zeros((1,), ctx=mx.cpu()), word)
    except NO_SUCH_PLACE:
        return False


def _as_expected(array: nd.NDArray, word: Reader) -> bool:
    array.wait_to_read()
    variable = word(word(array.handle.value) + _VAR_OF_CHUNK)
    before, seen = word(variable + _VERSION), []
    with _held_write(array):
        seen.append((word(variable + _VERSION), _NAIVE or word(variable + _PENDING_WRITE) != 0))
    seen.append((word(variable + _VERSION), _NAIVE or word(variable + _PENDING_WRITE) == 0))
    return seen == [(before + _NAIVE, True), (before + 1, True)]


class _Context(ctypes.Structure):
    """`mxnet::Context`: the type of a device, and its number."""

    _fields_ = (("dev_type", ctypes.c_int), ("dev_id", ctypes.c_int32))


_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


@contextlib.contextmanager
def _held_write(array: nd.NDArray) -> Iterator[None]:
    """Write to an array, without a change, for as long as this context."""
    end = threading.Event()
    # NaiveEngine runs the function in the thread that would end it.
    function = _FUNCTION(lambda *_: None if _NAIVE else end.wait(60) and None)
    arrays, cpu = (ctypes.c_void_p * 1)(array.handle), ctypes.byref(_Context(1, 0))
    try:
        check_call(
            LIB.MXEnginePushSyncND(function, None, None, cpu, None, 0, arrays, 1, None, 0, b"held")
        )
        yield
    finally:
        end.set()
        array.wait_to_read()
