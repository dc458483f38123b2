"""Pooling and so on behind what bfloat16 computes in float32: brought back to bfloat16 or not."""

import numpy as np
import pytest

from gluon_amp.graph import own_operators as own
from gluon_amp.lowering import lower
from gluon_amp.policy import Policy, cast_pass
from tests.lowering import ops
from tests.marks import needs_bfloat16, needs_layout

import mxnet as mx
from mxnet import nd

pytestmark = [needs_layout, needs_bfloat16, pytest.mark.cpu_kind]


def conv(data, name):
    return mx.sym.Convolution(data, name=name, kernel=(1, 1), num_filter=2, no_bias=True)


def pooled(h):
    return mx.sym.Pooling(h, kernel=(1, 1), global_pool=True, pool_type="avg", name="pool")


def adaptive(h):
    return mx.sym.contrib.AdaptiveAvgPooling2D(h, output_size=1, name="pool")


def lowered(symbol, policy="bfloat16"):
    policy = Policy.parse(policy)
    dtypes = cast_pass.parameter_dtypes(symbol, policy, ["data"])
    return lower(cast_pass.apply(symbol, policy, dtypes), dtypes, "cpu")


def operators(symbol, policy="bfloat16"):
    return ops(lowered(symbol, policy))


@pytest.mark.parametrize("pool", [pooled, adaptive])
def test_pooling_of_a_scaled_image_is_blocked(pool):
    symbol = conv(pool(conv(mx.sym.var("data"), "first") * 3 + 1), "last")
    ops = operators(symbol)
    assert (ops.count(own.POOL), ops.count(own.UNBLOCK)) == (1, 1)


def test_pooling_before_the_head_is_blocked():
    h = pooled(conv(mx.sym.var("data"), "first") * 3 + 1)
    h = mx.sym.Dropout(mx.sym.Flatten(h), p=0.2)
    assert own.POOL in operators(mx.sym.FullyConnected(h, name="head", num_hidden=2))


@pytest.mark.parametrize("pool", [pooled, adaptive])
def test_an_output_in_float32_is_pooled_in_float32(pool):
    assert own.POOL not in operators(pool(conv(mx.sym.var("data"), "first") * 3 + 1))


def test_what_a_sum_in_float32_reads_is_pooled_in_float32():
    h = pooled(conv(mx.sym.var("data"), "first") * 3 + 1)
    assert own.POOL not in operators(conv(mx.sym.broadcast_add(h, mx.sym.mean(h)), "last"))


@pytest.mark.parametrize("pin", [{"ops": ["Pooling"]}, {"blocks": ["pool"]}])
def test_pins_keep_float32(pin):
    symbol = conv(pooled(conv(mx.sym.var("data"), "first") * 3 + 1), "last")
    assert own.POOL in operators(symbol)
    assert own.POOL not in operators(symbol, Policy.parse("bfloat16").pin(**pin))


def test_pooling_that_the_layout_lacks_stays_float32():
    """Behind a sum over all channels, which is not blocked, an adaptive pooling has no kernel."""
    h = mx.sym.sum(conv(mx.sym.var("data"), "first"), axis=1, keepdims=True)
    ops = operators(conv(adaptive(h), "last"))
    assert "_contrib_AdaptiveAvgPooling2D" in ops


def test_a_chain_is_rounded_once():
    """(1.0078125 * 1.3 - 1.25) * 64 is 3.85, which bfloat16 rounds to 3.84375.

    With a product rounded to bfloat16 it would be 4, with rounded constants 3.65.
    """
    h = conv(mx.sym.var("data"), "first")
    symbol = conv(pooled((h * 1.3 - 1.25) * 64), "last")
    data = nd.full((1, 1, 2, 2), 1.0078125)
    weights = {"first_weight": nd.ones((2, 1, 1, 1)), "last_weight": nd.ones((2, 2, 1, 1))}
    arrays = {"data": data, **weights}
    actual = lowered(symbol).bind(mx.cpu(), arrays).forward()[0].asnumpy()
    np.testing.assert_array_equal(actual.ravel(), [2 * 3.84375] * 2)


def test_nothing_reads_a_result_twice_for_its_casts():
    """The casts to and from float32 that are no longer needed are gone."""
    h = conv(mx.sym.var("data"), "first")
    ops = operators(conv(adaptive(mx.sym.concat(h, conv(h, "second") * 3)), "last"))
    assert ops.count(own.FORK) == 1  # of the first convolution
    assert (ops.count(own.CONCAT), ops.count(own.POOL)) == (1, 1)
