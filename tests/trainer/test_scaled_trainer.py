"""Scaled backward passes and steps: update, skip and what it undoes, overflow check, clipping."""

import gc
import sys
import threading
import weakref

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp import Trainer, optimizer
from gluon_amp.base import host
from gluon_amp.trainer import StepReport
from gluon_amp.trainer.loss_scale import FiniteCheck
from tests.trainer.helpers import (
    TWO,
    backward,
    bad,
    fine,
    losses_on,
    norm_net,
    parameter,
    run,
    same,
    scaled,
    statistics,
    values,
)

import mxnet as mx
from mxnet import autograd, gluon, nd, npx
from mxnet.gluon import nn

inf, nan = np.inf, np.nan


def test_losses_in_nested_lists_and_inside_record():
    p, q = parameter("p", [1.0]), parameter("q", [1.0])
    trainer = Trainer([p, q], "sgd", {"learning_rate": 1.0}, loss_scale=8)
    with autograd.record():
        a, b = p.data().astype("float32") * 0.5, q.data().astype("float32") * 0.25
        trainer.backward([[a], (b, b * 2)])
    trainer.step(1)
    assert (values(p)[0], values(q)[0]) == (0.5, 0.25)


@pytest.mark.parametrize("reset", [False, True], ids=["np", "reset_np"])
def test_losses_without_dimensions_are_scaled_searched_and_skipped(reset):
    """`mx.np` has them; a net that was traced under `set_np()` returns them after `reset_np()`."""
    npx.set_np()
    try:
        net = amp.cast(norm_net(), "float16")
        trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.25})
        x = fine()
        net(x)
        if reset:
            npx.reset_np()
        for factor, applied in ((2.0**8, True), (2.0**-6, True), (inf, False)):
            before = statistics(net)
            with autograd.record():
                loss = (net(x) * factor).sum()
            assert loss.shape == ()
            trainer.backward([loss, loss] if factor < 1 else loss)
            assert trainer.step(1).applied == applied
            if not applied:
                same(before, statistics(net))
        assert trainer.loss_scale.scale < 2.0**8
        assert {type(v) for v in trainer.master_params().values()} == {mx.np.ndarray}
    finally:
        npx.reset_np()


# ------------------------------------------------------------------------------ what a skip undoes


@pytest.fixture(params=["uncast", "hybridized", "float16", "mixed_float16"])
def net(request):
    net = norm_net()
    if request.param == "hybridized":
        net.hybridize()
    elif request.param != "uncast":
        amp.cast(net, request.param)
    return net


@pytest.mark.parametrize("moment", ["before backward", "between passes", "before step"])
def test_what_the_user_writes_in_between_stays(net, moment):
    trainer, mean = scaled(net), net[1].running_mean
    if moment == "between passes":
        backward(trainer, net, fine())
        mean.set_data(mx.nd.array([5, 6]))
    with autograd.record():
        loss = net(bad()).sum()
    if moment == "before backward":
        mean.set_data(mx.nd.array([5, 6]))
    trainer.backward(loss)
    if moment == "before step":
        mean.data()[:] = mx.nd.array([5, 6])
    assert not trainer.step(1).applied
    assert mean.data().asnumpy().tolist() == [5, 6]
    assert net[1].running_var.data().asnumpy().tolist() == [1, 1]


@pytest.mark.parametrize(
    "cast, critic_scale", [((), None), (("generator",), 4), (("critic",), 4), (("critic",), None)]
)
def test_statistics_belong_to_the_pass_that_wrote_them(cast, critic_scale):
    """A GAN's generator is trained through the critic, whose statistics move with it."""
    nets = {"generator": norm_net(), "critic": norm_net()}
    for name in cast:
        amp.cast(nets[name], "mixed_float16")
    generator, critic = nets.values()
    of_generator = scaled(generator)
    of_critic = Trainer(critic.collect_params(), "sgd", loss_scale=critic_scale)
    before = statistics(generator), statistics(critic)
    with autograd.record():
        loss = critic(generator(bad())).sum()
    of_generator.backward(loss)
    assert not of_generator.step(1).applied
    same(before[0], statistics(generator))
    same(before[1], statistics(critic))
    with autograd.record():
        loss = critic(generator(fine()).detach()).sum()
    of_critic.backward(loss)
    assert of_critic.step(1).applied
    assert np.isfinite([*statistics(critic).values()]).all()
    assert not np.array_equal(before[1].popitem()[1], statistics(critic).popitem()[1])


