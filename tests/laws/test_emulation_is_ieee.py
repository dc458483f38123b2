"""Law 7: the emulation rounds as IEEE 754 says, and a product is rounded once."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.base.formats import FORMATS
from gluon_amp.lowering import lower
from gluon_amp.policy import Policy, cast_pass
from tests.float_values import beside, every_value

import mxnet as mx
from mxnet import nd
from mxnet.gluon import nn


def halves(*shape, seed=0):
    values = np.random.RandomState(seed).normal(size=shape)
    return values.astype(np.float16).astype(np.float32)


def test_every_value_midpoint_and_neighbour():
    values = np.concatenate([every_value(FORMATS["float16"]), [np.nan]]).astype(np.float32)
    with np.errstate(over="ignore"):
        values = np.concatenate([values, beside(values[np.isfinite(values)])]).astype(np.float32)
        expected = values.astype(np.float16).astype(np.float32)
    assert len(np.unique(expected)) > 63_000
    # an operator that runs in float16 and returns its input
    symbol = mx.sym.amp_cast(mx.sym.var("x"), dtype="float16") * 1.0
    dtypes = {"x": "float32"}
    symbol = lower(cast_pass.apply(symbol, Policy.parse("float16"), dtypes), dtypes, "cpu")
    (actual,) = symbol.eval(ctx=mx.cpu(), x=nd.array(values))
    number = ~np.isnan(expected)
    assert np.array_equal(np.isnan(actual.asnumpy()), ~number)
    assert np.array_equal(actual.asnumpy()[number].view("u4"), expected[number].view("u4"))


@pytest.mark.parametrize(
    "layer, shape",
    [
        (lambda: nn.Dense(5, use_bias=False, in_units=7), (2, 7)),
        (lambda: nn.Conv2D(5, 3, use_bias=False, in_channels=3), (2, 3, 6, 6)),
    ],
    ids=["dense", "convolution"],
)
def test_a_product_is_the_float32_result_rounded_once(layer, shape):
    net = layer()
    net.initialize(mx.init.Zero())
    # Powers of two and small integers: the float32 sums are exact in any order.
    random = np.random.RandomState(0)
    net.weight.set_data(nd.array(random.randint(-40, 41, net.weight.shape)))
    x = nd.array(random.randint(-40, 41, shape))
    plain = net(x).asnumpy()
    assert np.abs(plain).max() > 2048  # beyond the integers that float16 holds
    actual = amp.cast(net, "float16")(x).asnumpy()
    np.testing.assert_array_equal(actual, plain.astype("float16").astype("float32"))
    assert not np.array_equal(actual, plain)
