"""Which calls may follow, several passes of a step, and trainers that share them."""

import dataclasses

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp import Trainer
from gluon_amp.trainer.state import Found, Gradients, Pass, Phase
from tests.trainer.helpers import TWO, losses_on, norm_net, parameter, run, same, statistics, values

from mxnet import autograd, nd

inf = np.inf


PREPARATIONS = {
    Phase.READY: [],
    Phase.WRITTEN: ["backward"],
    Phase.SUMMED: ["accumulate"],
    Phase.REPLACED: ["accumulate", "clip"],
}
CALLS = {
    "backward": lambda trainer, loss: trainer.backward(loss),
    "scale_loss": lambda trainer, loss: amp.scale_loss(loss, trainer).__enter__(),
    "accumulate": lambda trainer, loss: trainer.backward(loss, accumulate=True),
    "clip": lambda trainer, loss: trainer.clip_global_norm(1.0, 1),
    "allreduce": lambda trainer, loss: trainer.allreduce_grads(),
    "unscale": lambda trainer, loss: amp.unscale(trainer),
    "step": lambda trainer, loss: trainer.step(1),
    "update": lambda trainer, loss: trainer.update(1),
}
NONE = r"no scaled backward pass .* call trainer\.backward\(loss\) in place of loss\.backward\(\)"
MIXED = "all with accumulate=True or all without: call step between them"
AFTER = r"follows clip_global_norm, allreduce_grads or unscale, .*: call step first"
# By phase: after backward passes without and with `accumulate`, looks at gradients, and steps
FOLLOWING = {
    Phase.READY: (Phase.WRITTEN, Phase.SUMMED, NONE, NONE),
    Phase.WRITTEN: (Phase.WRITTEN, MIXED, Phase.WRITTEN, Phase.READY),
    Phase.SUMMED: (MIXED, Phase.SUMMED, Phase.REPLACED, Phase.READY),
    Phase.REPLACED: (AFTER, AFTER, Phase.REPLACED, Phase.READY),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("phase", Phase)
def test_each_call_leads_to_a_phase_or_raises(phase, call):
    p = parameter("p", [1.0], "float32")
    trainer = Trainer([p], "sgd", loss_scale=8)
    with autograd.record():
        losses = iter([p.data() * 0.5 for _ in range(3)])
    for earlier in PREPARATIONS[phase]:
        CALLS[earlier](trainer, next(losses))
    assert trainer.step_state.phase is phase
    place = ("backward scale_loss", "accumulate", "clip allreduce unscale", "step update")
    (expected,) = (one for one, calls in zip(FOLLOWING[phase], place) if call in calls.split())
    if isinstance(expected, Phase):
        CALLS[call](trainer, next(losses))
        assert trainer.step_state.phase is expected
    else:
        with pytest.raises(RuntimeError, match=expected):
            CALLS[call](trainer, next(losses))
        assert trainer.step_state.phase is phase


def test_passes_and_gradients_are_frozen_values_and_end_with_the_step():
    p = parameter("p", [1.0])
    trainer = Trainer([p], "sgd", loss_scale=8)
    run(trainer, [(p, [0.25])], step=False)
    trainer.clip_global_norm(inf, 1)
    made, done = trainer.current_pass(), trainer.step_state.gradients
    assert made is trainer.loss_scale.last_pass
    assert (made.scale, made.searching, made.at_floor) == (8.0, False, True)
    assert (done.norm, done.clip_factor, trainer.used_scale()) == (0.25, 1.0, 8.0)
    for value, field in ((made, "scale"), (done, "norm")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field, 4.0)
    trainer.step(1)
    assert trainer.step_state.gradients == Gradients()
    assert Trainer([], "sgd", loss_scale=None).current_pass() == Pass(scale=1.0)


def test_a_scale_of_a_users_class_is_checked_as_a_pass_begins():
    class Drifting(amp.LossScale):
        scale = property(lambda self: 3.0 if self.last_pass else 4.0)

    p = parameter("p", [1.0])
    trainer = Trainer([p], "sgd", loss_scale=Drifting())
    assert run(trainer, [(p, [0.5])]).loss_scale == 4.0
    with pytest.raises(ValueError, match=r"scale must be a power of two.* received 3\.0"):
        run(trainer, [(p, [0.5])])


@pytest.mark.parametrize("found, fitting", [([4.0, 16.0], 4.0), ([4.0, None], 4.0), ([None], None)])
def test_passes_fit_where_each_of_them_does(found, fitting):
    made = Pass(scale=16.0)
    for one in found:
        made = made.with_backward((), Found(16.0, one))
    assert made.fitting == fitting


# ------------------------------------------------------------------------------ several passes


def on_two(dtype="float16", **options):
    p = parameter("p", [0.0], dtype, ctx=TWO)
    options.setdefault("loss_scale", 8)
    return p, Trainer([p], "sgd", {"learning_rate": 1.0}, **options)


def both(param):
    return [data.asnumpy().item() for data in param.list_data()]


@pytest.mark.parametrize("dtype, loss_scale", [("float32", None), ("float16", 8)])
@pytest.mark.parametrize("then", ["step", "clip", "allreduce"])
def test_gradients_of_a_later_pass_are_measured_and_reduced_again(dtype, loss_scale, then):
    """Under float16 the first pass was divided by 2 before its sum, and the second one is not."""
    p, trainer = on_two(dtype, loss_scale=loss_scale)
    trainer.backward(losses_on(p, (5.0, 5.0), TWO))
    assert trainer.clip_global_norm(1.0, 1) == 10.0
    trainer.backward(losses_on(p, (1.0, 2.0), TWO))
    assert p.grad(TWO[1]).asnumpy().item() == 2.0 * (loss_scale or 1)
    if then == "clip":
        assert trainer.clip_global_norm(100.0, 1) == 3.0
    if then == "allreduce":
        trainer.allreduce_grads()
        report = trainer.update(1)
    else:
        report = trainer.step(1)
    assert report.grad_norm == (3.0 if then == "clip" else None)
    assert both(p) == [-3.0, -3.0]


def test_gradients_of_another_trainers_pass_are_reduced_again():
    p, q = parameter("p", [0.0], ctx=TWO), parameter("q", [0.0], ctx=TWO)
    shared = amp.DynamicLossScale(8.0)
    first = Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale=shared)
    second = Trainer([q], "sgd", {"learning_rate": 1.0}, loss_scale=shared)
    for factors in ((5.0, 5.0), (1.0, 2.0)):
        first.backward([*losses_on(p, factors, TWO), *losses_on(q, factors, TWO)])
        norm = second.clip_global_norm(100.0, 1)
    assert norm == 3.0
    for trainer, param in ((first, p), (second, q)):
        assert trainer.step(1).applied
        assert both(param) == [-3.0, -3.0]


