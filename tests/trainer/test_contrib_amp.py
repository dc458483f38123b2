"""The spelling of `mxnet.contrib.amp`, on stock trainers and those of other projects."""

import numpy as np
import pytest

from gluon_amp import DynamicLossScale, Trainer
from gluon_amp.trainer.contrib_amp import init_trainer, scale_loss, unscale
from tests.trainer.helpers import TWO, Reducing, losses_on, parameter, run, values

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

inf = np.inf


def test_init_trainer_keeps_another_trainers_reduction_and_factor():
    p = parameter("p", [1.0])
    trainer = Reducing([p], mx.optimizer.SGD(learning_rate=1.0, multi_precision=True))
    init_trainer(trainer)
    assert isinstance(trainer, Reducing)
    assert trainer.loss_scale.scale == 65536.0
    trainer.loss_scale.load_state_dict(DynamicLossScale(8).state_dict())
    for _ in range(2):
        assert run(trainer, [(p, [0.25])]).applied
    assert (values(p)[0], trainer.reductions, trainer.rescale) == (0.5, 2, 0.5)
    assert not run(trainer, [(p, [inf])]).applied
    assert values(p)[0] == 0.5


def test_stale_gradients_count_where_another_class_reduces_them():
    used, unused = parameter("used", [1.0]), parameter("unused", [1.0])
    sgd = mx.optimizer.SGD(learning_rate=0.5, multi_precision=True)
    trainer = Reducing([used, unused], sgd)
    init_trainer(trainer, loss_scale=8)
    unused.grad()[:] = inf  # stale here, but it may have been another worker's
    run(trainer, [(used, [0.5])], step=False)
    assert trainer.step(1, ignore_stale_grad=True).overflow == ("unused",)
    run(trainer, [(used, [0.5])], step=False)
    assert trainer.step(1, ignore_stale_grad=True).applied
    assert (values(used)[0], values(unused)[0]) == (0.75, 1.0)


@pytest.mark.parametrize("options", [{"loss_scale": "dynamic"}, {"check_finite": True}])
def test_init_trainer_on_a_stock_trainer_of_two_devices_moves_the_update_off_the_kvstore(options):
    p = parameter("p", [1.0], "float32", ctx=TWO)
    trainer = gluon.Trainer([p], "sgd", {"learning_rate": 1.0})
    init_trainer(trainer, **options)
    for factor in (0.25, inf):
        trainer.backward(losses_on(p, [factor, factor], TWO))
        assert trainer.step(1).applied == (factor != inf)
        assert [d.asnumpy().item() for d in p.list_data()] == [0.5, 0.5]


def test_init_trainer_refuses():
    p = parameter("p", [1.0])
    with pytest.raises(TypeError, match=r"expects a gluon\.Trainer"):
        init_trainer(mx.optimizer.SGD())
    with pytest.raises(ValueError, match="call init_trainer\\(\\) once"):
        init_trainer(Trainer([p], "sgd"))
    sgd = mx.optimizer.SGD(multi_precision=False)
    stock = gluon.Trainer([p], sgd, update_on_kvstore=False)
    with autograd.record():
        loss = p.data() * 2
    loss.backward()
    stock.step(1)
    with pytest.raises(ValueError, match="multi_precision=False and has updated float16"):
        init_trainer(stock)
    assert type(stock) is gluon.Trainer
    on_kvstore = gluon.Trainer([p], "sgd", update_on_kvstore=True)
    with pytest.raises(ValueError, match="update_on_kvstore=True"):
        init_trainer(on_kvstore)
    message = r"scale_loss\(\) got a Trainer .* call amp.init_trainer"
    with pytest.raises(TypeError, match=message), scale_loss(nd.ones((1,)), stock):
        pass


def test_scale_loss_and_unscale():
    p = parameter("p", [1.0], "float32")
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale=8)
    with autograd.record():
        loss = p.data() * 0.5
        with scale_loss(loss, trainer) as scaled:
            autograd.backward(scaled)
    assert p.grad().asnumpy().item() == 4.0
    assert trainer.step(1).applied
    assert values(p)[0] == 0.5
    with autograd.record(), scale_loss([p.data() / 2, p.data() * 1.5], trainer) as scaled:
        autograd.backward(scaled)
    unscale(trainer)
    unscale(trainer)
    assert p.grad().asnumpy().item() == 2.0
    assert trainer.clip_global_norm(1.0, 1) == 2.0
    report = trainer.step(1)
    assert (values(p)[0], report.loss_scale) == (-0.5, 8.0)


def test_scale_loss_without_a_scale_and_unscale_of_float16():
    p = parameter("p", [1.0])
    trainer = Trainer([p], "sgd", loss_scale=None)
    loss = nd.ones((1,))
    with scale_loss(loss, trainer) as scaled:
        assert scaled is loss
    trainer = Trainer([p], "sgd", loss_scale=8)
    run(trainer, [(p, [1.0])], step=False)
    with pytest.raises(TypeError, match=r"clip with trainer\.clip_global_norm"):
        unscale(trainer)


@pytest.mark.parametrize("inside", [True, False])
def test_a_skip_undoes_the_pass_of_scale_loss(inside):
    """MXNet's documentation has the backward pass inside the context, and it need not be."""
    norm = nn.BatchNorm(in_channels=2)
    norm.initialize()
    trainer = Trainer(norm.collect_params(), "sgd", loss_scale=8)
    with autograd.record(), scale_loss(norm(nd.array([[inf, 2]])).sum(), trainer) as loss:
        if inside:
            autograd.backward(loss)
    if not inside:
        autograd.backward(loss)
    assert not np.isfinite(norm.running_mean.data().asnumpy()[0])
    assert not trainer.step(1).applied
    assert norm.running_mean.data().asnumpy().tolist() == [0, 0]
