"""LARS and LAMB: norms and rates of layers."""

import numpy as np

from tests.optimizer.reference import Named, build

from mxnet import nd


def test_lars_leaves_biases_and_normalization_at_the_plain_rate():
    built, updater = build("lars", learning_rate=0.5, momentum=0.0, eta=0.25)
    built.param_dict = {0: Named("d_weight"), 1: Named("d_bias"), 2: Named("n_gamma")}
    weights = [nd.full((4,), 2.0, dtype="float16") for _ in range(3)]
    updater([0, 1, 2], [nd.ones((4,), dtype="float16")] * 3, weights)
    # |w| = 4, |g| = 2: rate 0.5 · 0.25 · 2
    assert [float(w.asnumpy()[0]) for w in weights] == [1.75, 1.5, 1.5]


def test_lamb_takes_the_norms_of_the_masters_also_above_256():
    for value, expected in [(300.0, 270.0), (1.0001, 0.90009)]:
        _, updater = build("lamb", learning_rate=0.1)
        weight = nd.zeros((10,), dtype="float16")
        updater([0], [nd.zeros((10,), dtype="float16")], [weight])
        updater.states[0][0][:] = value
        updater([0], [nd.ones((10,), dtype="float16")], [weight])
        np.testing.assert_allclose(updater.states[0][0].asnumpy(), expected, rtol=1e-5)


def test_lars_norm_of_a_large_float16_gradient_does_not_overflow():
    built, updater = build("lars", learning_rate=1.0, momentum=0.0, eta=1.0)
    built.rescale_grad = 1 / 32768
    weight = nd.ones((10,), dtype="float16")
    updater([0], [nd.full((10,), 32768.0, dtype="float16")], [weight])
    np.testing.assert_allclose(weight.asnumpy(), 0.0, atol=1e-6)