@pytest.mark.parametrize("then", ["adds", "writes some", "adds to unscaled"])
def test_a_pass_that_mixes_its_gradients_with_reduced_or_unscaled_ones_is_refused(then):
    devices = TWO[:1] if "unscaled" in then else TWO
    grad_req = "add" if "adds" in then else "write"
    p, q = (parameter(k, [0.0], "float32", ctx=devices, grad_req=grad_req) for k in "pq")
    trainer = Trainer([p, q], "sgd", loss_scale=8)
    terms = losses_on(p, (1.0, 2.0), devices), losses_on(q, (1.0, 2.0), devices)
    trainer.backward([*terms[0], *terms[1]])
    if "unscaled" in then:
        amp.unscale(trainer)
    else:
        trainer.allreduce_grads()
    trainer.backward(losses_on(p, (1.0, 2.0), devices))
    for call in (trainer.step, lambda size: trainer.clip_global_norm(1, size)):
        with pytest.raises(RuntimeError, match=r"two units: call clip.* after the last backward"):
            call(1)


def test_a_pass_that_adds_on_one_device_needs_no_new_reduction():
    p, q = parameter("p", [0.0], grad_req="add"), parameter("q", [0.0])
    trainer = Trainer([p, q], "sgd", {"learning_rate": 1.0}, loss_scale=8)
    run(trainer, [(p, [1.0]), (q, [0.5])], step=False)
    trainer.clip_global_norm(0.5, 1)
    run(trainer, [(p, [2.0])])
    assert (values(p)[0], values(q)[0]) == (-3.0, -0.5)  # q's gradient is not stale


