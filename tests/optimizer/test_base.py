"""What all optimizers share: the layout of states, devices, exact attributes."""

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_amp import optimizer
from gluon_amp.optimizer import ExactFloat
from tests.optimizer.reference import build, gradient, start

import mxnet as mx
from mxnet import nd


@pytest.mark.usefixtures("arrays")
def test_weights_of_both_kinds_get_the_same_bits_in_both_modes(way):
    for name in optimizer.OPTIMIZERS:
        results = []
        for view in (nd.NDArray.as_nd_ndarray, nd.NDArray.as_np_ndarray):
            built, _ = build(name, learning_rate=0.5, wd=0.5)
            weights = [view(nd.array(start(i), dtype="float16")) for i in range(2)]
            states = [built.create_state_multi_precision(i, w) for i, w in enumerate(weights)]
            grads = [view(nd.array(gradient(0, i), dtype="float16")) for i in range(2)]
            built.update_multi_precision([0, 1], weights, grads, states)
            built.update_multi_precision(0, weights[0], grads[0], states[0])
            arrays = [one for one in (*weights, *states[0], *states[1]) if one is not None]
            assert {type(one) for one in arrays} == {type(weights[0])}
            results.append([one.asnumpy().tobytes() for one in arrays])
        assert results[0] == results[1], name


def test_an_updater_accepts_weights_of_mx_np_outside_of_its_mode():
    _, updater = build("sgd", learning_rate=0.5)
    weight = mx.np.ones((2,), dtype="float16")
    updater([0], [mx.np.ones((2,), dtype="float16")], [weight])
    np.testing.assert_array_equal(weight.asnumpy(), np.float16([0.5, 0.5]))


def test_states_have_one_layout_pickle_and_move_to_the_device_of_the_weight():
    momentum = {"momentum": 0.9}
    for name, params, arrays in [("sgd", {}, 0), ("nag", momentum, 1), ("lars", momentum, 1)]:
        for dtype in ("float16", "float32"):
            built, updater = build(name, **params)
            updater([0], [nd.ones((2,), dtype=dtype)], [nd.ones((2,), dtype=dtype)])
            again = mx.optimizer.get_updater(built)
            again.set_states(updater.get_states())
            there = [nd.ones((2,), ctx=mx.cpu(1), dtype=dtype) for _ in range(2)]
            again([0], there[:1], there[1:])
            master, *rest = state = again.states[0]
            assert type(state) is tuple
            assert (master is None) == (dtype == "float32")
            assert [one.dtype for one in rest] == [np.float32] * arrays
            assert {one.context for one in state if one is not None} <= {mx.cpu(1)}
            assert isinstance(pickle.loads(updater.get_states(dump_optimizer=True))[1], type(built))


def test_float16_without_masters_is_refused():
    for name in optimizer.OPTIMIZERS:
        _, updater = build(name, multi_precision=False)
        with pytest.raises(ValueError, match="float16 weight with multi_precision=False"):
            updater([0], [nd.ones((2,), dtype="float16")], [nd.ones((2,), dtype="float16")])
        updater([0], [nd.ones((2,))], [nd.ones((2,))])


def test_rescale_grad_arrives_exactly_for_every_scale():
    for batch, exponent in itertools.product((1, 3, 7, 100, 0.3), range(29)):
        weight = nd.zeros((1,))
        factor = ExactFloat(1.0 / batch / 2.0**exponent)
        nd.sgd_update(weight, nd.full((1,), 2.0**exponent), out=weight, lr=1, rescale_grad=factor)
        assert weight.asscalar() == -np.float32(1.0 / batch)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.floats(1e-11, 1e11))
def test_the_text_of_an_exact_float_has_no_exponent_and_is_the_same_float32(value):
    text = str(ExactFloat(value))
    assert "e" not in text
    assert np.float32(text) == np.float32(value)
    assert ExactFloat(value) == value
