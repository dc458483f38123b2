"""Clipping by the global norm of the true gradients."""

import numpy as np
import pytest

from gluon_amp import Trainer
from tests.trainer.helpers import parameter, run, values

import mxnet as mx
from mxnet import autograd, gluon

pytestmark = pytest.mark.usefixtures("arrays")  # Law 13

inf, nan = np.inf, np.nan


def test_clip_global_norm_is_the_true_norm_over_all_dtypes():
    p, q = parameter("p", [0.0]), parameter("q", [0.0], "float32")
    trainer = Trainer([p, q], "sgd", {"learning_rate": 1.0}, loss_scale=4096)
    run(trainer, [(p, [3.0]), (q, [4.0])], step=False)
    assert trainer.clip_global_norm(1.0) == 5.0
    assert p.grad().asnumpy().item() == 3 * 4096.0  # not in place
    report = trainer.step(1)
    assert report.grad_norm == 5.0
    np.testing.assert_allclose([values(p)[0], values(q)[0]], [-0.6, -0.8], rtol=1e-3)
    # the factor is gone with the step
    run(trainer, [(p, [3.0]), (q, [4.0])])
    np.testing.assert_allclose([values(p)[0], values(q)[0]], [-3.6, -4.8], rtol=1e-3)


def test_clip_global_norm_equals_gluons_in_a_float32_run():
    results = []
    for ours in (False, True):
        p = parameter("p", [1.0, 2.0, 3.0], "float32")
        trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale=2.0**14 if ours else None)
        run(trainer, [(p, [10.0, -20.0, 20.0])], step=False)
        if ours:
            norm = trainer.clip_global_norm(6.0)
        else:
            norm = gluon.utils.clip_global_norm([p.grad().as_nd_ndarray()], 6.0)
        assert norm == 30.0
        trainer.step(4)
        results.append(values(p))
    np.testing.assert_allclose(*results, rtol=1e-6)


def test_a_norm_within_bounds_is_left_alone_and_inf_only_measures():
    p = parameter("p", [0.0])
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale=8)
    for bound in (6.0, inf):
        run(trainer, [(p, [5.0])], step=False)
        assert trainer.clip_global_norm(bound) == 5.0
        trainer.step(1)
    assert values(p)[0] == -10.0


def test_clip_global_norm_of_the_mean_gradient():
    p = parameter("p", [0.0])
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale=8)
    run(trainer, [(p, [5.0])], step=False)
    assert trainer.clip_global_norm(0.5, batch_size=4) == 1.25
    trainer.step(4)
    assert values(p)[0] == -0.5


def test_clip_global_norm_reduces_once():
    ctx = [mx.cpu(0), mx.cpu(1)]
    p = parameter("p", [0.0], ctx=ctx)
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale=8)
    with autograd.record():
        losses = [p.data(c).astype("float32") for c in ctx]
    trainer.backward(losses)
    assert trainer.clip_global_norm(1.0) == 2.0
    trainer.step(1)
    assert [d.asnumpy().item() for d in p.list_data()] == [-1.0, -1.0]


def test_clipping_an_overflow_skips():
    p = parameter("p", [1.0])
    trainer = Trainer([p], "sgd", loss_scale="dynamic")
    run(trainer, [(p, [inf])], step=False)
    assert trainer.clip_global_norm(1.0) == inf
    report = trainer.step(1)
    assert (report.applied, report.grad_norm) == (False, inf)
    assert values(p)[0] == 1.0


def test_a_gradient_spoilt_between_clip_and_step_is_seen():
    p = parameter("p", [1.0])
    trainer = Trainer([p], "sgd", loss_scale="dynamic")
    run(trainer, [(p, [1.0])], step=False)
    trainer.clip_global_norm(1.0)
    p.grad()[:] = nan
    assert not trainer.step(1).applied