# ------------------------------------------------------------------------------ what is measured


def test_clipping_measures_the_gradients_that_the_step_uses():
    p, q = parameter("p", [0.0]), parameter("q", [0.0])
    trainer = Trainer([p, q], "sgd", {"learning_rate": 1.0}, loss_scale=8)
    run(trainer, [(p, [1.0]), (q, [0.5])])
    run(trainer, [(p, [1.0])], step=False)
    assert trainer.clip_global_norm(inf, 1) == 1.0  # 1.118 with q's stale gradient
    trainer.step(1, ignore_stale_grad=True)
    assert (values(p)[0], values(q)[0]) == (-2.0, -0.5)


def test_a_stale_gradient_is_not_reduced_into_the_norm_either():
    p, q = parameter("p", [0.0], ctx=TWO), parameter("q", [0.0], ctx=TWO)
    trainer = Trainer([p, q], "sgd", {"learning_rate": 1.0}, loss_scale=8)
    trainer.backward([*losses_on(p, (1.0, 1.0), TWO), *losses_on(q, (9.0, 9.0), TWO)])
    trainer.step(1)
    trainer.backward(losses_on(p, (1.0, 2.0), TWO))
    assert trainer.clip_global_norm(inf, 1) == 3.0


def test_a_gradient_of_the_second_device_alone_is_measured():
    p, trainer = on_two()
    trainer.backward(losses_on(p, (2.0,), TWO[1:]))
    assert trainer.clip_global_norm(1.0, 1) == 2.0
    assert trainer.step(1, ignore_stale_grad=True).applied
    assert p.list_data()[1].asnumpy().item() == -1.0


def test_devices_that_are_not_reduced_are_all_measured():
    p, trainer = on_two(kvstore=None)
    trainer.backward(losses_on(p, (3.0, 4.0), TWO))
    assert trainer.clip_global_norm(2.5, 1) == 5.0
    trainer.step(1)
    assert both(p) == [-1.5, -2.0]


@pytest.mark.parametrize("unscale_first", [False, True])
def test_clipping_and_unscaling_are_both_in_the_update(unscale_first):
    p = parameter("p", [0.0], "float32")
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale=8)
    run(trainer, [(p, [4.0])], step=False)
    if unscale_first:
        amp.unscale(trainer)
    assert trainer.clip_global_norm(1.0, 1) == 4.0
    if not unscale_first:
        amp.unscale(trainer)
    assert p.grad().asnumpy().item() == 4.0
    assert trainer.step(1).grad_norm == 4.0
    assert values(p)[0] == -1.0


# ------------------------------------------------------------------------------ a shared scale


def sharing(shared, values=(1.0, 1.0)):
    """Return two parameters, and a trainer of each with the same scale."""
    params = [parameter(name, [value]) for name, value in zip("pq", values)]
    settings = {"learning_rate": 1.0}
    return (*params, *(Trainer([one], "sgd", settings, loss_scale=shared) for one in params))


