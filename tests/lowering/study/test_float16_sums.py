"""Accumulation in float16 compared with accumulation in float32, both emulated."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.lowering import lower
from gluon_amp.lowering.study import float16_sums
from gluon_amp.policy import Policy, cast_pass
from tests.lowering import back_through

import mxnet as mx
from mxnet import nd
from mxnet.gluon import nn

FLOAT32_SUMS = "params=float16,compute=float16"
FLOAT16_SUMS = "params=float16,compute=float16,accumulate=float16"


def half(*shape, seed=0):
    return np.random.RandomState(seed).normal(size=shape).astype("f2").astype("f4")


# ------------------------------------------------------------------------------ the arithmetic


def test_a_product_is_rounded_after_each_16():
    ones = np.ones((48, 1))
    # 2048 + 16 = 2064 is a float16; 2048 + 1, sixteen times, would stay 2048
    row = np.r_[2048, np.zeros(15), np.ones(32)].reshape(1, 48)
    assert float16_sums.product(row, ones) == 2080.0
    # one more than 2064 is no float16: 2081 goes to 2080, the even neighbour
    row[0, 47] = 2
    assert float16_sums.product(row, ones) == 2080.0
    row[0, 46:] = 3
    assert float16_sums.product(row, ones) == 2084.0


def test_a_sum_past_65504_stays_infinite_and_two_of_them_are_nan():
    ones = np.ones((32, 1))
    row = np.r_[np.full(16, 5000.0), np.full(16, -5000.0)].reshape(1, 32)
    assert float16_sums.product(row, ones) == np.inf
    assert float16_sums.product(-row, ones) == -np.inf
    longer = np.r_[np.full(16, 5000.0), np.full(16, -np.inf)].reshape(1, 32)
    assert np.isnan(float16_sums.product(longer, ones))


def test_a_short_product_is_rounded_once_in_each_of_a_stack():
    left, right = half(2, 3, 16), half(2, 16, 5, seed=1)
    expected = (left.astype("f8") @ right.astype("f8")).astype("f2")
    assert np.array_equal(float16_sums.product(left, right), expected)
    assert float16_sums.product(left, right).dtype == np.float16


# ----------------------------------------------------------------- operators, both ways


def gradients(op, arrays, attrs, policy):
    """Return output and gradients of an operator in the emulation, for a random output gradient."""
    names = [f"x{k}" for k in range(len(arrays))]
    symbol = getattr(mx.sym, op)(*map(mx.sym.var, names), **attrs)
    policy = Policy.parse(policy).pin(ops=[op], dtype="float16")
    dtypes = dict.fromkeys(names, "float32")
    lowered = lower(cast_pass.apply(symbol, policy, dtypes), dtypes, "cpu")
    arrays = dict(zip(names, (nd.array(x) for x in arrays)))
    for array in arrays.values():
        array.attach_grad()
    inputs = (arrays[name] for name in lowered.list_inputs())
    out = back_through(nd.CachedOp(lowered), *inputs, head=lambda s: nd.array(half(*s, seed=9)))
    return [out.asnumpy(), *(x.grad.asnumpy() for x in arrays.values())]


CASES = {
    "dense": ("FullyConnected", [(4, 12), (3, 12), (3,)], {"num_hidden": 3}),
    "flattened": ("FullyConnected", [(4, 3, 4), (3, 12), (3,)], {"num_hidden": 3}),
    "last axis": (
        "FullyConnected",
        [(2, 3, 12), (3, 12), (3,)],
        {"num_hidden": 3, "flatten": False},
    ),
    "dot, transposed": ("dot", [(12, 3), (5, 12)], {"transpose_a": True, "transpose_b": True}),
    "dot of vectors": ("dot", [(12,), (12,)], {}),
    "dot of stacks": ("dot", [(2, 3, 12), (12, 4)], {}),
    "batch_dot, transposed": ("batch_dot", [(2, 3, 12), (2, 5, 12)], {"transpose_b": True}),
    "1-D": ("Convolution", [(2, 3, 9), (4, 3, 3), (4,)], {"kernel": (3,), "num_filter": 4}),
    "strides": (
        "Convolution",
        [(1, 1, 8, 9), (2, 1, 3, 2), (2,)],
        {"kernel": (3, 2), "num_filter": 2, "stride": (2, 3), "pad": (1, 2), "dilate": (2, 1)},
    ),
    "groups": (
        "Convolution",
        [(2, 4, 5, 5), (6, 2, 2, 2)],
        {"kernel": (2, 2), "num_filter": 6, "num_group": 2, "no_bias": True},
    ),
    "3-D": (
        "Convolution",
        [(1, 1, 4, 4, 4), (2, 1, 2, 2, 2), (2,)],
        {"kernel": (2, 2, 2), "num_filter": 2},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_operator_is_the_same_but_for_the_roundings(case):
    """In values that float16 sums hold exactly, 16ths up to 4, both must agree to the bit."""
    op, shapes, attrs = CASES[case]
    random = np.random.RandomState(0)
    arrays = [random.randint(-3, 4, shape).astype("f4") / 4 for shape in shapes]
    narrow = gradients(op, arrays, attrs, FLOAT16_SUMS)
    wide = gradients(op, arrays, attrs, FLOAT32_SUMS)
    assert narrow[0].shape == wide[0].shape and np.array_equal(narrow[0], wide[0])
    for ours, theirs in zip(narrow[1:], wide[1:]):
        assert np.abs(theirs).max() > 0
        np.testing.assert_allclose(ours, theirs, rtol=2e-2, atol=2e-2)


def test_a_long_sum_loses_what_float16_loses():
    x, w = np.full((1, 4096), 1 / 64, "f4"), np.ones((1, 4096), "f4")
    attrs = {"num_hidden": 1, "no_bias": True}
    assert gradients("FullyConnected", [x, w], attrs, FLOAT32_SUMS)[0] == 64.0
    # a quarter at a time up to 64, where quarters are float16s still
    assert gradients("FullyConnected", [x, w], attrs, FLOAT16_SUMS)[0] == 64.0
    # 143.9375 is a tie that goes to 144; but 1/16, which is what 16 of them add up to, is half of
    # the distance of two float16s past 128, so that a sum in float16 never leaves 128
    x = np.r_[128.0, np.zeros(15), np.full(4080, 1 / 256)].reshape(1, -1).astype("f4")
    assert gradients("FullyConnected", [x, w], attrs, FLOAT32_SUMS)[0] == 144.0
    assert gradients("FullyConnected", [x, w], attrs, FLOAT16_SUMS)[0] == 128.0
    arrays = [array.reshape(1, -1, 1, 1) for array in (x, w)]
    attrs = {"kernel": (1, 1), "num_filter": 1, "no_bias": True}
    assert gradients("Convolution", arrays, attrs, FLOAT16_SUMS)[0] == 128.0


def test_gradients_add_up_in_float16_too():
    """The weight's gradient is a sum over the batch: here 32 times 4096 and back."""
    x = np.r_[np.full(32, 4096.0), np.full(32, -4096.0)].reshape(64, 1).astype("f4")
    w = np.ones((1, 1), "f4")
    for policy, expected in ((FLOAT32_SUMS, 0.0), (FLOAT16_SUMS, np.inf)):
        net = nn.Dense(1, in_units=1, use_bias=False)
        net.initialize()
        net.weight.set_data(nd.array(w))
        amp.cast(net, policy)
        back_through(net, nd.array(x))
        assert net.weight.grad().asscalar() == expected


# ------------------------------------------------------------------------------- in a network


def test_a_transpose_of_more_than_matrices_is_refused_in_one_sentence():
    with pytest.raises(ValueError) as error:
        float16_sums.check("dot", {"transpose_a": "True"}, [(4, 2, 3), (4, 5)])
    assert str(error.value) == (
        "dot() of shapes (4, 2, 3) and (4, 5) with a transpose cannot accumulate in float16: "
        "transpose matrices only, or pin dot to float32."
    )
