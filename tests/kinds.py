"""Arrays of the kind at hand: of `mx.np` while `npx.set_np()` holds, and else of `mx.nd`."""

import numpy as np

from gluon_amp.array_kinds import of_kind

import mxnet as mx
from mxnet import nd


def array(values, ctx=None, dtype="float32"):
    """Return an array of the kind at hand."""
    made = nd.array(np.asarray(values), ctx=ctx, dtype=dtype)
    return made.as_np_ndarray() if mx.util.is_np_array() else made


def full(shape, value, **kwargs):
    return array(np.full(shape, value), **kwargs)


def ones(shape, **kwargs):
    return full(shape, 1, **kwargs)


def cast(x, dtype):
    """Return an array in another dtype; its gradient is added where `grad_req` says so."""
    return of_kind(nd.cast(x.as_nd_ndarray(), dtype=dtype), x)


def scalar(x) -> float:
    """Return the element of an array that has one."""
    return x.asnumpy().item()


def kind(x) -> type:
    """Return the class of arrays that an array belongs to."""
    return mx.np.ndarray if isinstance(x, mx.np.ndarray) else nd.NDArray


def kind_at_hand() -> type:
    return mx.np.ndarray if mx.util.is_np_array() else nd.NDArray
