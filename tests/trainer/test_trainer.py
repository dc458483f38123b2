"""The Trainer's constructor, and what it has in common with gluon.Trainer."""

import numpy as np
import pytest

from gluon_amp import DynamicLossScale, Trainer, cast
from gluon_amp.casting import statistics
from gluon_amp.casting.parameters import bind_parameter
from gluon_amp.trainer import StepReport
from gluon_amp.trainer.loss_scale import NoLossScale
from tests.trainer.helpers import parameter, run, values

import mxnet as mx
from mxnet import autograd, gluon
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


# Our SGD with momentum, and MXNet's optimizers of which ours differ in the last bits
AS_STOCK = {
    "sgd": lambda: ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}),
    "SGD": lambda: (mx.optimizer.SGD(learning_rate=0.1, wd=0.01),),
    "NAG": lambda: (mx.optimizer.NAG(learning_rate=0.1, momentum=0.9, wd=0.01),),
    "Adam": lambda: (mx.optimizer.Adam(learning_rate=0.1),),
}


@pytest.mark.parametrize("optimizer", AS_STOCK)
def test_in_float32_it_is_a_gluon_trainer_bit_for_bit(optimizer):
    results = []
    for make in (gluon.Trainer, Trainer):
        mx.random.seed(1)
        net = nn.HybridSequential()
        net.add(nn.Dense(9, in_units=3), nn.BatchNorm(in_channels=9), nn.Dense(5, in_units=9))
        net.initialize(mx.init.Xavier())
        trainer = make(cast(net, "float32").collect_params(), *AS_STOCK[optimizer]())
        for _ in range(3):
            with autograd.record():
                loss = (net(mx.nd.random.normal(shape=(7, 3))) ** 2).sum()
            loss.backward() if make is gluon.Trainer else trainer.backward(loss)
            trainer.step(7)
        results.append(np.concatenate([values(p).ravel() for p in net.collect_params().values()]))
    np.testing.assert_array_equal(*results)


def test_without_a_scale_nothing_is_checked(monkeypatch):
    p = parameter("p", [1.0], "float32")
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0})
    monkeypatch.setattr(statistics, "begin_backward", None)
    assert run(trainer, [(p, [inf])]) == StepReport(True, 1.0, 1.0)
    assert values(p)[0] == -inf
