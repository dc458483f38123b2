"""The character language models: what a prediction may depend on, norms, tied weights, dropout."""

import numpy as np
import pytest

from gluon_amp.training.networks.language_model import KINDS, LanguageModel, SplitLayerNorm

import mxnet as mx
from mxnet import autograd, nd


def model(kind="transformer", classes=7, **options):
    mx.random.seed(0)
    sizes = {"embedding": 8, "hidden": 8, "layers": 2, "heads": 2, "length": 6}
    net = LanguageModel(classes, kind, **{**sizes, **options})
    net.initialize(mx.init.Normal(0.5))
    net.hybridize()
    return net


def logits(net, codes):
    inputs = nd.array([codes], dtype="int32")
    return net(inputs, *net.begin(1, mx.cpu()))[0].asnumpy()[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_prediction_depends_on_earlier_characters_and_on_no_later_one(kind):
    net = model(kind)
    before, after = logits(net, [1, 2, 3, 4, 5, 6]), logits(net, [1, 2, 3, 0, 5, 6])
    np.testing.assert_array_equal(before[:3], after[:3])
    assert (np.abs(before - after)[3:].max(axis=1) > 1e-4).all()


def test_a_transformer_knows_the_places_of_its_characters():
    first, second = logits(model(layers=1), [3, 3])
    assert np.abs(first - second).max() > 1e-3


def test_a_split_norm_is_a_layer_norm():
    x = mx.random.normal(3, 2, shape=(4, 5))
    norms = SplitLayerNorm(in_channels=5), mx.gluon.nn.LayerNorm(in_channels=5)
    for norm in norms:
        norm.initialize()
        norm.gamma.set_data(nd.array([1, 2, 3, 4, 5]))
        norm.beta.set_data(nd.array([5, 4, 3, 2, 1]))
    one, other = (norm(x).asnumpy() for norm in norms)
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tied_prediction_has_the_weight_of_the_embedding(kind):
    net = model(kind, tied=True)
    assert net.decoder.weight is net.embedding.weight
    net.embedding.weight.set_data(nd.zeros((7, 8)))
    assert (logits(net, [1, 2]) == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_is_of_training_alone(kind):
    net, without = model(kind, dropout=0.5), model(kind)
    np.testing.assert_array_equal(logits(net, [1, 2, 3]), logits(without, [1, 2, 3]))
    with autograd.train_mode():
        assert (logits(net, [1, 2, 3]) != logits(net, [1, 2, 3])).any()
