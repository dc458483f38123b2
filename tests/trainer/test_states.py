"""Trainer states between dtypes, devices and trainers."""

import pickle
import warnings

import numpy as np
import pytest

from gluon_amp import DynamicLossScale, Trainer
from tests.trainer.helpers import parameter, run, values

import mxnet as mx
from mxnet import autograd

pytestmark = pytest.mark.usefixtures("arrays")  # Law 13

inf = np.inf


def trained(trainer, p, steps=3):
    for step in range(steps):
        run(trainer, [(p, [0.5 + step, -0.25])])
    return trainer


SETTINGS = {"learning_rate": 2.0**-8}


@pytest.mark.parametrize("name", ["sgd", "nag", "adam", "adamw", "lars", "lamb", "rmsprop"])
@pytest.mark.parametrize("to", ["float16", "float32"])
@pytest.mark.parametrize("origin", ["float16", "float32"])
def test_states_go_from_any_dtype_to_any_other(tmp_path, name, origin, to):
    path = str(tmp_path / "states")
    p = parameter("p", [1.0, 2.0], origin)
    trainer = trained(Trainer([p], name, SETTINGS, loss_scale=DynamicLossScale(16)), p)
    trainer.save_states(path)
    q = parameter("q", values(p).astype("float16"), to)
    other = Trainer([q], name, SETTINGS, loss_scale="dynamic")
    other.load_states(path)
    if origin == "float16":
        # the masters' bits are not lost, where they were saved
        np.testing.assert_array_equal(
            other.master_params()["q"].asnumpy(), trainer.master_params()["p"].asnumpy()
        )
    for one, param in ((trainer, p), (other, q)):
        trained(one, param, 2)
        assert one.loss_scale.finite_steps == 5
    np.testing.assert_allclose(values(q), values(p), rtol=2e-3)
    assert other.optimizer.num_update == 5


def test_scale_and_skips_are_in_the_states(tmp_path):
    path = str(tmp_path / "states")
    p = parameter("p", [1.0])
    trainer = Trainer([p], "sgd", loss_scale="dynamic")
    for factor in (inf, inf, 0.0, 0.0, 0.0):
        run(trainer, [(p, [factor])])
    trainer.save_states(path)
    other = Trainer([parameter("q", [1.0])], "sgd", loss_scale="dynamic")
    other.load_states(path)
    assert other.loss_scale.scale == 16384.0
    assert other.loss_scale.finite_steps == 3
    assert run(other, [(other.parameters[0], [inf])]).skipped_total == 3


def test_states_on_two_contexts(tmp_path):
    path = str(tmp_path / "states")
    p = parameter("p", [1.0, 2.0])
    trainer = trained(Trainer([p], "adam", SETTINGS), p)
    trainer.save_states(path)
    ctx = [mx.cpu(0), mx.cpu(1)]
    q = parameter("q", values(p), ctx=ctx)
    other = Trainer([q], "adam", SETTINGS)
    other.load_states(path)
    with autograd.record():
        losses = [(q.data(c).astype("float32") * 0.5).sum() for c in ctx]
    other.backward(losses)
    other.step(2)
    run(trainer, [(p, [0.5, 0.5])])
    for data in q.list_data():
        np.testing.assert_array_equal(data.asnumpy(), values(p))


def test_a_setting_that_differs_is_kept_with_a_warning(tmp_path):
    path = str(tmp_path / "states")
    p = parameter("p", [1.0])
    Trainer([p], "sgd", {"learning_rate": 0.5, "wd": 0.1, "momentum": 0.9}).save_states(path)
    other = Trainer([p], "sgd", {"learning_rate": 0.25, "wd": 0.1, "momentum": 0.9})
    with pytest.warns(UserWarning, match=r"had lr=0\.5; this trainer keeps its 0\.25\.") as caught:
        other.load_states(path)
    assert len(caught) == 1
    assert other.learning_rate == 0.25
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Trainer([p], "sgd", {"learning_rate": 0.5, "wd": 0.1, "momentum": 0.9}).load_states(path)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda p: Trainer([p], "adam"), "build the trainer with the same optimizer"),
        (lambda p: Trainer([p], mx.optimizer.SGD(multi_precision=True)), "same optimizer"),
        (lambda p: Trainer([p], "sgd", loss_scale=8), "kind of loss scale"),
        (
            lambda p: Trainer([p, parameter("q", [1.0])], "sgd"),
            "not those of the 2 of this trainer",
        ),
        (
            lambda p: Trainer([parameter("q", [1.0, 2.0])], "sgd"),
            "not those of the 1 of this trainer",
        ),
    ],
)
def test_states_of_something_else_are_refused(tmp_path, build, message):
    path = str(tmp_path / "states")
    p = parameter("p", [1.0])
    Trainer([p], "sgd").save_states(path)
    other = build(p)
    before = pickle.dumps(other.state_dict())
    with pytest.raises(ValueError, match=message):
        other.load_states(path)
    assert pickle.dumps(other.state_dict()) == before