def test_two_trainers_share_a_scale_and_a_backward_pass():
    shared = amp.DynamicLossScale(init_scale=8, growth_interval=2)
    p, q, first, second = sharing(shared)

    def step(f, g):
        run(first, [(p, [f]), (q, [g])], step=False)
        return [first.step(1), second.step(1)]

    step(0.5, 0.5)
    assert (shared.scale, shared.finite_steps) == (8.0, 1)
    reports = step(0.25, inf)
    assert [r.applied for r in reports] == [True, False]
    assert [r.loss_scale for r in reports] == [8.0, 8.0]
    assert (shared.scale, shared.finite_steps) == (4.0, 0)
    assert [r.applied for r in step(inf, inf)] == [False, False]
    assert shared.scale == 2.0
    assert [r.applied for r in step(inf, 0.0)] == [False, True]
    assert (shared.scale, shared.finite_steps) == (1.0, 0)
    assert (values(p)[0], values(q)[0]) == (0.25, 0.5)
    step(0.25, 0.5)
    assert (values(p)[0], values(q)[0]) == (0.0, 0.0)
    for one in (first, second, Trainer([parameter("r", [1.0])], "sgd", loss_scale=shared)):
        with pytest.raises(RuntimeError, match=r"trainer\.backward\(loss\)"):
            one.step(1)


def test_the_passes_of_each_trainer_have_the_scale_that_they_began_with():
    shared = amp.DynamicLossScale(init_scale=8)
    p, q, first, second = sharing(shared)
    run(second, [(q, [0.25])], step=False)
    assert not run(first, [(p, [inf])]).applied
    assert shared.scale == 4.0
    run(second, [(q, [0.5])], step=False)  # its step is not made yet
    report = second.step(1)
    assert (report.loss_scale, report.next_loss_scale, values(q)[0]) == (8.0, 4.0, 0.5)
    assert run(first, [(p, [0.5])]).loss_scale == 4.0


def test_a_shared_pass_says_nothing_about_the_scale_at_which_another_trainers_gradients_fit():
    shared = amp.DynamicLossScale()
    p, q, first, second = sharing(shared, (1.0, 0.0))
    with autograd.record():
        loss = nd.cast(p.data(), "float32") * 0.25 + nd.sqrt(nd.cast(q.data(), "float32"))
    first.backward(loss)  # q's gradient is infinite at any scale, and p's fits at 2**16
    assert first.step(1).loss_scale == 2.0**13
    assert second.step(1).next_loss_scale == 2.0**5  # as little is known as without replays


def test_a_shared_pass_is_undone_by_the_trainer_that_did_not_run_it():
    """Its step also copies the statistics of the first device to the second one."""
    nets = norm_net(prefix="a_"), norm_net(prefix="b_")
    for net in nets:
        net.collect_params().reset_ctx(TWO)
        net[1].running_mean.data(TWO[1])[:] = 5
    shared = amp.StaticLossScale(8)
    trainers = [Trainer(n.collect_params(), "sgd", loss_scale=shared) for n in nets]
    with autograd.record():
        losses = [
            nets[0](nd.ones((2, 2), ctx=ctx)).sum() + nets[1](nd.full((2, 2), x, ctx=ctx)).sum()
            for ctx, x in zip(TWO, (inf, 1))
        ]
    trainers[0].backward(losses)
    assert trainers[0].step(1).applied
    assert not trainers[1].step(1).applied
    mean, var = nets[1][1].running_mean, nets[1][1].running_var
    assert [one.asnumpy().tolist() for one in mean.list_data()] == [[0, 0], [5, 5]]
    assert [one.asnumpy().tolist() for one in var.list_data()] == [[1, 1]] * 2


def test_a_skip_leaves_what_a_trainer_with_the_same_scale_applied():
    nets, shared = (norm_net(), norm_net()), amp.StaticLossScale(8)
    trainers = [Trainer(n.collect_params(), "sgd", loss_scale=shared) for n in nets]
    for trainer, net, x in zip(trainers, nets, (inf, 2.0)):
        with autograd.record():
            loss = net(nd.array([[x, 2], [3, 4]])).sum()
        trainer.backward(loss)
    before = statistics(nets[0])
    assert trainers[1].step(1).applied
    learnt = statistics(nets[1])
    assert not trainers[0].step(1).applied
    same(learnt, statistics(nets[1]))
    assert not np.isfinite([*before.values()]).all() and np.isfinite([*learnt.values()]).all()
    assert np.isfinite([*statistics(nets[0]).values()]).all()
