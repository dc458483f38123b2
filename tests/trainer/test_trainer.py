"""The Trainer's constructor, and what it has in common with gluon.Trainer."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp import DynamicLossScale, Trainer
from gluon_amp.casting import statistics
from gluon_amp.casting.parameters import bind_parameter
from gluon_amp.trainer import StepReport
from gluon_amp.trainer.loss_scale import NoLossScale
from tests.casting.nets import small_net
from tests.trainer.helpers import parameter, run, values

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

inf = np.inf


def test_the_default_scale_goes_by_dtype():
    def scale_for(param):
        return type(Trainer([param], "sgd").loss_scale)

    assert scale_for(parameter("half", [1.0])) is DynamicLossScale
    assert scale_for(parameter("single", [1.0], "float32")) is NoLossScale
    cast = parameter("cast", [1.0], "float32")
    bind_parameter(cast, "float16")
    assert scale_for(cast) is DynamicLossScale
    bind_parameter(cast, "bfloat16")
    assert scale_for(cast) is NoLossScale


def test_loss_scale_argument():
    p = parameter("p", [1.0])
    assert Trainer([p], "sgd", loss_scale=128).loss_scale.scale == 128.0
    assert isinstance(Trainer([p], "sgd", loss_scale=None).loss_scale, NoLossScale)
    with pytest.raises(ValueError, match="power of two"):
        Trainer([p], "sgd", loss_scale=100)


def test_without_a_scale_it_is_a_gluon_trainer():
    results = []
    for make in (gluon.Trainer, Trainer):
        mx.random.seed(1)
        net = nn.Dense(2, in_units=3)
        net.initialize(mx.init.One())
        trainer = make(net.collect_params(), mx.optimizer.SGD(learning_rate=0.1, momentum=0.9))
        for _ in range(3):
            with autograd.record():
                loss = (net(nd.ones((2, 3))) ** 2).sum()
            loss.backward()
            trainer.step(2)
        results.append(values(net.weight))
    np.testing.assert_array_equal(*results)


def test_without_a_scale_nothing_is_checked(monkeypatch):
    p = parameter("p", [1.0], "float32")
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0})
    monkeypatch.setattr(statistics, "begin_backward", None)
    assert run(trainer, [(p, [inf])]) == StepReport(True, 1.0, 1.0)
    assert values(p)[0] == -inf


# ------------------------------------------------------------------------------ public faces


def test_masters_are_those_of_float16_weights_that_were_updated():
    p, q = parameter("p", [1.0]), parameter("q", [1.0], "float32")
    trainer = Trainer([p, q], "sgd", loss_scale=8)
    assert list(trainer.masters()) == []
    run(trainer, [(p, [0.5]), (q, [0.5])])
    ((key, weight, master),) = trainer.masters()
    assert key == (0, 0)
    assert weight is p.data()
    master[:] = 0.25
    weight[:] = 0.25
    assert trainer.master_params()["p"].asnumpy().item() == 0.25


# ------------------------------------------------------------------------------ with a cast net


def batch(seed, n=16):
    random = np.random.RandomState(seed)
    labels = random.randint(0, 4, n)
    pixels = random.normal(size=(n, 3, 8, 8)) + labels[:, None, None, None]
    return nd.array(pixels), nd.array(labels)


@pytest.mark.parametrize(
    "policy, optimizer, settings, unit",
    [
        ("float16", "adam", {"learning_rate": 0.01}, 2**-11),
        ("bfloat16", "sgd", {"learning_rate": 0.1, "momentum": 0.9}, 2**-8),
    ],
)
def test_twenty_steps_match_float32(policy, optimizer, settings, unit):
    loss_fn, start, results = gluon.loss.SoftmaxCrossEntropyLoss(), small_net(), {}
    for name in ("float32", policy):
        net, losses = small_net(), []
        for p, q in zip(net.collect_params().values(), start.collect_params().values()):
            p.set_data(q.data())
        amp.cast(net, name)
        trainer = Trainer(net.collect_params(), optimizer, dict(settings), loss_scale=2.0**8)
        for k in range(20):
            x, y = batch(k)
            with autograd.record():
                loss = loss_fn(net(x), y)
            trainer.backward(loss)
            assert trainer.step(len(x)).applied
            losses.append(loss.mean().asscalar())
        results[name] = losses, net[5].weight.data().asnumpy().astype("float32")
    (expected, weight), (found, low) = results["float32"], results[policy]
    assert expected[-1] < 0.9 * expected[0]  # the net learns
    assert np.abs(np.subtract(found, expected)).max() < 32 * unit
    assert np.abs(weight - low).max() < 32 * unit
    assert not np.array_equal(weight, low)
