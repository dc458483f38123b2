"""Checks without a loss scale: `check_finite=True`."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.trainer.loss_scale import FiniteCheck
from tests.trainer.helpers import parameter, values

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import nn


def step(trainer, p, factor):
    with autograd.record():
        loss = (p.data() * factor).sum()
    trainer.backward(loss)
    return trainer.step(1)


def net_and_trainer(**options):
    mx.random.seed(3)
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=3), nn.BatchNorm(in_channels=4), nn.Dense(1, in_units=4))
    net.initialize(mx.init.Xavier())
    settings = {"learning_rate": 0.1, "momentum": 0.9}
    return net, amp.Trainer(net.collect_params(), "sgd", settings, **options)


def train(net, trainer, batches):
    reports = []
    for batch in batches:
        with autograd.record():
            loss = net(batch).sum()
        trainer.backward(loss)
        reports.append(trainer.step(len(batch)).applied)
    return reports, {name: p.data().asnumpy() for name, p in net.collect_params().items()}


def batches(*bad):
    random = np.random.RandomState(0)
    values = [random.normal(size=(5, 3)) for _ in range(4)]
    for number in bad:
        values.insert(number, np.full((5, 3), np.inf))
    return [nd.array(one) for one in values]


def test_the_gradients_of_sound_steps_are_those_without_a_check():
    checked, plain = net_and_trainer(check_finite=True), net_and_trainer()
    assert isinstance(checked[1].loss_scale, FiniteCheck)
    (_, with_check), (_, without) = (train(*one, batches()) for one in (checked, plain))
    for one, other in zip(with_check.values(), without.values()):
        np.testing.assert_array_equal(one, other)


def test_a_step_that_is_not_finite_leaves_no_trace():
    applied, with_bad = train(*net_and_trainer(check_finite=True), batches(0, 2))
    assert applied == [False, True, False, True, True, True]
    _, without = train(*net_and_trainer(), batches())
    for one, other in zip(with_bad.values(), without.values()):
        np.testing.assert_array_equal(one, other)


def test_the_report_names_the_parameter_and_scale_1():
    p = parameter("p", [1.0], "float32")
    trainer = amp.Trainer([p], "sgd", {"learning_rate": 0.5}, check_finite=True)
    report = step(trainer, p, np.inf)
    assert (report.applied, report.overflow) == (False, ("p",))
    assert (report.loss_scale, report.next_loss_scale) == (1.0, 1.0)
    assert values(p)[0] == 1.0


def test_steps_that_never_become_finite_end_the_training():
    p = parameter("p", [1.0], "float32")
    trainer = amp.Trainer([p], "sgd", check_finite=True, max_consecutive_skips=3)
    step(trainer, p, np.nan)
    step(trainer, p, np.nan)
    with pytest.raises(FloatingPointError, match="3 steps .* without a loss scale to lower"):
        step(trainer, p, np.nan)


def test_a_loss_that_ignores_its_head_gradient_needs_no_scale():
    p = parameter("p", [1.0, 2.0], "float32")
    trainer = amp.Trainer([p], "sgd", {"learning_rate": 0.5}, check_finite=True)
    with autograd.record():
        loss = nd.SoftmaxOutput(p.data().reshape((1, 2)), nd.array([0]))
    trainer.backward(loss)
    assert trainer.step(1).applied


def test_a_loss_scale_keeps_its_check():
    p = parameter("p", [1.0])
    with pytest.raises(ValueError, match="check_finite=False cannot be used with a loss scale"):
        amp.Trainer([p], "sgd", check_finite=False)
    assert amp.Trainer([p], "sgd", check_finite=True).loss_scale.scale == 2.0**16
    assert not amp.Trainer([p], "sgd", loss_scale=None, check_finite=False).scaling
    with pytest.raises(TypeError, match="check_finite must be True, False or None"):
        amp.Trainer([p], "sgd", check_finite="yes")


def test_a_stock_trainer_gets_the_check():
    p = parameter("p", [1.0], "float32")
    trainer = mx.gluon.Trainer([p], "sgd", {"learning_rate": 0.5})
    amp.init_trainer(trainer, check_finite=True)
    assert not step(trainer, p, np.inf).applied
    assert step(trainer, p, 1.0).applied and values(p)[0] == 0.5
