"""Arrays of the kind at hand: of `mx.np` while `npx.set_np()` holds, else `mx.nd`."""

import numpy as np

from gluon_amp.base.array_kinds import of_kind, of_user_kind

from mxnet import nd


def array(values, ctx=None, dtype="float32"):
    """Return an array of the kind at hand."""
    return of_user_kind(nd.array(np.asarray(values), ctx=ctx, dtype=dtype))


def full(shape, value, **kwargs):
    return array(np.full(shape, value), **kwargs)


def ones(shape, **kwargs):
    return full(shape, 1, **kwargs)


def cast(x, dtype):
    """Return an array in another dtype; its gradient is added where `grad_req` says so."""
    return of_kind(nd.cast(x.as_nd_ndarray(), dtype=dtype), x)
