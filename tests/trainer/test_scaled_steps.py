"""Scaled steps with literal numbers: backward, update, skip, shared scales, masters."""

import numpy as np
import pytest

from gluon_amp import DynamicLossScale, Trainer, optimizer
from gluon_amp.trainer import StepReport
from tests import kinds
from tests.trainer.helpers import network, parameter, run, values

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

pytestmark = pytest.mark.usefixtures("arrays")  # Law 13

inf, nan = np.inf, np.nan


def test_keras_example_finite_step():
    p = parameter("p", [1.0, 2.0, 3.0, 4.0])
    trainer = Trainer([p], "sgd", {"learning_rate": 0.5}, loss_scale=4)
    report = run(trainer, [(p, [1.0, 6.0, 7.0, 2.0])])
    np.testing.assert_array_equal(values(p), [0.5, -1.0, -0.5, 3.0])
    assert report == StepReport(True, 4.0, 4.0, None, (), 0)


def test_keras_example_infs_leave_the_variables_and_halve_the_scale():
    p = parameter("p", [1.0, 2.0, 3.0, 4.0])
    trainer = Trainer([p], "sgd", {"learning_rate": 0.5}, loss_scale=DynamicLossScale(512))
    for skipped in range(1, 5):
        report = run(trainer, [(p, [inf, 6.0, 7.0, 2.0])])
        scale = 1024.0 / 2**skipped
        assert report == StepReport(False, scale, scale / 2, None, ("p",), skipped)
    np.testing.assert_array_equal(values(p), [1.0, 2.0, 3.0, 4.0])
    assert trainer.loss_scale.scale == 32.0


def test_the_gradients_carry_the_scale_and_the_loss_does_not():
    p = parameter("p", [3.0])
    trainer = Trainer([p], "sgd", loss_scale=2**10)
    with autograd.record():
        loss = (p.data().astype("float32") * 2).sum()
    trainer.backward(loss)
    assert p.grad().asnumpy().item() == 2048.0
    assert loss.asnumpy().item() == 6.0


def test_batch_size_divides():
    p = parameter("p", [1.0], "float32")
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale=8)
    run(trainer, [(p, [1.0])], batch_size=4)
    assert values(p)[0] == 0.75


def test_rescale_grad_of_the_optimizer_is_multiplied_and_not_replaced():
    p = parameter("p", [1.0])
    trainer = Trainer([p], optimizer.SGD(learning_rate=1.0, rescale_grad=0.5), loss_scale=8)
    run(trainer, [(p, [1.0])])
    assert values(p)[0] == 0.5
    trainer.rescale /= 2  # what Horovod's DistributedTrainer does
    run(trainer, [(p, [1.0])])
    assert values(p)[0] == 0.25


def test_losses_in_nested_lists_and_inside_record():
    p, q = parameter("p", [1.0]), parameter("q", [1.0])
    trainer = Trainer([p, q], "sgd", {"learning_rate": 1.0}, loss_scale=8)
    with autograd.record():
        a, b = p.data().astype("float32") * 0.5, q.data().astype("float32") * 0.25
        trainer.backward([[a], (b, b * 2)])
    trainer.step(1)
    assert (values(p)[0], values(q)[0]) == (0.5, 0.25)


def test_two_contexts():
    ctx = [mx.cpu(0), mx.cpu(1)]
    p = parameter("p", [8.0], ctx=ctx)
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale=4)
    with autograd.record():
        losses = [p.data(c).astype("float32") * (i + 1) for i, c in enumerate(ctx)]
    trainer.backward(losses)
    assert trainer.step(1).applied
    assert [d.asnumpy().item() for d in p.list_data()] == [5.0, 5.0]
    with autograd.record():
        losses = [p.data(c).astype("float32") * f for c, f in zip(ctx, (1.0, inf))]
    trainer.backward(losses)
    report = trainer.step(1)
    assert (report.applied, report.overflow) == (False, ("p",))
    assert [d.asnumpy().item() for d in p.list_data()] == [5.0, 5.0]


def test_two_contexts_without_a_kvstore_agree_to_skip():
    ctx = [mx.cpu(0), mx.cpu(1)]
    p = parameter("p", [8.0], ctx=ctx)
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, kvstore=None, loss_scale=4)
    with autograd.record():
        losses = [p.data(c).astype("float32") * f for c, f in zip(ctx, (1.0, nan))]
    trainer.backward(losses)
    assert not trainer.step(1).applied
    assert [d.asnumpy().item() for d in p.list_data()] == [8.0, 8.0]


def test_allreduce_grads_and_update_in_place_of_step():
    ctx = [mx.cpu(0), mx.cpu(1)]
    p = parameter("p", [8.0], ctx=ctx)
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale=4)
    with autograd.record():
        losses = [p.data(c).astype("float32") for c in ctx]
    trainer.backward(losses)
    trainer.allreduce_grads()
    assert p.grad(ctx[0]).asnumpy().item() == 8.0
    assert trainer.clip_global_norm(inf) == 2.0
    assert trainer.update(1).applied
    assert [d.asnumpy().item() for d in p.list_data()] == [6.0, 6.0]


