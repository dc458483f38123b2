"""`trainer._amp_loss_scaler`, as code written for mxnet.contrib.amp uses it."""

import pickle

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp import Trainer
from tests.trainer.helpers import parameter, run, values

import mxnet as mx
from mxnet import gluon
from mxnet.contrib.amp.loss_scaler import LossScaler

pytestmark = pytest.mark.usefixtures("arrays")  # Law 13

inf = np.inf


def trainer_of(p, loss_scale="dynamic"):
    return Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale=loss_scale)


def test_it_shows_every_field_of_mxnets_scaler_with_its_value():
    stock = LossScaler()
    view = trainer_of(parameter("p", [1.0]))._amp_loss_scaler
    assert len(vars(stock)) == 5
    assert {name: getattr(view, name) for name in vars(stock)} == vars(stock)
    assert view.loss_scale == stock.loss_scale == 65536.0


def test_it_follows_the_scale_through_steps_and_skips():
    p = parameter("p", [1.0])
    trainer = trainer_of(p)
    trainer._amp_loss_scaler._loss_scale = 16
    run(trainer, [(p, [0.5])])
    assert (trainer._amp_loss_scaler.loss_scale, trainer._amp_loss_scaler._unskipped) == (16, 1)
    assert values(p)[0] == 0.5  # MXNet's update has not asked the view for an overflow
    assert not run(trainer, [(p, [inf])]).applied
    scaler = trainer._amp_loss_scaler
    assert (scaler._loss_scale, scaler._next_loss_scale, scaler._unskipped) == (8, 8, 0)


def test_a_run_saves_and_restores_it_as_sockeye_does():
    names = ("_loss_scale", "_next_loss_scale", "_unskipped")
    p = parameter("p", [1.0])
    trainer = trainer_of(p)
    trainer._amp_loss_scaler._scale_seq_len = 3
    trainer._amp_loss_scaler._next_loss_scale = 4.0
    for _ in range(2):
        run(trainer, [(p, [0.25])])
    saved = pickle.dumps([getattr(trainer._amp_loss_scaler, name) for name in names])

    resumed = trainer_of(p)
    resumed._amp_loss_scaler._scale_seq_len = 3
    for name, value in zip(names, pickle.loads(saved)):
        setattr(resumed._amp_loss_scaler, name, value)
    assert resumed.loss_scale.state_dict() == trainer.loss_scale.state_dict()
    run(resumed, [(p, [0.25])])  # the third finite step: it grows
    assert resumed.loss_scale.scale == 8


def test_a_pickled_scaler_restores_another_trainers_scale_and_holds_plain_numbers():
    p = parameter("p", [1.0])
    trainer = trainer_of(p, amp.DynamicLossScale(init_scale=4, growth_interval=5))
    run(trainer, [(p, [0.25])])
    data = pickle.dumps(trainer._amp_loss_scaler)
    assert b"NDArray" not in data
    other = trainer_of(p)
    other._amp_loss_scaler = pickle.loads(data)
    assert other.loss_scale.state_dict() == trainer.loss_scale.state_dict()
    assert repr(other._amp_loss_scaler).startswith("ContribAmpScaler(DynamicLossScale(scale=4.0,")


def test_mxnets_own_scaler_can_be_assigned():
    stock = LossScaler()
    stock._next_loss_scale, stock._unskipped = 1024.0, 7
    trainer = trainer_of(parameter("p", [1.0]))
    trainer._amp_loss_scaler = stock
    assert (trainer.loss_scale.scale, trainer.loss_scale.finite_steps) == (1024.0, 7)


def test_a_wrong_value_is_refused_and_changes_nothing():
    trainer = trainer_of(parameter("p", [1.0]))
    before = trainer.loss_scale.state_dict()
    with pytest.raises(ValueError, match="scale must be a power of two.*received 100"):
        trainer._amp_loss_scaler._loss_scale = 100
    with pytest.raises(AttributeError, match="'_loss_scales' .* set one of _loss_scale, _next"):
        trainer._amp_loss_scaler._loss_scales = 8
    with pytest.raises(AttributeError, match="has no '_loss_scales'"):
        print(trainer._amp_loss_scaler._loss_scales)
    with pytest.raises(AttributeError, match="step.. checks for overflow itself"):
        trainer._amp_loss_scaler.has_overflow([])
    with pytest.raises(TypeError, match="expects a LossScaler, .* received 128"):
        trainer._amp_loss_scaler = 128
    stock = LossScaler()
    stock._unskipped = 5000
    with pytest.raises(ValueError, match="finite_steps"):
        trainer._amp_loss_scaler = stock
    assert trainer.loss_scale.state_dict() == before


@pytest.mark.parametrize("loss_scale, scale", [(128, 128.0), (None, 1.0)])
def test_a_scale_that_does_not_grow_ignores_the_settings_of_growth(loss_scale, scale):
    trainer = trainer_of(parameter("p", [1.0]), loss_scale)
    scaler = trainer._amp_loss_scaler
    scaler._scale_seq_len, scaler._unskipped, scaler._loss_scale = 100, 0, scale
    assert (scaler.loss_scale, scaler._next_loss_scale, scaler._unskipped) == (scale, scale, 0)
    assert pickle.loads(pickle.dumps(scaler)).loss_scale == scale


def test_a_trainer_without_a_scale_refuses_one():
    trainer = trainer_of(parameter("p", [1.0], "float32"), None)
    with pytest.raises(ValueError, match="no loss scale to set to 65536.0: .*'dynamic'"):
        trainer._amp_loss_scaler._loss_scale = 65536.0


def test_init_trainer_adds_the_attributes_and_the_original_scale():
    p = parameter("p", [1.0])
    trainer = gluon.Trainer([p], mx.optimizer.SGD(rescale_grad=0.5, multi_precision=True))
    amp.init_trainer(trainer)
    assert trainer._amp_loss_scaler.loss_scale == 65536.0
    assert trainer._amp_original_scale == 0.5
    trainer._amp_loss_scaler._loss_scale = 2.0
    run(trainer, [(p, [0.5])])
    assert trainer._amp_original_scale == 0.5
