"""`trainer._amp_loss_scaler`, as code written for mxnet.contrib.amp uses it."""

import pickle

import numpy as np
import pytest

from gluon_amp import Trainer
from tests.trainer.helpers import parameter, run, values

from mxnet.contrib.amp.loss_scaler import LossScaler


def trainer_of(p, loss_scale="dynamic"):
    return Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale=loss_scale)


def test_it_shows_every_field_of_mxnets_scaler_with_its_value():
    stock = LossScaler()
    view = trainer_of(parameter("p", [1.0]))._amp_loss_scaler
    assert len(vars(stock)) == 5
    assert {name: getattr(view, name) for name in vars(stock)} == vars(stock)


def test_it_sets_and_follows_the_scale_through_steps_and_skips():
    p = parameter("p", [1.0])
    trainer = trainer_of(p)
    scaler = trainer._amp_loss_scaler
    scaler._loss_scale = 16
    run(trainer, [(p, [0.5])])
    assert (scaler.loss_scale, scaler._unskipped, trainer.loss_scale.searching) == (16, 1, False)
    assert values(p)[0] == 0.5  # MXNet's update asked the view for an overflow
    assert not run(trainer, [(p, [np.inf])]).applied
    assert (scaler._loss_scale, scaler._next_loss_scale, scaler._unskipped) == (8, 8, 0)


def test_a_run_saves_and_restores_it_as_sockeye_does():
    names = ("_loss_scale", "_next_loss_scale", "_unskipped")
    p = parameter("p", [1.0])
    trainer, resumed = trainer_of(p), trainer_of(p)
    for one in (trainer, resumed):
        one._amp_loss_scaler._scale_seq_len = 3
    trainer._amp_loss_scaler._next_loss_scale = 4.0
    for _ in range(2):
        run(trainer, [(p, [0.25])])
    saved = pickle.dumps([getattr(trainer._amp_loss_scaler, name) for name in names])
    for name, value in zip(names, pickle.loads(saved)):
        setattr(resumed._amp_loss_scaler, name, value)
    assert resumed.loss_scale.state_dict() == trainer.loss_scale.state_dict()
    run(resumed, [(p, [0.25])])  # the third finite step: it grows
    assert resumed.loss_scale.scale == 8


def test_a_wrong_value_is_refused_and_changes_nothing():
    trainer = trainer_of(parameter("p", [1.0]))
    before, scaler = trainer.loss_scale.state_dict(), trainer._amp_loss_scaler
    with pytest.raises(ValueError, match="scale must be a power of two.*received 100"):
        scaler._loss_scale = 100
    with pytest.raises(AttributeError, match="'_loss_scales' .* set one of _loss_scale, _next"):
        scaler._loss_scales = 8
    with pytest.raises(AttributeError, match="has no '_loss_scales'"):
        print(scaler._loss_scales)
    assert trainer.loss_scale.state_dict() == before


@pytest.mark.parametrize("loss_scale, scale", [(128, 128.0), (None, 1.0)])
def test_a_scale_that_does_not_grow_ignores_the_settings_of_growth(loss_scale, scale):
    scaler = trainer_of(parameter("p", [1.0], "float32"), loss_scale)._amp_loss_scaler
    scaler._scale_seq_len, scaler._unskipped, scaler._loss_scale = 100, 0, scale
    assert (scaler.loss_scale, scaler._next_loss_scale, scaler._unskipped) == (scale, scale, 0)
    if loss_scale is None:
        with pytest.raises(ValueError, match="no loss scale to set to 65536.0: .*'dynamic'"):
            scaler._loss_scale = 65536.0
