"""The Trainer's interface: what it does in each case, with literal numbers, and how it refuses."""

import logging
import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest

from gluon_amp import optimizer
from gluon_amp import trainer as trainer_module
from gluon_amp.trainer import StepReport, Trainer
from gluon_amp.trainer.contrib_amp import init_trainer, scale_loss, unscale
from gluon_amp.trainer.loss_scale import DynamicLossScale, NoLossScale, StaticLossScale

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

inf, nan = np.inf, np.nan


def parameter(name, value, dtype="float16", ctx=None, **kwargs):
    """An initialized Parameter with these values."""
    value = np.asarray(value, "float32")
    made = gluon.Parameter(name, shape=value.shape, dtype=dtype, **kwargs)
    made.initialize(ctx=ctx, init=mx.init.Zero())
    made.set_data(nd.array(value, dtype=dtype))
    return made


def run(trainer, terms, batch_size=1, step=True):
    """One backward pass of sum(parameter * factor) over (parameter, factor) pairs, and the step.

    Unscaled, each parameter's gradient is its factor. (`cast` and not `astype`, whose gradient
    overwrites what it should be added to.)
    """
    with autograd.record():
        loss = sum(
            (
                nd.cast(p.data(c), dtype="float32") * nd.array(np.asarray(factor, "float32"), ctx=c)
            ).sum()
            for p, factor in terms
            for c in p.list_ctx()[:1]
        )
    trainer.backward(loss)
    return trainer.step(batch_size) if step else None


def values(param):
    return param.data().asnumpy()


class Dense16(gluon.HybridBlock):
    """A Dense layer with a float16 weight; products in float32, results rounded to float16."""

    def __init__(self, units, in_units, **kwargs):
        super().__init__(**kwargs)
        self._units = units
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(units, in_units), dtype="float16")
            self.norm = nn.BatchNorm(in_channels=units)

    def hybrid_forward(self, F, x, weight):
        def rounded(values):
            return F.cast(F.cast(values, "float16"), "float32")

        x = F.FullyConnected(
            rounded(x), F.cast(weight, "float32"), num_hidden=self._units, no_bias=True
        )
        return self.norm(rounded(x))


def network(ctx=None):
    net = nn.HybridSequential()
    net.add(Dense16(8, 4), nn.Activation("relu"), Dense16(3, 8))
    net.initialize(mx.init.Xavier(), ctx=ctx)
    net.hybridize()
    return net


# ------------------------------------------------------------------------------ which scale


def test_the_default_scale_goes_by_dtype():
    def scale_for(param):
        return type(Trainer([param], "sgd").loss_scale)

    assert scale_for(parameter("half", [1.0])) is DynamicLossScale
    assert scale_for(parameter("single", [1.0], "float32")) is NoLossScale
    cast = parameter("cast", [1.0], "float32")
    cast._amp_compute_dtype = "float16"
    assert scale_for(cast) is DynamicLossScale
    cast._amp_compute_dtype = "bfloat16"
    assert scale_for(cast) is NoLossScale


def test_loss_scale_argument():
    p = parameter("p", [1.0])
    assert Trainer([p], "sgd", loss_scale=128).loss_scale.scale == 128.0
    assert isinstance(Trainer([p], "sgd", loss_scale=None).loss_scale, NoLossScale)
    with pytest.raises(ValueError, match="power of two"):
        Trainer([p], "sgd", loss_scale=100)


# ------------------------------------------------------------------------------ backward and step


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
    assert p.grad().asscalar() == 2048.0
    assert loss.asscalar() == 6.0


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
    trainer._scale /= 2  # what Horovod's DistributedTrainer does
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
    assert [d.asscalar() for d in p.list_data()] == [5.0, 5.0]
    with autograd.record():
        losses = [p.data(c).astype("float32") * f for c, f in zip(ctx, (1.0, inf))]
    trainer.backward(losses)
    report = trainer.step(1)
    assert (report.applied, report.overflow) == (False, ("p",))
    assert [d.asscalar() for d in p.list_data()] == [5.0, 5.0]


