"""The engine that trains a language model on chunks of text."""

import math

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.training.data.text import CLASSES, Chunks
from gluon_amp.training.networks.language_model import LanguageModel
from gluon_amp.training.runs.engines.language import LanguageEngine
from gluon_amp.training.runs.history import Counts
from gluon_amp.training.runs.meters import Mean

import mxnet as mx


def engine(dtype="float32", devices=1, clip=None, rate=0.01, keeps_masters=True, **trainer):
    mx.random.seed(0)
    contexts = [mx.cpu(number) for number in range(devices)]
    net = LanguageModel(CLASSES, "lstm", embedding=8, hidden=16, layers=2)
    net.initialize(mx.init.Xavier(), ctx=contexts)
    amp.cast(net, dtype)
    net.hybridize(static_alloc=True)
    sgd = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": rate}, **trainer)
    return LanguageEngine(net, sgd, contexts, clip, keeps_masters)


def chunks_of_noise(streams=4, length=5, number=3):
    codes = np.random.default_rng(0).integers(0, CLASSES, streams * length * number + 1)
    return list(Chunks(codes, streams, length, whole=True))


def test_states_are_carried_on_and_begin_with_zeros():
    """Predicting in chunks is predicting at once."""
    one = engine()
    codes = np.random.default_rng(0).integers(0, CLASSES, 61)
    several, whole = (Chunks(codes, 4, length, whole=True) for length in (5, 15))

    def predicted(chunks):
        losses = Mean()
        for chunk in chunks:
            for labels, outputs in one.predict(chunk):
                losses.update(one.cross_entropy(labels, outputs))
        return losses.value

    def logits(chunks):
        parts = [out.asnumpy() for chunk in chunks for _, out in one.predict(chunk)]
        return np.concatenate([p.reshape(4, -1, CLASSES) for p in parts], axis=1)

    assert len(several) == 3 and len(whole) == 1
    np.testing.assert_allclose(logits(several), logits(whole), rtol=1e-4, atol=1e-6)
    nats = predicted(several)
    np.testing.assert_array_equal(logits(several), logits(several))  # the second from zeros again
    assert predicted(whole) == pytest.approx(nats, rel=1e-5)
    assert nats == pytest.approx(math.log(CLASSES), rel=0.01)  # it has learned nothing yet


def test_a_state_goes_on_on_other_devices():
    first, second, _ = chunks_of_noise(streams=5)
    states = []
    for devices in (1, 2, 3):
        one = engine(rate=0.0, devices=1)
        one.step([first], 0, 0, Counts())
        state = one.state()
        assert np.shape(state) == (2, 2, 5, 16)  # of two kinds, in two layers
        other = engine(rate=0.0, devices=devices)
        other.restore(state)
        assert other.state() == state
        other.step([second], 0, 1, Counts())
        states.append(other.state())
    for state in states[1:]:
        np.testing.assert_allclose(state, states[0], rtol=1e-5, atol=1e-7)


def test_the_emulated_lstm_rounds_what_goes_in_and_comes_out():
    outputs = []
    for dtype in ("float32", "float16"):
        mx.random.seed(0)
        lstm = mx.gluon.rnn.LSTM(16, input_size=8)
        lstm.initialize(mx.init.Uniform(1.0))
        for param in lstm.collect_params().values():
            param.set_data(param.data().astype("float16").astype("float32"))
        amp.cast(lstm, dtype)
        inputs = mx.nd.random.normal(shape=(40, 2, 8)).astype("float16").astype("float32")
        outputs.append(lstm(inputs).asnumpy())
    single, half = outputs
    assert (single != half).any()
    rounded = single.astype("float16").astype("float32")
    # the sums have another order, which may decide between two neighbours
    np.testing.assert_allclose(rounded, half, rtol=2.0**-10, atol=2.0**-24)
    assert (rounded != half).mean() < 0.01


def test_clipping_is_of_the_gradient_of_the_mean_loss_without_its_scale():
    norms = []
    for dtype, trainer in (("float32", {}), ("float16", {"loss_scale": 64.0})):
        one = engine(dtype, clip=1e-3, rate=1.0, **trainer)
        before = [p.data().asnumpy().astype("f8") for p in one.net.collect_params().values()]
        report = one.step([chunks_of_noise()[0]], 0, 0, Counts())
        after = [p.data().asnumpy().astype("f8") for p in one.net.collect_params().values()]
        assert report.applied and report.grad_norm > 0.01
        norms.append(report.grad_norm)
        if dtype == "float32":
            moved = math.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(after, before)))
            assert moved == pytest.approx(1e-3, rel=0.01)
    assert norms[1] == pytest.approx(norms[0], rel=0.01)


def test_without_masters_they_are_the_float16_weights():
    same = {}
    for keeps_masters in (True, False):
        one = engine("float16", rate=1e-3, keeps_masters=keeps_masters, loss_scale=64.0)
        weight = one.net.decoder.weight
        for chunk in chunks_of_noise():
            one.step([chunk], 0, 0, Counts())
        master = one.trainer.master_params()[weight.name].asnumpy()
        same[keeps_masters] = (master == weight.data().asnumpy()).mean()
    assert same[True] < 0.5 and same[False] == 1


def test_a_skipped_step_leaves_the_states_as_they_were():
    one = engine("float16", loss_scale=amp.DynamicLossScale(2.0**15))
    first, second, _ = chunks_of_noise()
    one.trainer.loss_scale.scale = 1.0
    counts = Counts()
    assert one.step([first], 0, 0, counts).applied
    before = one.state()
    assert np.abs(before).min() > 0
    losses = counts.loss.images
    one.trainer.loss_scale.scale = 2.0**24  # too much for float16's gradients
    assert not one.step([second], 0, 1, counts).applied
    assert one.state() == before
    assert (counts.loss.images, counts.accuracy.images) == (losses, 2 * second.labels.size)