def test_a_separate_call_of_a_cast_child_leaves_the_parents_snapshots():
    child = amp.cast(norm_net(), "mixed_float16")
    parent = nn.HybridSequential()
    parent.add(child, nn.BatchNorm(in_channels=2))
    parent[1].initialize()
    trainer = scaled(parent)
    with autograd.record():
        child(fine())
    for hybridize in (False, True):
        if hybridize:
            parent.hybridize()
        backward(trainer, parent, fine())
        assert trainer.step(1).applied
        before = statistics(parent)
        backward(trainer, parent, bad())
        assert not trainer.step(1).applied
        same(before, statistics(parent))


def test_statistics_that_the_first_step_copies_to_other_devices_are_restored():
    net = norm_net()
    net.collect_params().reset_ctx(TWO)
    trainer = scaled(net)
    mean = net[1].running_mean
    mean.data(TWO[1])[:] = 5
    with autograd.record():
        losses = [net(bad().as_in_context(ctx)).sum() for ctx in TWO]
    trainer.backward(losses)
    assert not trainer.step(1).applied
    assert [array.asnumpy().tolist() for array in mean.list_data()] == [[0, 0], [5, 5]]


# ------------------------------------------------------------------------------ what is kept alive


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_nothing_is_kept_alive_by_passes_that_are_over(policy):
    net = amp.cast(norm_net(), policy)
    trainer = scaled(net)
    inputs = []
    for _ in range(5):
        inputs.append(fine().copy())
        backward(trainer, net, inputs[-1])
        with autograd.record():
            net(inputs[-1])
    gc.collect()
    # the list's own reference and that of the call
    assert [sys.getrefcount(inputs[k]) for k in range(5)] == [2] * 5
    assert len(trainer.current_pass().written) == 1
    assert trainer.step(1).applied


def test_a_deleted_net_is_not_kept_alive_by_its_pass():
    trainer = scaled(norm_net())
    net = amp.cast(norm_net(), "mixed_float16")
    with autograd.record():
        net(fine())
    mean = weakref.ref(net[1].running_mean)
    del net
    gc.collect()
    assert mean() is None
    assert trainer.loss_scale.scale == 8


def test_backward_passes_in_threads():
    """As GluonCV's detectors run them, one thread for each device."""
    net = norm_net()
    net.collect_params().reset_ctx(TWO)
    trainer = scaled(net)
    before = statistics(net)
    data = [bad(), fine().as_in_context(TWO[1])]
    threads = [threading.Thread(target=backward, args=(trainer, net, x)) for x in data]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not trainer.step(2).applied
    same(before, statistics(net))
    for p in net.collect_params().values():
        assert all(np.isfinite(d.asnumpy()).all() for d in p.list_data())


# ------------------------------------------------------------------------------ public faces


def test_public_names_are_not_those_of_another_trainer():
    stock = gluon.Trainer([parameter("p", [1.0])], "sgd")
    theirs = {*dir(stock), "root_rank", "compression"}  # the last two are BytePS's
    public = {name for name in vars(amp.trainer.ScaledTrainer) if not name.startswith("_")}
    overridden = ["allreduce_grads", "load_states", "save_states", "step", "update"]
    assert sorted(public & theirs) == overridden


