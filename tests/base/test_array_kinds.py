"""Conversions between the two kinds of arrays, on the same memory."""

import numpy as np

from gluon_amp.base.array_kinds import of_kind, of_kind_for, of_user_kind, set_to_zero, zeros_like

import mxnet as mx
from mxnet import gluon, nd

KINDS = {mx.nd: nd.NDArray, mx.np: mx.np.ndarray}


def test_of_kind_shares_memory(arrays):
    own = arrays.ones((2,))
    for model, kind in ((nd.zeros((1,)), nd.NDArray), (mx.np.zeros((1,)), mx.np.ndarray)):
        view = of_kind(own, model)
        assert type(view) is kind
        view[:] = 3
        assert own.asnumpy().tolist() == [3, 3]
        own[:] = 1


def test_the_kind_of_a_parameter_is_that_of_its_arrays_and_else_of_the_user(arrays):
    param = gluon.Parameter("weight", shape=(2,))
    other = nd.ones((2,)) if arrays is mx.np else mx.np.ones((2,))
    assert type(of_user_kind(other)) is type(of_kind_for(param, other)) is KINDS[arrays]
    with mx.util.np_array(arrays is mx.nd):
        param.initialize()  # with arrays of the other kind
    assert type(of_user_kind(other)) is KINDS[arrays]
    assert type(of_kind_for(param, arrays.ones((2,)))) is type(other)


def test_zeros_are_of_the_kind_and_dtype_of_the_array(arrays):
    own = arrays.ones((2, 3), dtype="float16")
    zeros = zeros_like(own)
    assert type(zeros) is KINDS[arrays] and zeros.dtype == np.float16
    assert zeros.asnumpy().tolist() == [[0, 0, 0]] * 2
    set_to_zero([own])
    assert own.asnumpy().tolist() == [[0, 0, 0]] * 2
