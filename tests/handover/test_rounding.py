"""How far rounding explains a difference: it is found, and is not much more than it is."""

import numpy as np

from gluon_amp.handover.network import network_of
from gluon_amp.handover.rounding import distance, effect_of_rounding

import mxnet as mx
from mxnet.gluon import nn


def bounds_of(net, data):
    """Return a network's outputs, and the effect of rounding on them."""
    net.initialize(mx.init.Normal(1))
    network = network_of(net, (data,), "test")
    values = network.run(network.inputs)
    return network, values, effect_of_rounding(network, network.inputs)


def product_one_by_one(data, weight):
    """Return the product of rows by rows, whose terms are added one after the other."""
    return sum(data[:, k : k + 1] * weight[:, k] for k in range(data.shape[1]))


def test_a_product_of_many_terms():
    data = mx.nd.array(np.random.RandomState(0).normal(size=(8, 4096)))
    network, (value,), (bound,) = bounds_of(nn.Dense(16, use_bias=False), data)
    (weight,) = network.parameters.values()
    exact = data.asnumpy().astype(np.float64) @ weight.astype(np.float64).T
    one_by_one = product_one_by_one(data.asnumpy(), weight)
    assert 1e-7 < distance(one_by_one, exact) / np.abs(exact).max() < 1e-5
    assert distance(one_by_one, value) < bound < 100 * distance(one_by_one, exact)


def test_what_follows_a_long_sum_amplifies_its_roundings():
    data = mx.nd.array(np.random.RandomState(0).normal(size=(8, 65536)))
    net = nn.HybridSequential()
    net.add(nn.Dense(16, use_bias=False), nn.HybridLambda(lambda F, x: F.sin(x)))
    network, (value,), (bound,) = bounds_of(net, data)
    (weight,) = network.parameters.values()
    one_by_one = product_one_by_one(data.asnumpy(), weight)
    assert distance(np.sin(one_by_one), value) < bound < 0.02


def test_a_mean_of_many_positive_elements():
    data = mx.nd.array(np.random.RandomState(0).uniform(size=(2, 3, 512, 512)))
    _, (value,), (bound,) = bounds_of(nn.GlobalAvgPool2D(), data)
    exact = data.asnumpy().astype(np.float64).mean(axis=(2, 3), keepdims=True)
    assert 1e-7 < distance(value, exact) < bound < 1e-3  # MXNet adds one after the other


def test_places_in_a_large_image_are_rounded():
    data = mx.nd.array(np.random.RandomState(0).normal(size=(1, 1, 2, 4001)))
    net = nn.HybridLambda(lambda F, x: F.contrib.BilinearResize2D(x, height=2, width=2999))
    _, (value,), (bound,) = bounds_of(net, data)
    places = np.arange(2999) * (4000 / 2998)
    exact = np.interp(places, np.arange(4001), data.asnumpy()[0, 0, 0])
    assert 1e-5 < distance(value[0, 0, 0], exact) < bound < 1e-2


def test_tokens_stay_and_infinities_are_equal():
    tokens = mx.nd.array([3, 0, 6])
    _, (value,), (bound,) = bounds_of(nn.Embedding(7, 2), tokens)
    assert 0 < bound < 1e-4 * np.abs(value).max()
    mask = np.array([-np.inf, 1.0], np.float32)
    assert distance(mask, mask) == 0
    assert distance(mask, -mask) == np.inf
    assert distance(mask, np.array([-np.inf, 1.5])) == 0.5
    assert distance(mask, np.array([-np.inf, np.nan])) == np.inf