def test_batch_size_and_rescale_grad_of_the_optimizer_both_count():
    p = parameter("p", [1.0])
    trainer = Trainer([p], optimizer.SGD(learning_rate=1.0, rescale_grad=0.5), loss_scale=8)
    run(trainer, [(p, [1.0])], batch_size=2)
    assert values(p)[0] == 0.75
    trainer.rescale /= 2  # what Horovod's DistributedTrainer does
    run(trainer, [(p, [1.0])])
    assert values(p)[0] == 0.5


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
    for one in (Trainer([frozen], "sgd"), Trainer([], "sgd", loss_scale="dynamic")):
        one.backward(losses_on(live, [1.0], [mx.cpu()]))
        assert one.step(1).applied
        assert one.loss_scale.finite_steps == 0  # nothing was learnt about the scale
        assert one.state_dict()["states"] == {}
    assert values(frozen)[0] == 1.0


# ------------------------------------------------------------------------------ stale gradients


def test_unused_parameters():
    used, unused = parameter("used", [4.0]), parameter("unused", [4.0])
    trainer = Trainer([used, unused], "sgd", {"learning_rate": 1.0}, loss_scale=8)
    run(trainer, [(used, [1.0]), (unused, [1.0])])
    run(trainer, [(used, [1.0])], step=False)
    with pytest.raises(UserWarning, match="unused"):
        trainer.step(1)
    unused.grad()[:] = inf  # the contents of a stale buffer do not matter
    assert trainer.step(1, ignore_stale_grad=True).applied
    assert (values(used)[0], values(unused)[0]) == (2.0, 3.0)


@pytest.mark.parametrize("clip", [False, True])
def test_after_a_skip_all_gradients_are_stale(clip):
    """A weight decay or momentum would move a parameter whose gradient counts as fresh."""
    used, unused = parameter("used", [4.0]), parameter("unused", [4.0])
    settings = {"learning_rate": 1.0, "wd": 0.5}
    trainer = Trainer([used, unused], "sgd", settings, loss_scale="dynamic")
    run(trainer, [(used, [0.5]), (unused, [inf])], step=False)
    if clip:
        trainer.clip_global_norm(1.0, 1)
    assert not trainer.step(1).applied
    run(trainer, [(used, [0.5])], step=False)
    assert trainer.step(1, ignore_stale_grad=True).applied
    assert (values(used)[0], values(unused)[0]) == (1.5, 4.0)


@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_after_a_skip_an_overflow_does_not_come_back(grad_req):
    """A reduction adds the stale gradient of a device, and 'add' the former gradient."""
    p = parameter("p", [4.0], ctx=TWO, grad_req=grad_req)
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale="dynamic")
    trainer.backward(losses_on(p, (inf, 0.25), TWO))
    assert not trainer.step(1).applied
    assert [grad.asnumpy().tolist() for grad in p.list_grad()] == [[0], [0]]
    trainer.backward(losses_on(p, (0.5,), TWO[1:]))
    assert trainer.step(1, ignore_stale_grad=True).applied
    assert p.data(TWO[1]).asnumpy().item() == 3.5


# ------------------------------------------------------------------------------ the optimizer


def test_clip_gradient_does_not_turn_an_inf_into_a_step():
    p = parameter("p", [1.0])
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0, "clip_gradient": 0.5}, loss_scale=1024)
    assert not run(trainer, [(p, [inf])]).applied
    assert values(p)[0] == 1.0
    # and it clips the true gradient, not the scaled one
    for factor, after in ((0.25, 0.75), (4.0, 0.25)):
        run(trainer, [(p, [factor])])
        assert values(p)[0] == after


# ------------------------------------------------------------------------------ clipping