def test_more_than_200_parameters_of_both_dtypes():
    params = [parameter(f"p{i}", [1.0], ("float16", "float32")[i % 2]) for i in range(210)]
    trainer = Trainer(params, "sgd", {"learning_rate": 0.5}, loss_scale=16)
    assert run(trainer, [(p, [1.0]) for p in params]).applied
    assert {float(values(p)[0]) for p in params} == {0.5}
    factors = [1.0] * 210
    factors[3], factors[208] = inf, nan
    report = run(trainer, [(p, [f]) for p, f in zip(params, factors)])
    assert report.overflow == ("p3", "p208")
    assert {float(values(p)[0]) for p in params} == {0.5}


def test_a_large_finite_float32_gradient_is_no_overflow():
    p = parameter("p", [1.0, 1.0], "float32")
    trainer = Trainer([p], "sgd", {"learning_rate": 1e-30}, loss_scale=1)
    assert run(trainer, [(p, [1e30, -1e30])]).applied  # its square is infinite


def test_the_cpu_check_never_calls_multi_all_finite(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("28 ns per element")

    monkeypatch.setattr(nd, "multi_all_finite", refuse)
    p, q = parameter("p", [1.0]), parameter("q", [1.0], "float32")
    trainer = Trainer([p, q], "sgd", loss_scale=16)
    assert run(trainer, [(p, [1.0]), (q, [1.0])]).applied
    assert not run(trainer, [(p, [1.0]), (q, [nan])]).applied


@kinds.only_nd  # mx.np has no sparse arrays
def test_row_sparse_gradients():
    embedding = nn.Embedding(5, 2, sparse_grad=True)
    embedding.initialize(mx.init.One())
    trainer = Trainer(embedding.collect_params(), "sgd", {"learning_rate": 1.0}, loss_scale=8)

    def report(factor):
        with autograd.record():
            loss = (embedding(kinds.array([1, 3])) * factor).sum()
        trainer.backward(loss)
        return trainer.step(1)

    assert report(0.5).applied
    expected = np.array([1, 0.5, 1, 0.5, 1])[:, None].repeat(2, 1)
    np.testing.assert_array_equal(values(embedding.weight), expected)
    assert not report(inf).applied
    np.testing.assert_array_equal(values(embedding.weight), expected)


def test_frozen_parameters_only_and_no_parameters():
    frozen = parameter("frozen", [1.0], grad_req="null")
    live = parameter("live", [1.0])
    trainer = Trainer([frozen], "sgd")
    nothing = Trainer([], "sgd", loss_scale="dynamic")
    for one in (trainer, nothing):
        with autograd.record():
            loss = live.data().astype("float32")
        one.backward(loss)
        assert one.step(1).applied
        assert one.loss_scale.finite_steps == 0  # nothing was learnt about the scale
        assert one.state_dict()["states"] == {}
    assert values(frozen)[0] == 1.0


def test_unused_parameters():
    used, unused = parameter("used", [4.0]), parameter("unused", [4.0])
    trainer = Trainer([used, unused], "sgd", {"learning_rate": 1.0}, loss_scale=8)
    run(trainer, [(used, [1.0]), (unused, [1.0])])
    run(trainer, [(used, [1.0])], step=False)
    with pytest.raises(UserWarning, match="unused"):
        trainer.step(1)
    # the contents of a stale buffer do not matter
    unused.grad()[:] = inf
    report = trainer.step(1, ignore_stale_grad=True)
    assert report.applied
    assert (values(used)[0], values(unused)[0]) == (2.0, 3.0)


def test_after_a_skip_an_overflow_does_not_come_back_from_an_unused_parameter():
    ctx = [mx.cpu(0), mx.cpu(1)]
    used, unused = parameter("used", [4.0], ctx=ctx), parameter("unused", [4.0], ctx=ctx)
    trainer = Trainer([used, unused], "sgd", {"learning_rate": 1.0}, loss_scale="dynamic")

    def step(*terms):
        with autograd.record():
            losses = [sum(p.data(c).astype("float32") * f for p, f in terms) for c in ctx]
        trainer.backward(losses)
        return trainer.step(1, ignore_stale_grad=True).applied

    assert not step((used, 0.5), (unused, inf))
    assert [step((used, 0.5)) for _ in range(3)] == [True] * 3
    assert values(unused)[0] == 4.0


def test_the_learning_rate_schedule_does_not_advance_on_a_skip():
    p = parameter("p", [0.0], "float32")
    schedule = mx.lr_scheduler.FactorScheduler(step=1, factor=0.5, base_lr=1.0)
    trainer = Trainer([p], "sgd", {"lr_scheduler": schedule}, loss_scale="dynamic")
    moved = []
    for factor in (1.0, inf, nan, 1.0, inf, 1.0):
        before = values(p)[0]
        run(trainer, [(p, [factor])])
        moved.append(float(before - values(p)[0]))
    assert moved == [1.0, 0.0, 0.0, 0.5, 0.0, 0.25]
    assert trainer.optimizer.num_update == 3


def test_clip_gradient_does_not_turn_an_inf_into_a_step():
    p = parameter("p", [1.0])
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0, "clip_gradient": 0.5}, loss_scale=1024)
    assert not run(trainer, [(p, [inf])]).applied
    assert values(p)[0] == 1.0
    # and it clips the true gradient, not the scaled one
    run(trainer, [(p, [0.25])])
    assert values(p)[0] == 0.75
    run(trainer, [(p, [4.0])])
    assert values(p)[0] == 0.25


