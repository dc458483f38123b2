"""The Trainer's constructor, and what it has in common with gluon.Trainer."""

import numpy as np
import pytest

from gluon_amp import DynamicLossScale, Trainer, optimizer
from gluon_amp.casting import statistics
from gluon_amp.casting.parameters import bind_parameter
from gluon_amp.trainer import ScaledSteps, StepReport
from gluon_amp.trainer.loss_scale import NoLossScale
from gluon_amp.trainer.report import Skips
from tests import kinds
from tests.trainer.helpers import parameter, run, values

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn

pytestmark = pytest.mark.usefixtures("arrays")  # Law 13

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


def test_any_mxnet_optimizer_by_name():
    for name in ("rmsprop", "adagrad", "signum", "ftml", "nadam", "adadelta", "adamax"):
        p = parameter("p", [1.0])
        trainer = Trainer([p], name, loss_scale="dynamic")
        assert run(trainer, [(p, [0.5])]).applied
        assert not run(trainer, [(p, [inf])]).applied
        (master,) = trainer.master_params().values()
        assert master.dtype == np.float32
        assert master.asnumpy().item() != 1.0
        assert np.float16(master.asnumpy().item()) == values(p)[0]


def test_without_a_scale_it_is_a_gluon_trainer():
    results = []
    for make in (gluon.Trainer, Trainer):
        mx.random.seed(1)
        net = nn.Dense(2, in_units=3)
        net.initialize(mx.init.One())
        trainer = make(net.collect_params(), mx.optimizer.SGD(learning_rate=0.1, momentum=0.9))
        for _ in range(3):
            with autograd.record():
                loss = (net(kinds.ones((2, 3))) ** 2).sum()
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

OVERRIDDEN = ["allreduce_grads", "load_states", "save_states", "step", "update"]


def test_public_names_are_not_those_of_another_trainer():
    p = parameter("p", [1.0])
    stock = gluon.Trainer([p], "sgd")
    theirs = {*dir(stock), "root_rank", "compression"}  # the last two are BytePS's
    public = {name for name in dir(ScaledSteps) if not name.startswith("_")}
    assert sorted(public & theirs) == OVERRIDDEN


def test_parameters_statistics_devices_and_factor():
    p, q = parameter("p", [1.0]), parameter("q", [1.0], differentiable=False)
    trainer = Trainer([p, q], optimizer.SGD(rescale_grad=0.5))
    assert trainer.parameters == [p, q]
    assert trainer.statistics == [q]
    assert trainer.contexts == [mx.cpu()]
    assert (trainer.scaling, trainer.rescale, trainer.skips) == (True, 0.5, Skips())
    assert [grad is p.grad() for grad in trainer.gradients()] == [True]


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


def test_what_users_receive_is_of_the_kind_of_their_parameters():
    p, q = parameter("p", [1.0]), parameter("q", [1.0], "float32")
    trainer = Trainer([p, q], "sgd", loss_scale=8)
    for _ in range(2):  # before and after the first update
        given = [*trainer.gradients(), *trainer.master_params().values()]
        assert {type(one) for one in given} == {type(p.data())} == {type(p.grad())}
        run(trainer, [(p, [0.5]), (q, [0.5])])
    assert type(p.data()) is type(kinds.ones(1))
