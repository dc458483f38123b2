"""Scaled backward passes, and what a skip undoes of them."""

import gc
import sys
import threading
import weakref

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp import Trainer
from tests.trainer.helpers import (
    TWO,
    backward,
    bad,
    fine,
    norm_net,
    parameter,
    same,
    scaled,
    statistics,
    values,
)

import mxnet as mx
from mxnet import autograd, gluon, npx
from mxnet.gluon import nn

inf = np.inf


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
