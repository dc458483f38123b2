"""The kind of arrays that a user gets, and that a parameter holds."""

from gluon_amp.base.array_kinds import of_kind_for, of_user_kind

import mxnet as mx
from mxnet import gluon, nd

KINDS = {mx.nd: nd.NDArray, mx.np: mx.np.ndarray}


def test_the_kind_of_a_parameter_is_that_of_its_arrays_and_else_of_the_user(arrays):
    param = gluon.Parameter("weight", shape=(2,))
    other = nd.ones((2,)) if arrays is mx.np else mx.np.ones((2,))
    assert type(of_user_kind(other)) is type(of_kind_for(param, other)) is KINDS[arrays]
    with mx.util.np_array(arrays is mx.nd):
        param.initialize()  # with arrays of the other kind
    assert type(of_user_kind(other)) is KINDS[arrays]
    assert type(of_kind_for(param, arrays.ones((2,)))) is type(other)
