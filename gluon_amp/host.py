"""Read arrays from the host, once no operator uses them any more.

In inference oneDNN keeps the weight of a convolution in a layout of its own. MXNet's operator has
the weight as an input and, while it runs, asks the engine to reorder it in place afterwards. As
`asnumpy` and `wait_to_read` wait only for the writes that the engine knows when they are called,
they can read a weight while it is being reordered. Operators such as `copyto` are safe, since the
engine puts them in order. Source: `MKLDNNConvolutionForwardFullFeature` in
src/operator/nn/mkldnn/mkldnn_convolution.cc of MXNet 1.9.1.
"""

import ctypes

import numpy as np

from mxnet.base import _LIB, check_call


def on_cpu(array) -> bool:
    """Return whether the array is in host memory."""
    return array.context.device_type.startswith("cpu")


def wait_until_unused(array) -> None:
    """Wait until no pending operator reads or writes the array.

    The operators have then requested all their reorders, and `asnumpy` waits for these.
    """
    check_call(_LIB.MXNDArrayWaitToWrite(array.handle))


def host_copy(array) -> np.ndarray:
    """Return the values of an NDArray, once it is unused, as a numpy array."""
    wait_until_unused(array)
    return array.asnumpy()


def host_view(array) -> np.ndarray:
    """Return a flat numpy view, no copy, of a dense NDArray in host memory, once it is unused.

    Read it at once, while the NDArray is alive. Write only to an array that no operator has used.
    """
    if array.size == 0:
        return np.empty(0, array.dtype)
    address = ctypes.c_void_p()
    wait_until_unused(array)
    array.wait_to_read()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    dtype = np.dtype(array.dtype)
    buffer = (ctypes.c_uint8 * (array.size * dtype.itemsize)).from_address(address.value)
    return np.frombuffer(buffer, dtype)
