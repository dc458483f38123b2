"""LARS and LAMB: norms and rates of layers, and the momentum of LARS when the rate changes."""

import numpy as np

from gluon_amp import optimizer
from tests.optimizer.reference import Named, build

import mxnet as mx
from mxnet import nd


def test_lars_leaves_biases_and_normalization_at_the_plain_rate():
    built, updater = build("lars", learning_rate=0.5, momentum=0.0, eta=0.25)
    names = ["d_weight", "d_bias", "n_gamma", "n_beta"]
    built.param_dict = {i: Named(name) for i, name in enumerate(names)}
    weights = [nd.full((4,), 2.0, dtype="float16") for _ in names]
    updater([0, 1, 2, 3], [nd.ones((4,), dtype="float16")] * 4, weights)
    # |w| = 4, |g| = 2: rate 0.5 · 0.25 · 2
    assert [float(w.asnumpy()[0]) for w in weights] == [1.75, 1.5, 1.5, 1.5]


def test_lamb_takes_the_norms_of_the_masters_also_above_256():
    for value, expected in [(300.0, 270.0), (1.0001, 0.90009)]:
        _, updater = build("lamb", learning_rate=0.1)
        weight = nd.zeros((10,), dtype="float16")
        updater([0], [nd.zeros((10,), dtype="float16")], [weight])
        updater.states[0][0][:] = value
        updater([0], [nd.ones((10,), dtype="float16")], [weight])
        np.testing.assert_allclose(updater.states[0][0].asnumpy(), expected, rtol=1e-5)


def test_lamb_without_a_bias_correction_and_with_a_lower_bound():
    # m = 0.1, v = 0.001, d = m / sqrt(v) = 3.162; |w| = 0.5 counts as 1
    _, updater = build("lamb", learning_rate=0.1, bias_correction=False, lower_bound=1.0)
    weight = nd.array([0.5])
    updater([0], [nd.ones((1,))], [weight])
    np.testing.assert_allclose(weight.asnumpy(), [0.4], rtol=1e-5)


def test_lars_norm_of_a_large_float16_gradient_does_not_overflow():
    built, updater = build("lars", learning_rate=1.0, momentum=0.0, eta=1.0)
    built.rescale_grad = 1 / 32768
    weight = nd.ones((10,), dtype="float16")
    updater([0], [nd.full((10,), 32768.0, dtype="float16")], [weight])
    np.testing.assert_allclose(weight.asnumpy(), 0.0, atol=1e-6)


def test_lars_corrects_the_momentum_of_each_device_and_dtype_when_the_rate_changes():
    built = optimizer.create("lars", learning_rate=0.5, momentum=0.5, eta=1.0)
    updaters = [mx.optimizer.get_updater(built) for _ in range(2)]
    weights = [
        [nd.ones((4,), ctx=mx.cpu(device), dtype=dtype) for dtype in ("float16", "float32")]
        for device in range(2)
    ]
    for rate in (0.5, 0.25, 0.25, 0.0, 0.5):
        built.lr = rate
        for updater, own in zip(updaters, weights):
            updater([0, 1], [nd.ones_like(weight) for weight in own], own)
    # |g| = 2 and |w| = 2 w, so the first step is 0.5: 1 -> 0.5. The next has momentum 0.5 * 0.5 and
    # rate 0.25 * 0.5: 0.5 - 0.125 - 0.125. The third: momentum 0.5, rate 0.25 * 0.25. The fourth
    # has neither. The fifth has nothing to continue, and cannot divide by the rate before it.
    expected = (0.25 - 0.125 - 0.0625) * 0.5
    for own in weights:
        for weight in own:
            np.testing.assert_allclose(weight.asnumpy(), expected, rtol=1e-3)