def test_clip_global_norm_is_the_true_norm_over_all_dtypes():
    p, q = parameter("p", [0.0]), parameter("q", [0.0], "float32")
    trainer = Trainer([p, q], "sgd", {"learning_rate": 1.0}, loss_scale=4096)
    run(trainer, [(p, [3.0]), (q, [4.0])], step=False)
    assert trainer.clip_global_norm(1.0, 1) == 5.0
    assert p.grad().asnumpy().item() == 3 * 4096.0  # not in place
    report = trainer.step(1)
    assert report.grad_norm == 5.0
    np.testing.assert_allclose([values(p)[0], values(q)[0]], [-0.6, -0.8], rtol=1e-3)
    # the factor is gone with the step
    run(trainer, [(p, [3.0]), (q, [4.0])])
    np.testing.assert_allclose([values(p)[0], values(q)[0]], [-3.6, -4.8], rtol=1e-3)


@pytest.mark.parametrize(
    "bound, batch_size, norm, after",
    [(6.0, 1, 5.0, -5.0), (inf, 1, 5.0, -5.0), (0.5, 4, 1.25, -0.5)],
)
def test_bounds_and_the_norm_of_the_mean_gradient(bound, batch_size, norm, after):
    p = parameter("p", [0.0])
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale=8)
    run(trainer, [(p, [5.0])], step=False)
    assert trainer.clip_global_norm(bound, batch_size) == norm
    trainer.step(batch_size)
    assert values(p)[0] == after


def test_a_gradient_spoilt_between_clip_and_step_is_seen():
    p = parameter("p", [1.0])
    trainer = Trainer([p], "sgd", loss_scale="dynamic")
    run(trainer, [(p, [1.0])], step=False)
    trainer.clip_global_norm(1.0, 1)
    p.grad()[:] = nan
    assert not trainer.step(1).applied


# ------------------------------------------------------------------------------ check_finite


def test_a_check_without_a_scale_skips_and_names_the_parameter():
    p = parameter("p", [1.0], "float32")
    settings = {"learning_rate": 0.5}
    trainer = Trainer([p], "sgd", settings, check_finite=True, max_consecutive_skips=3)
    assert isinstance(trainer.loss_scale, FiniteCheck)
    report = run(trainer, [(p, [inf])])
    assert report == StepReport(False, 1.0, 1.0, None, ("p",), 1)
    assert run(trainer, [(p, [1.0])]).applied and values(p)[0] == 0.5
    for _ in range(2):
        run(trainer, [(p, [nan])])
    with pytest.raises(FloatingPointError, match="3 steps .* without a loss scale to lower"):
        run(trainer, [(p, [nan])])


def test_a_loss_that_ignores_its_head_gradient_needs_no_scale():
    p = parameter("p", [1.0, 2.0], "float32")
    trainer = Trainer([p], "sgd", {"learning_rate": 0.5}, check_finite=True)
    with autograd.record():
        loss = nd.SoftmaxOutput(p.data().reshape((1, 2)), nd.array([0]))
    trainer.backward(loss)
    assert trainer.step(1).applied


def test_a_loss_scale_keeps_its_check():
    p = parameter("p", [1.0])
    with pytest.raises(ValueError, match="check_finite=False cannot be used with a loss scale"):
        Trainer([p], "sgd", check_finite=False)
    assert Trainer([p], "sgd", check_finite=True).loss_scale.scale == 2.0**16
    assert not Trainer([p], "sgd", loss_scale=None, check_finite=False).scaling
    with pytest.raises(TypeError, match="check_finite must be True, False or None"):
        Trainer([p], "sgd", check_finite="yes")


# ------------------------------------------------------------------------------ reads of a GPU


@pytest.fixture
def reads(monkeypatch):
    """The arrays that were read so far, with the operators that a GPU would run."""
    monkeypatch.setattr(host, "_as_on_a_gpu", True)
    found, original = [], nd.NDArray.asnumpy

    def asnumpy(array):
        found.append(array.shape)
        return original(array)

    monkeypatch.setattr(nd.NDArray, "asnumpy", asnumpy)
    return found


