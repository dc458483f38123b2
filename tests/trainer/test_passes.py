"""A window: several passes, and what is measured of them."""

import dataclasses

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp import Trainer
from gluon_amp.trainer.passes import Gradients, Pass
from tests.trainer.helpers import (
    TWO,
    losses_on,
    parameter,
    run,
    values,
)

from mxnet import autograd

pytestmark = pytest.mark.usefixtures("arrays")  # Law 13

inf = np.inf


def test_passes_and_gradients_are_frozen_values_and_end_with_the_step():
    p = parameter("p", [1.0])
    trainer = Trainer([p], "sgd", loss_scale=8)
    run(trainer, [(p, [0.25])], step=False)
    trainer.clip_global_norm(inf)
    made, done = trainer.current_pass(), trainer.current_gradients()
    assert made is trainer.loss_scale.last_pass
    assert (made.scale, made.searching, made.at_floor) == (8.0, False, True)
    assert (done.norm, done.clip_factor, trainer.used_scale()) == (0.25, 1.0, 8.0)
    for value, field in ((made, "scale"), (done, "norm")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field, 4.0)
    trainer.step(1)
    assert trainer.current_gradients() == Gradients()
    with pytest.raises(RuntimeError, match="no scaled backward pass"):
        trainer.current_pass()
    assert Trainer([], "sgd", loss_scale=None).current_pass() == Pass(scale=1.0)


# ------------------------------------------------------------------------------ several passes


@pytest.mark.parametrize("loss_scale", [None, 8])
@pytest.mark.parametrize("clip_again", [True, False])
def test_gradients_of_a_later_pass_are_reduced_again(loss_scale, clip_again):
    p = parameter("p", [0.0], "float32", ctx=TWO)
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale=loss_scale)
    trainer.backward(losses_on(p, (5.0, 5.0), TWO))
    assert trainer.clip_global_norm(100.0) == 10.0
    trainer.backward(losses_on(p, (1.0, 2.0), TWO))
    if clip_again:
        assert trainer.clip_global_norm(100.0) == 3.0
    trainer.step(1)
    assert [d.asnumpy().item() for d in p.list_data()] == [-3.0, -3.0]


def test_a_plain_backward_counts_as_a_pass_too():
    p = parameter("p", [0.0], "float32", ctx=TWO)
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0})
    for factors in ((5.0, 5.0), (1.0, 2.0)):
        autograd.backward(losses_on(p, factors, TWO))
        trainer.clip_global_norm(4.0)
    trainer.step(1)
    assert [d.asnumpy().item() for d in p.list_data()] == [-3.0, -3.0]


def test_gradients_of_another_trainers_pass_are_reduced_again():
    p, q = parameter("p", [0.0], ctx=TWO), parameter("q", [0.0], ctx=TWO)
    shared = amp.DynamicLossScale(8.0)
    first = Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale=shared)
    second = Trainer([q], "sgd", {"learning_rate": 1.0}, loss_scale=shared)
    for factors in ((5.0, 5.0), (1.0, 2.0)):
        first.backward([*losses_on(p, factors, TWO), *losses_on(q, factors, TWO)])
        norm = second.clip_global_norm(100.0)
    assert norm == 3.0
    for trainer, param in ((first, p), (second, q)):
        assert trainer.step(1).applied
        assert [d.asnumpy().item() for d in param.list_data()] == [-3.0, -3.0]


@pytest.mark.parametrize("loss_scale", [None, 8])
def test_the_clip_factor_is_that_of_the_last_pass(loss_scale):
    p = parameter("p", [0.0])
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale=loss_scale)
    run(trainer, [(p, [100.0])], step=False)
    trainer.clip_global_norm(1.0)
    run(trainer, [(p, [0.5])], step=False)
    assert trainer.step(1).grad_norm is None
    assert values(p)[0] == -0.5


def test_a_pass_that_adds_to_reduced_gradients_is_refused():
    p = parameter("p", [0.0], ctx=TWO, grad_req="add")
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale=8)
    trainer.backward(losses_on(p, (1.0, 2.0), TWO))
    trainer.clip_global_norm(100.0)
    trainer.backward(losses_on(p, (1.0, 2.0), TWO))
    with pytest.raises(RuntimeError, match=r"call clip_global_norm.* after the last backward pass"):
        trainer.step(1)


def test_a_pass_that_writes_some_of_the_reduced_gradients_is_refused():
    p, q = parameter("p", [0.0], ctx=TWO), parameter("q", [0.0], ctx=TWO)
    trainer = Trainer([p, q], "sgd", {"learning_rate": 1.0}, loss_scale=8)
    trainer.backward([*losses_on(p, (1.0, 2.0), TWO), *losses_on(q, (1.0, 2.0), TWO)])
    trainer.allreduce_grads()
    trainer.backward(losses_on(p, (1.0, 2.0), TWO))
    with pytest.raises(RuntimeError, match="wrote into gradients that were reduced"):
        trainer.step(1)


def test_a_pass_that_adds_on_one_device_needs_no_new_reduction():
    p = parameter("p", [0.0], grad_req="add")
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale=8)
    run(trainer, [(p, [1.0])], step=False)
    trainer.clip_global_norm(0.5)
    run(trainer, [(p, [2.0])])
    assert values(p)[0] == -3.0


def test_a_pass_after_unscale_is_refused_where_it_adds():
    p = parameter("p", [0.0], "float32", grad_req="add")
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale=8)
    run(trainer, [(p, [1.0])], step=False)
    amp.unscale(trainer)
    run(trainer, [(p, [1.0])], step=False)
    with pytest.raises(RuntimeError, match="mixes two units"):
        trainer.step(1)


def test_allreduce_grads_then_step_reduces_once():
    p = parameter("p", [0.0], ctx=TWO)
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale=8)
    trainer.backward(losses_on(p, (1.0, 2.0), TWO))
    trainer.allreduce_grads()
    trainer.step(1)
    assert [d.asnumpy().item() for d in p.list_data()] == [-3.0, -3.0]


# ------------------------------------------------------------------------------ what is measured


def test_clipping_measures_the_gradients_that_the_step_uses():
    p, q = parameter("p", [0.0]), parameter("q", [0.0])
    trainer = Trainer([p, q], "sgd", {"learning_rate": 1.0}, loss_scale=8)
    run(trainer, [(p, [1.0]), (q, [0.5])])
    run(trainer, [(p, [1.0])], step=False)
    assert trainer.clip_global_norm(inf) == 1.0  # 1.118 with q's stale gradient
    trainer.step(1, ignore_stale_grad=True)
    assert (values(p)[0], values(q)[0]) == (-2.0, -0.5)


def test_a_stale_gradient_is_not_reduced_into_the_norm_either():
    p, q = parameter("p", [0.0], ctx=TWO), parameter("q", [0.0], ctx=TWO)
    trainer = Trainer([p, q], "sgd", {"learning_rate": 1.0}, loss_scale=8)
    trainer.backward([*losses_on(p, (1.0, 1.0), TWO), *losses_on(q, (9.0, 9.0), TWO)])
    trainer.step(1)
    trainer.backward(losses_on(p, (1.0, 2.0), TWO))
    assert trainer.clip_global_norm(inf) == 3.0


def test_devices_that_are_not_reduced_are_all_measured():
    p = parameter("p", [0.0], ctx=TWO)
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, kvstore=None, loss_scale=8)
    trainer.backward(losses_on(p, (3.0, 4.0), TWO))
    assert trainer.clip_global_norm(2.5) == 5.0
    trainer.step(1)
    assert [d.asnumpy().item() for d in p.list_data()] == [-1.5, -2.0]
