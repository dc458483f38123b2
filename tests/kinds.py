"""Arrays and operators of the kind at hand: of `mx.np` while `npx.set_np()` holds, else `mx.nd`."""

import numpy as np
import pytest

from gluon_amp.base.array_kinds import of_kind, of_user_kind

import mxnet as mx
from mxnet import nd

# Of tests that use the fixture `arrays`, these run with one kind: what MXNet has of the other fails
only_nd = pytest.mark.parametrize("arrays", ["nd"], indirect=True)
only_np = pytest.mark.parametrize("arrays", ["np"], indirect=True)


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


def np_of(F):
    """Return what holds operators that `F.np` has too: `F.np` itself, or `F`."""
    return F.np if mx.util.is_np_array() else F


def npx_of(F):
    """Return what holds operators that `F.npx` has too: `F.npx` itself, or `F`."""
    return F.npx if mx.util.is_np_array() else F
