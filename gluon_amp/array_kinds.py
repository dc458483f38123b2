"""The two kinds of arrays: `mx.nd.NDArray`, and `mx.np.ndarray` as under `npx.set_np()`.

Most operators of one kind refuse arrays of the other. gluon_amp computes on legacy arrays:
`array.as_nd_ndarray()` of either kind is a legacy array on the same memory. What users receive, and
what their parameters hold, has the kind that they use.
"""

import mxnet as mx


def as_kind_of(like, array):
    """Return an array on the same memory as `array`, of the kind of `like`."""
    return array.as_np_ndarray() if isinstance(like, mx.np.ndarray) else array.as_nd_ndarray()


def as_kind_of_parameter(param, array):
    """Return an array on the same memory, of the kind of a Gluon Parameter's arrays.

    A parameter without arrays will have those of the kind that MXNet is set to.
    """
    return as_user_kind(array) if param._data is None else as_kind_of(param._data[0], array)


def as_user_kind(array):
    """Return an array on the same memory as `array`, of the kind that MXNet is set to."""
    return array.as_np_ndarray() if mx.util.is_np_array() else array.as_nd_ndarray()