def test_two_contexts_without_a_kvstore_agree_to_skip():
    ctx = [mx.cpu(0), mx.cpu(1)]
    p = parameter("p", [8.0], ctx=ctx)
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, kvstore=None, loss_scale=4)
    with autograd.record():
        losses = [p.data(c).astype("float32") * f for c, f in zip(ctx, (1.0, nan))]
    trainer.backward(losses)
    assert not trainer.step(1).applied
    assert [d.asscalar() for d in p.list_data()] == [8.0, 8.0]


def test_allreduce_grads_and_update_in_place_of_step():
    ctx = [mx.cpu(0), mx.cpu(1)]
    p = parameter("p", [8.0], ctx=ctx)
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale=4)
    with autograd.record():
        losses = [p.data(c).astype("float32") for c in ctx]
    trainer.backward(losses)
    trainer.allreduce_grads()
    assert p.grad(ctx[0]).asscalar() == 8.0
    assert trainer.clip_global_norm(inf) == 2.0
    assert trainer.update(1).applied
    assert [d.asscalar() for d in p.list_data()] == [6.0, 6.0]


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


def test_the_cpu_check_never_takes_multi_all_finite(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("28 ns an element")

    monkeypatch.setattr(nd, "multi_all_finite", refuse)
    p, q = parameter("p", [1.0]), parameter("q", [1.0], "float32")
    trainer = Trainer([p, q], "sgd", loss_scale=16)
    assert run(trainer, [(p, [1.0]), (q, [1.0])]).applied
    assert not run(trainer, [(p, [1.0]), (q, [nan])]).applied


def test_row_sparse_gradients():
    embedding = nn.Embedding(5, 2, sparse_grad=True)
    embedding.initialize(mx.init.One())
    trainer = Trainer(embedding.collect_params(), "sgd", {"learning_rate": 1.0}, loss_scale=8)

    def report(factor):
        with autograd.record():
            loss = (embedding(nd.array([1, 3])) * factor).sum()
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
    # what a stale buffer holds is of no interest
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
    monkeypatch.setattr(trainer_module.snapshot, "begin_backward", None)
    assert run(trainer, [(p, [inf])]) == StepReport(True, 1.0, 1.0)
    assert values(p)[0] == -inf


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


def test_any_mxnet_optimizer_by_name():
    for name in ("rmsprop", "adagrad", "signum", "ftml", "nadam", "adadelta", "adamax"):
        p = parameter("p", [1.0])
        trainer = Trainer([p], name, loss_scale="dynamic")
        assert run(trainer, [(p, [0.5])]).applied
        assert not run(trainer, [(p, [inf])]).applied
        (master,) = trainer.master_params().values()
        assert master.dtype == np.float32
        assert master.asscalar() != 1.0
        assert np.float16(master.asscalar()) == values(p)[0]


# ------------------------------------------------------------------------------ clipping


def test_clip_global_norm_is_the_true_norm_over_all_dtypes():
    p, q = parameter("p", [0.0]), parameter("q", [0.0], "float32")
    trainer = Trainer([p, q], "sgd", {"learning_rate": 1.0}, loss_scale=4096)
    run(trainer, [(p, [3.0]), (q, [4.0])], step=False)
    assert trainer.clip_global_norm(1.0) == 5.0
    assert p.grad().asscalar() == 3 * 4096.0  # not in place
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
            norm = gluon.utils.clip_global_norm([p.grad()], 6.0)
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
    assert [d.asscalar() for d in p.list_data()] == [-1.0, -1.0]


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
        p.set_data(nd.full((4,), 5.0, dtype="float16"))
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
            loss = net(nd.random.normal(shape=(4, 4))).abs().sum()
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
    before = {name: v.asscalar() for name, v in trainer.master_params().items()}
    assert before == {"p": 1.0, "q": 1.0, "frozen": 2.0}
    late.shape = (1,)
    late._finish_deferred_init()
    run(trainer, [(p, [1.0]), (q, [1.0]), (late, [0.0])])
    masters = trainer.master_params()
    assert masters["p"].asscalar() == masters["q"].asscalar() == 1 - 2.0**-20
    assert all(m.dtype == np.float32 for m in masters.values())
    assert values(p)[0] == 1.0


# ------------------------------------------------------------------------------ skips are told


def test_a_skip_is_logged_in_one_line_and_told_to_the_callback(caplog):
    p = parameter("layer0_weight", [1.0])
    told = []
    trainer = Trainer([p], "sgd", on_skip=told.append)
    with caplog.at_level(logging.INFO, "gluon_amp"):
        run(trainer, [(p, [1e-3])])
        assert not caplog.records
        report = run(trainer, [(p, [inf])])
    assert told == [report]
    (record,) = caplog.records
    assert record.getMessage() == (
        "Step skipped: gradients of layer0_weight overflowed at loss scale 65536; next scale "
        "32768, 1 skipped so far."
    )


def test_at_the_floor_a_clear_error_names_the_parameters():
    params = [parameter(f"p{i}", [1.0]) for i in range(8)]
    trainer = Trainer(
        params,
        "sgd",
        loss_scale=DynamicLossScale(init_scale=4, min_scale=1),
        max_consecutive_skips=3,
    )
    overflow = [(p, [inf]) for p in params]
    assert [run(trainer, overflow).next_loss_scale for _ in range(4)] == [2.0, 1.0, 1.0, 1.0]
    with pytest.raises(
        FloatingPointError,
        match=r"^3 steps in a row overflowed at loss scale 1, which cannot go lower, in the "
        r"gradients of p0, p1, p2, p3, p4 and 3 more: ",
    ):
        run(trainer, overflow)
    assert {float(values(p)[0]) for p in params} == {1.0}


@pytest.mark.parametrize(
    "value, factor, cause",
    [
        (1.0, 1e5, "the forward pass looks finite, so it is probably its gradient that overflows"),
        (1.0, inf, "the forward pass is not finite already, so look for infinite data"),
        (nan, 1.0, "the parameter p is not finite itself, so load a finite one"),
    ],
)
def test_at_the_floor_the_error_names_the_cause(value, factor, cause):
    p, q = parameter("p", [value]), parameter("q", [1.0])
    trainer = Trainer([p, q], "sgd", loss_scale=8, max_consecutive_skips=2)
    terms = [(p, [factor]), (q, [nan if value != value else factor])]
    assert not run(trainer, terms).applied
    with pytest.raises(FloatingPointError, match=cause):
        run(trainer, terms)


def test_a_finite_step_starts_the_count_again_and_a_static_scale_is_always_at_its_floor():
    p = parameter("p", [1.0])
    trainer = Trainer([p], "sgd", loss_scale=8, max_consecutive_skips=2)
    for _ in range(3):
        assert not run(trainer, [(p, [inf])]).applied
        assert run(trainer, [(p, [0.0])]).applied
    run(trainer, [(p, [inf])])
    with pytest.raises(FloatingPointError, match="2 steps in a row"):
        run(trainer, [(p, [inf])])


# ------------------------------------------------------------------------------ states


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
    assert run(other, [(other._params[0], [inf])]).skipped_total == 3


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
    with pytest.warns(UserWarning, match=r"had lr=0\.5; this trainer keeps its 0\.25\.") as found:
        other.load_states(path)
    assert len(found) == 1
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
        (lambda p: Trainer([p, parameter("q", [1.0])], "sgd"), "these 2 or not of their shapes"),
        (lambda p: Trainer([parameter("q", [1.0, 2.0])], "sgd"), "not of their shapes"),
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


def test_truncated_and_foreign_files_are_refused(tmp_path):
    path = str(tmp_path / "states")
    p = parameter("p", [1.0])
    trainer = Trainer([p], "adam")
    run(trainer, [(p, [1e-3])])
    trainer.save_states(path)
    whole = Path(path).read_bytes()
    stock = gluon.Trainer([parameter("q", [1.0], "float32")], "sgd")
    stock.save_states(path + ".stock")
    contents = [b"", whole[:-1], whole[: len(whole) // 2], b"\x93NUMPY", pickle.dumps([1])]
    contents += [Path(path + ".stock").read_bytes(), pickle.dumps(os.system)]
    for content in contents:
        with open(path, "wb") as file:
            file.write(content)
        match = r"truncated or |save_states did not write|state of the optimizer mxnet.*\.SGD"
        with pytest.raises(ValueError, match=match):
            trainer.load_states(path)


def test_a_failed_save_keeps_the_old_file(tmp_path, monkeypatch):
    path = str(tmp_path / "states")
    p = parameter("p", [1.0])
    trainer = Trainer([p], "sgd")
    trainer.save_states(path)
    before = Path(path).read_bytes()

    def fail(*args):
        raise OSError("disk full")

    run(trainer, [(p, [1e-3])])
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(OSError, match="disk full"):
                trainer.save_states(path)
        assert Path(path).read_bytes() == before
        assert os.listdir(tmp_path) == ["states"]
    trainer.save_states(path)
    assert Path(path).read_bytes() != before


# ------------------------------------------------------------------------------ misuse


def test_step_without_a_scaled_backward():
    p = parameter("p", [1.0])
    trainer = Trainer([p], "sgd")
    message = r"call trainer\.backward\(loss\) in place of loss\.backward\(\)"
    with autograd.record():
        loss = p.data().astype("float32")
    loss.backward()
    for call in (lambda: trainer.step(1), lambda: trainer.update(1)):
        with pytest.raises(RuntimeError, match=message):
            call()
    with pytest.raises(RuntimeError, match=message):
        trainer.clip_global_norm(1.0)
    assert run(trainer, [(p, [0.5])]).applied
    with pytest.raises(RuntimeError, match=message):
        trainer.step(1)


def test_a_float16_loss_is_refused():
    p = parameter("p", [1.0])
    trainer = Trainer([p], "sgd")
    with autograd.record():
        loss = p.data() * 2
    with pytest.raises(TypeError, match="The loss is float16, .* cast the network's output to"):
        trainer.backward(loss)
    with pytest.raises(ValueError, match="no loss"):
        trainer.backward([])


def test_a_trainer_built_before_the_cast():
    p = parameter("p", [1.0], "float32")
    trainer = Trainer([p], "sgd")
    p.cast("float16")
    with autograd.record():
        loss = p.data().astype("float32")
    loss.backward()
    with pytest.raises(RuntimeError, match="p was float32 when .* and is float16 now: the trainer"):
        trainer.step(1)


def test_a_trainer_built_before_a_cast_that_leaves_the_parameters_alone():
    p = parameter("p", [1.0], "float32")
    trainer, sure = Trainer([p], "sgd"), Trainer([p], "sgd", loss_scale=8)
    p._amp_compute_dtype = "float16"
    with pytest.raises(RuntimeError, match="is float32 computing in float16 now: the trainer"):
        run(trainer, [(p, [1.0])])
    assert run(sure, [(p, [1.0])]).applied


def test_updates_on_the_kvstore_are_refused():
    p = parameter("p", [1.0])
    with pytest.raises(ValueError, match="update_on_kvstore=True would apply gradients before"):
        Trainer([p], "sgd", update_on_kvstore=True)
    Trainer([p], "sgd", update_on_kvstore=False)
    with pytest.raises(ValueError, match="async kvstore .* use 'dist_sync'"):
        Trainer([p], "sgd", kvstore="dist_async")
    sparse = gluon.Parameter("s", shape=(2, 2), stype="row_sparse")
    sparse.initialize()
    with pytest.raises(ValueError, match="stored as row_sparse"):
        Trainer([sparse], "sgd")
    with pytest.raises(ValueError, match="Gradient compression"):
        Trainer([p], "sgd", compression_params={"type": "2bit", "threshold": 0.5})
    Trainer([p], "sgd", compression_params={"type": "2bit", "threshold": 0.5}, loss_scale=None)


@pytest.mark.parametrize("wrong", [0, -1, None, "8"])
def test_wrong_numbers(wrong):
    p = parameter("p", [1.0])
    trainer = Trainer([p], "sgd")
    run(trainer, [(p, [1.0])], step=False)
    with pytest.raises(ValueError, match="batch_size must be a number above 0"):
        trainer.step(wrong)
    with pytest.raises(ValueError, match="max_norm must be a number above 0"):
        trainer.clip_global_norm(wrong)
    with pytest.raises(ValueError, match="max_consecutive_skips must be a whole number"):
        Trainer([p], "sgd", max_consecutive_skips=wrong)


def test_an_optimizer_without_masters_is_refused():
    with pytest.raises(ValueError, match="SGD has multi_precision=False, but there are float16"):
        Trainer([parameter("p", [1.0])], mx.optimizer.SGD())
    with pytest.raises(ValueError, match="Unknown optimizer 'adma'"):
        Trainer([parameter("p", [1.0])], "adma")


# ------------------------------------------------------------------------------ contrib.amp's names


class Halving(gluon.Trainer):
    """As Horovod's DistributedTrainer: its own reduction, its own factor, no kvstore."""

    def __init__(self, params, made, **kwargs):
        super().__init__(params, made, kvstore=None, **kwargs)
        self._scale /= 2
        self.reductions = 0

    def _allreduce_grads(self):
        self.reductions += 1
        for param in self._params:
            param.list_grad()[0][:] *= 2


def test_init_trainer_keeps_another_trainers_reduction_and_factor():
    p = parameter("p", [1.0])
    trainer = Halving([p], mx.optimizer.SGD(learning_rate=1.0, multi_precision=True))
    init_trainer(trainer)
    assert isinstance(trainer, Halving)
    assert trainer.loss_scale.scale == 65536.0
    trainer.loss_scale.load_state_dict(DynamicLossScale(8).state_dict())
    assert run(trainer, [(p, [0.5])]).applied
    assert (values(p)[0], trainer.reductions) == (0.5, 1)
    assert not run(trainer, [(p, [inf])]).applied
    assert values(p)[0] == 0.5


def test_stale_gradients_count_where_another_class_reduces_them():
    used, unused = parameter("used", [1.0]), parameter("unused", [1.0])
    made = mx.optimizer.SGD(learning_rate=0.5, multi_precision=True)
    trainer = Halving([used, unused], made)
    init_trainer(trainer, loss_scale=8)
    unused.grad()[:] = inf  # stale here, but it may have been another worker's
    run(trainer, [(used, [0.5])], step=False)
    assert trainer.step(1, ignore_stale_grad=True).overflow == ("unused",)
    run(trainer, [(used, [0.5])], step=False)
    assert trainer.step(1, ignore_stale_grad=True).applied
    assert (values(used)[0], values(unused)[0]) == (0.75, 1.0)


def test_init_trainer_on_a_stock_trainer_of_two_contexts_moves_the_update_off_the_kvstore():
    ctx = [mx.cpu(0), mx.cpu(1)]
    p = parameter("p", [1.0], "float32", ctx=ctx)
    trainer = gluon.Trainer([p], "sgd", {"learning_rate": 1.0})
    init_trainer(trainer, loss_scale="dynamic")
    for factor, expected in ((0.25, 0.5), (inf, 0.5)):
        with autograd.record():
            losses = [p.data(c) * factor for c in ctx]
        trainer.backward(losses)
        trainer.step(1)
        assert [d.asscalar() for d in p.list_data()] == [expected] * 2


def test_init_trainer_refuses():
    p = parameter("p", [1.0])
    with pytest.raises(TypeError, match="takes a gluon.Trainer"):
        init_trainer(mx.optimizer.SGD())
    with pytest.raises(ValueError, match="call init_trainer\\(\\) once"):
        init_trainer(Trainer([p], "sgd"))
    stock = gluon.Trainer([p], mx.optimizer.SGD())
    with pytest.raises(ValueError, match="multi_precision=False"):
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
    assert p.grad().asscalar() == 4.0
    assert trainer.step(1).applied
    assert values(p)[0] == 0.5
    with autograd.record(), scale_loss([p.data() / 2, p.data() * 1.5], trainer) as scaled:
        autograd.backward(scaled)
    unscale(trainer)
    unscale(trainer)
    assert p.grad().asscalar() == 2.0
    assert trainer.clip_global_norm(1.0) == 2.0
    report = trainer.step(1)
    assert (values(p)[0], report.loss_scale) == (-0.5, 8.0)


def test_scale_loss_without_a_scale_and_unscale_of_float16():
    p = parameter("p", [1.0])
    trainer = Trainer([p], "sgd", loss_scale=None)
    loss = nd.ones((1,))
    with scale_loss(loss, trainer) as scaled:
        assert scaled is loss
    trainer = Trainer([p], "sgd", loss_scale=StaticLossScale(8))
    run(trainer, [(p, [1.0])], step=False)
    with pytest.raises(TypeError, match=r"clip with trainer\.clip_global_norm"):
        unscale(trainer)
