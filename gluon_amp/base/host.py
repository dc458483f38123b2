"""Read arrays on the host, once no operator uses them any more.

In inference, oneDNN converts the weight of a convolution to a layout of its own. While MXNet's
operator runs, with the weight as an input, it schedules a reorder of the weight in place. `asnumpy`
and `wait_to_read` wait only for writes that are scheduled when they are called, so they can read a
weight while it is being reordered. Operators such as `copyto` are safe, because the engine runs
them in order. Source: `MKLDNNConvolutionForwardFullFeature` in
src/operator/nn/mkldnn/mkldnn_convolution.cc of MXNet 1.9.1.
"""

import ctypes
from typing import Any

import numpy as np

from gluon_amp.base.mxnet_internals import LIB, check_call

from mxnet import nd

# Tests set it, to run on a CPU the operators that a GPU would run. The numbers are those of a CPU:
# `multi_sum_sq`, for one, adds float16 squares in float16 there.
_as_on_a_gpu = False


def on_cpu(array: nd.NDArray) -> bool:
    """Return whether the array is in host memory, where the C++ kernels and numpy reach it."""
    return array.context.device_type.startswith("cpu") and not _as_on_a_gpu


def wait_until_unused(array: nd.NDArray) -> None:
    """Wait until no pending operator reads or writes the array.

    By then these operators have scheduled their reorders, for which `asnumpy` waits.
    """
    check_call(LIB.MXNDArrayWaitToWrite(array.handle))


def host_copy(array: nd.NDArray) -> "np.ndarray[Any, Any]":
    """Return a copy of an NDArray as a numpy array, once the NDArray is unused."""
    wait_until_unused(array)
    values: np.ndarray[Any, Any] = array.asnumpy()
    return values


def host_view(array: nd.NDArray) -> "np.ndarray[Any, Any]":
    """Return a flat numpy view of a dense NDArray in host memory, once the NDArray is unused.

    The view keeps the NDArray alive. Write only to an array that no operator has used.
    """
    if array.size == 0:
        return np.empty(0, array.dtype)
    address = ctypes.c_void_p()
    wait_until_unused(array)
    array.wait_to_read()
    check_call(LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    dtype = np.dtype(array.dtype)
    buffer = (ctypes.c_uint8 * (array.size * dtype.itemsize)).from_address(address.value)
    buffer.owner = array  # of the memory, which numpy's view of the buffer does not know
    return np.frombuffer(buffer, dtype)
