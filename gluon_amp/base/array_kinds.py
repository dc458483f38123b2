"""The two kinds of MXNet's arrays: `mx.nd.NDArray`, and `mx.np.ndarray` of `npx.set_np()`.

An operator of one kind refuses arrays of the other. The arithmetic of this package is that of
`mx.nd`, on views: `array.as_nd_ndarray()` shares memory and gradients, and returns an array of
`mx.nd` itself. What a user receives, and what Gluon keeps, has the kind of the user's arrays.
"""

from typing import Iterable

import mxnet as mx
from mxnet import nd


def of_kind(array: nd.NDArray, model: nd.NDArray) -> nd.NDArray:
    """Return an array as the kind of another one, on the same memory."""
    return array.as_np_ndarray() if isinstance(model, mx.np.ndarray) else array.as_nd_ndarray()


def of_user_kind(array: nd.NDArray) -> nd.NDArray:
    """Return an array as the kind that MXNet is set to, on the same memory."""
    return array.as_np_ndarray() if mx.util.is_np_array() else array.as_nd_ndarray()


def of_kind_for(param: mx.gluon.Parameter, array: nd.NDArray) -> nd.NDArray:
    """Return an array as the kind of a parameter's arrays, on the same memory.

    A parameter without arrays will have those of the kind that MXNet is set to.
    """
    return of_user_kind(array) if param._data is None else of_kind(array, param._data[0])


def zeros_like(array: nd.NDArray) -> nd.NDArray:
    """Return zeros in an array's shape, dtype and storage type, on its device, of its kind."""
    return of_kind(nd.zeros_like(array.as_nd_ndarray()), array)


def set_to_zero(arrays: Iterable[nd.NDArray]) -> None:
    """Set all elements of arrays to zero, in place; row_sparse arrays are then without rows."""
    for array in arrays:
        view = array.as_nd_ndarray()
        nd.zeros_like(view, out=view)