# ------------------------------------------------------------------------------ sharing a scale


def test_two_trainers_share_a_scale_and_a_backward_pass():
    p, q = parameter("p", [1.0]), parameter("q", [1.0])
    shared = DynamicLossScale(init_scale=8, growth_interval=2)
    first = Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale=shared)
    second = Trainer([q], "sgd", {"learning_rate": 1.0}, loss_scale=shared)

    def both(f, g):
        run(first, [(p, [f]), (q, [g])], step=False)
        return [first.step(1), second.step(1)]

    both(0.5, 0.5)
    assert (shared.scale, shared.finite_steps) == (8.0, 1)
    reports = both(0.25, inf)
    assert [r.applied for r in reports] == [True, False]
    assert [r.loss_scale for r in reports] == [8.0, 8.0]
    assert (shared.scale, shared.finite_steps) == (4.0, 0)
    reports = both(inf, inf)
    assert [r.applied for r in reports] == [False, False]
    assert shared.scale == 2.0
    assert (values(p)[0], values(q)[0]) == (0.25, 0.5)
    both(0.25, 0.5)
    assert (values(p)[0], values(q)[0]) == (0.0, 0.0)
    with pytest.raises(RuntimeError, match=r"trainer\.backward\(loss\)"):
        second.step(1)


def test_trainers_with_scales_of_their_own_do_not_disturb_each_other():
    p, q = parameter("p", [1.0]), parameter("q", [1.0])
    first, second = Trainer([p], "sgd"), Trainer([q], "sgd", loss_scale=4)
    run(first, [(p, [inf])])
    run(second, [(q, [1.0])])
    assert (first.loss_scale.scale, second.loss_scale.scale) == (32768.0, 4.0)


# ------------------------------------------------------------------------------ masters


def test_set_data_after_training_began_is_not_reverted():
    for name in ("sgd", "nag", "adam", "adamw", "lars", "lamb", "rmsprop"):
        p = parameter("p", [0.25] * 4)
        trainer = Trainer([p], name, {"learning_rate": 2.0**-6}, loss_scale=16)
        run(trainer, [(p, [1.0] * 4)])
        p.set_data(kinds.full((4,), 5.0, dtype="float16"))
        run(trainer, [(p, [1.0] * 4)])
        assert (values(p) > 4.5).all(), name


def test_a_write_of_one_element_leaves_the_masters_of_the_others():
    p = parameter("p", [1.0, 1.0])
    trainer = Trainer([p], "sgd", {"learning_rate": 2.0**-20}, loss_scale=1)
    run(trainer, [(p, [1.0, 1.0])])
    p.data()[1] = 0.0
    run(trainer, [(p, [1.0, 1.0])])
    np.testing.assert_array_equal(
        trainer.master_params()["p"].asnumpy(), [1 - 2.0**-19, -(2.0**-20)]
    )


def test_load_parameters_between_steps(tmp_path):
    net = network()
    net.save_parameters(str(tmp_path / "start"))
    start = values(net[0].weight)
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, loss_scale=1)
    for _ in range(3):
        with autograd.record():
            loss = (net(kinds.ones((4, 4))) ** 2).sum()
        trainer.backward(loss)
        trainer.step(4)
    net.load_parameters(str(tmp_path / "start"))
    np.testing.assert_array_equal(
        trainer.master_params()[net[0].weight.name].asnumpy(), start.astype("float32")
    )


def test_master_params():
    p, q = parameter("p", [1.0]), parameter("q", [1.0], "float32")
    frozen = parameter("frozen", [2.0], grad_req="null")
    late = gluon.Parameter("late", shape=(0,), allow_deferred_init=True)
    late.initialize()
    trainer = Trainer([p, q, frozen, late], "sgd", {"learning_rate": 2.0**-20}, loss_scale=1)
    before = {name: v.asnumpy().item() for name, v in trainer.master_params().items()}
    assert before == {"p": 1.0, "q": 1.0, "frozen": 2.0}
    late.shape = (1,)
    late.initialize(force_reinit=True)
    run(trainer, [(p, [1.0]), (q, [1.0]), (late, [0.0])])
    masters = trainer.master_params()
    assert masters["p"].asnumpy().item() == masters["q"].asnumpy().item() == 1 - 2.0**-20
    assert all(m.dtype == np.float32 for m in masters.values())
    assert values(p)[0] == 1.0
