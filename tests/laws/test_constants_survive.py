"""Law 11: a constant that the compute dtype cannot hold keeps its operator in float32."""

import numpy as np
import pytest

import gluon_amp as amp

import mxnet as mx
from mxnet import nd
from mxnet.gluon import nn

# What a net adds, clips, masks or pads with, data, and the result in float32
CASES = {
    "an epsilon": (lambda F, x: F.log(F.relu(x) + 1e-12), -1.0, np.log(1e-12)),
    "a norm's epsilon": (lambda F, x: F.sqrt(F.square(x) + 1e-10), 0.0, 1e-5),
    "a mask": (lambda F, x: F.where(x > 0, x, x * 0 - 1e9), -1.0, -1e9),
    "a clip bound": (lambda F, x: F.clip(x, 1e-9, 1), -1.0, 1e-9),
    "a large clip bound": (lambda F, x: F.clip(x * 1e6, -1e6, 1e6), 5.0, 1e6),
    "a quotient": (lambda F, x: x / 1e-8, 1.0, 1e8),
}


@pytest.mark.parametrize("policy", ["float16", "mixed_float16"])
@pytest.mark.parametrize("name", CASES)
def test_a_constant(name, policy):
    function, value, expected = CASES[name]
    net = nn.HybridSequential()
    net.add(nn.Dense(1, in_units=1, use_bias=False), nn.HybridLambda(function))
    net.initialize(mx.init.One())
    out = amp.cast(net, policy)(nd.array([[value]])).asscalar()
    assert out == pytest.approx(expected, rel=1e-3)


def test_a_padding_value():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(1, 1, in_channels=1, use_bias=False))
    net.add(
        nn.HybridLambda(
            lambda F, x: F.pad(x, "constant", (0, 0, 0, 0, 1, 1, 1, 1), constant_value=-1e30)
        )
    )
    net.initialize(mx.init.One())
    out = amp.cast(net, "float16")(nd.ones((1, 1, 2, 2))).asnumpy()
    assert out.min() == np.float32(-1e30)


def test_a_constant_that_fits_stays_in_float16():
    net = nn.HybridSequential()
    net.add(nn.Dense(1, in_units=1, use_bias=False), nn.HybridLambda(lambda F, x: x + 0.5))
    net.initialize(mx.init.One())
    rows = amp.describe(amp.cast(net, "float16"), nd.ones((1, 1))).rows
    assert {row.compute_dtype for row in rows} == {"float16"}
