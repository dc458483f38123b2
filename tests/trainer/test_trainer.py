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
from tests.trainer.helpers import TWO, backward, parameter, run, values

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

LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


def batch(seed, n=16):
    random = np.random.RandomState(seed)
    labels = random.randint(0, 4, n)
    pixels = random.normal(size=(n, 3, 8, 8)) + labels[:, None, None, None]
    return nd.array(pixels), nd.array(labels)


def twin_of(net):
    """Return a stock net with the same parameters; a stock deep copy would not train."""
    twin = small_net()
    for p, q in zip(twin.collect_params().values(), net.collect_params().values()):
        p.set_data(q.data())
    return twin


def step(net, trainer, x, y):
    contexts = net[5].weight.list_ctx()
    parts = zip(*(gluon.utils.split_and_load(one, contexts) for one in (x, y)))
    with autograd.record():
        losses = [LOSS(net(a), b) for a, b in parts]
    trainer.backward(losses)
    return trainer.step(len(x))


@pytest.mark.parametrize(
    "policy, optimizer, unit", [("float16", "adam", 2**-11), ("bfloat16", "sgd", 2**-8)]
)
def test_twenty_steps_match_float32(policy, optimizer, unit):
    start, results = small_net(), {}
    settings = {"sgd": {"learning_rate": 0.1, "momentum": 0.9}, "adam": {"learning_rate": 0.01}}
    for name in ("float32", policy):
        net = amp.cast(twin_of(start), name)
        trainer = Trainer(net.collect_params(), optimizer, settings[optimizer], loss_scale=2.0**8)
        losses = []
        for k in range(20):
            x, y = batch(k)
            assert step(net, trainer, x, y).applied
            losses.append(float(LOSS(net(x), y).mean().asscalar()))
        results[name] = losses, net[5].weight.data().asnumpy().astype("float32")
    (expected, weight), (got, low) = results["float32"], results[policy]
    assert expected[-1] < 0.9 * expected[0]  # the net learns
    assert np.abs(np.subtract(got, expected)).max() < 32 * unit
    assert np.abs(weight - low).max() < 32 * unit
    assert not np.array_equal(weight, low)


def test_masters_carry_an_update_of_1e_8_that_float16_weights_cannot():
    net = nn.Dense(1, in_units=1, use_bias=False)
    net.initialize(mx.init.Constant(1e-3))
    amp.cast(net, "float16")
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-8}, loss_scale=64)
    found = []
    for _ in range(20):
        backward(trainer, net, nd.ones((1, 1)))
        assert trainer.step(1).applied
        (master,) = trainer.master_params().values()
        found.append(master.asnumpy().item())
    assert 19 * 0.98e-8 < found[0] - found[-1] < 19 * 1.02e-8


def test_two_devices_train_as_one():
    start, results = small_net(), []
    for contexts in ([mx.cpu(0)], TWO):
        net = twin_of(start)
        net[1]._kwargs["use_global_stats"] = True  # statistics are per device
        net.collect_params().reset_ctx(contexts)
        amp.cast(net, "float16")
        trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, loss_scale=2.0**8)
        for k in range(3):
            assert step(net, trainer, *batch(k)).applied
        results.append(trainer.master_params()["net_dense0_weight"].asnumpy())
    assert np.abs(results[0] - results[1]).max() < 1e-3