@pytest.mark.parametrize("clip", [False, True])
def test_a_step_reads_once_from_each_device(reads, clip):
    p, zero = parameter("p", [1.0, 2.0], ctx=TWO), parameter("zero", [1.0], "float32", ctx=TWO)
    trainer = Trainer([p, zero], "sgd", {"learning_rate": 0.25, "momentum": 0.5}, loss_scale=8.0)
    for _ in range(2):
        trainer.backward([*losses_on(p, [1.5, 0.5], TWO), *losses_on(zero, [0, 0], TWO)])
        del reads[:]
        if clip:
            assert trainer.clip_global_norm(inf, 1) == np.sqrt(8)
        assert trainer.step(2).applied
        assert reads == [(2,) if clip else (1,)] * 2
    first, second = (array.asnumpy().tolist() for array in p.list_data())
    assert first == second != [1.0, 2.0]


def test_a_skip_reads_once_more_for_all_names(reads):
    params = [parameter(f"p{index:02d}", [1.0]) for index in range(12)]
    trainer = Trainer(params, "sgd", loss_scale=8.0)
    run(trainer, [(p, [1e6 if p is params[7] else 1.0]) for p in params], step=False)
    del reads[:]
    assert trainer.step(1).overflow == ("p07",)
    # the flag, the names, whether parameters are finite, whether losses are
    assert reads == [(1,), (12,), (12,), (1,)]


# ------------------------------------------------------------------------------ a veto


class Veto:
    """Vetoes steps whose gradient's norm is above 3, and keeps the reports."""

    def __init__(self):
        self.reports = []

    def __call__(self, trainer, report):
        self.reports.append(report)
        return report.grad_norm <= 3


@pytest.mark.parametrize("scale", [8.0, amp.DynamicLossScale(8.0), None])
def test_a_veto_undoes_the_step_and_leaves_the_scale(scale):
    p = parameter("p", [0.0, 0.0])
    veto, skipped = Veto(), []
    trainer = Trainer(
        [p], "adam", {"learning_rate": 0.5}, loss_scale=scale, on_step=veto, on_skip=skipped.append
    )
    before = trainer.loss_scale.state_dict()
    report = run(trainer, [(p, [6.0, 8.0])], 2)
    assert veto.reports[0].grad_norm == report.grad_norm == 5
    assert (veto.reports[0].applied, report.applied, report.overflow) == (True, False, ())
    assert (report.skipped_total, skipped) == (1, [report])
    assert trainer.loss_scale.state_dict() == before
    assert (trainer.optimizer.num_update, values(p).tolist()) == (0, [0, 0])
    assert not p.grad().asnumpy().any()
    assert run(trainer, [(p, [6.0, 8.0])], 4).applied
    assert trainer.optimizer.num_update == 1
    with pytest.raises(FloatingPointError):  # an overflow is not up to the callable
        while True:
            run(trainer, [(p, [inf, 0.0])])
    assert len(veto.reports) == 2


def test_on_step_sees_the_mean_loss_and_a_norm_that_was_measured():
    p = parameter("p", [1.0, 3.0], "float32")
    veto = Veto()
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, on_step=veto)
    with autograd.record():
        losses = [p.data() * 2, p.data().sum()]
    trainer.backward(losses)
    trainer.clip_global_norm(0.5, 1)
    trainer.step(1)
    assert veto.reports[0].loss == (2 + 6 + 4) / 3
    assert veto.reports[0].grad_norm == pytest.approx(3 * 2**0.5)
    assert run(trainer, [(p, [1.0, 0.0])]).loss is not None
    assert run(Trainer([p], "sgd", loss_scale=2), [(p, [1.0, 0.0])]).loss is None


def test_a_callable_that_returns_nothing_vetoes_nothing():
    p = parameter("p", [0.0])
    trainer = gluon.Trainer([p], "sgd", {"multi_precision": True}, kvstore=None)
    amp.init_trainer(trainer, on_step=lambda trainer, report: None)
    assert run(trainer, [(p, [1.0])]).applied
