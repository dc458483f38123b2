"""A step from its first backward pass to its update: what it uses, undoes and holds."""

import dataclasses
import gc
import sys
import threading
import weakref

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.trainer import Trainer
from gluon_amp.trainer.window import Window

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

from .test_trainer import parameter, run, values

inf, nan = np.inf, np.nan
TWO = [mx.cpu(0), mx.cpu(1)]


def losses_on(p, factors, contexts):
    with autograd.record():
        return [nd.cast(p.data(c), "float32") * f for c, f in zip(contexts, factors)]


def test_the_window_is_one_frozen_value_and_ends_with_the_step():
    p = parameter("p", [1.0])
    trainer = Trainer([p], "sgd", loss_scale=8)
    assert trainer.window == Window()
    run(trainer, [(p, [0.25])], step=False)
    trainer.clip_global_norm(inf)
    window = trainer.window
    assert (window.scale, window.grad_norm, window.clip_factor) == (8.0, 0.25, 1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        window.scale = 4.0
    trainer.step(1)
    assert trainer.window == Window(shared_backwards=1)


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
    assert [d.asscalar() for d in p.list_data()] == [-3.0, -3.0]


def test_a_plain_backward_counts_as_a_pass_too():
    p = parameter("p", [0.0], "float32", ctx=TWO)
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0})
    for factors in ((5.0, 5.0), (1.0, 2.0)):
        autograd.backward(losses_on(p, factors, TWO))
        trainer.clip_global_norm(4.0)
    trainer.step(1)
    assert [d.asscalar() for d in p.list_data()] == [-3.0, -3.0]


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
        assert [d.asscalar() for d in param.list_data()] == [-3.0, -3.0]


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
    assert [d.asscalar() for d in p.list_data()] == [-3.0, -3.0]


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
    assert [d.asscalar() for d in p.list_data()] == [-1.5, -2.0]


# ------------------------------------------------------------------------------ what is undone


def norm_net(units=2, in_units=2, prefix=None):
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Dense(units, in_units=in_units), nn.BatchNorm(in_channels=units))
    net.initialize(mx.init.One())
    return net


def statistics(net):
    return {n: p.data().asnumpy() for n, p in net.collect_params().items() if "running" in n}


def same(before, now):
    assert before.keys() == now.keys() and before
    for name in before:
        np.testing.assert_array_equal(before[name], now[name], err_msg=name)


def scaled(net, **kwargs):
    return Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, loss_scale=8, **kwargs)


def backward(trainer, net, x):
    with autograd.record():
        loss = net(x).sum()
    trainer.backward(loss)


FINE, BAD = nd.array([[1, 2], [3, 4]]), nd.array([[inf, 2], [3, 4]])


@pytest.fixture(params=["uncast", "hybridized", "float16", "mixed_float16"])
def net(request):
    net = norm_net()
    if request.param == "hybridized":
        net.hybridize()
    elif request.param != "uncast":
        amp.cast(net, request.param)
    return net


@pytest.mark.parametrize("when", ["before the first pass", "between two steps"])
def test_what_was_loaded_before_the_pass_stays(net, when, tmp_path):
    trainer = scaled(net)
    if when == "between two steps":
        backward(trainer, net, FINE)
        assert trainer.step(1).applied
    net[1].running_mean.set_data(nd.array([5, 6]))
    net[1].running_var.data()[:] = 7
    before = statistics(net)
    backward(trainer, net, BAD)
    assert not trainer.step(1).applied
    same(before, statistics(net))


@pytest.mark.parametrize("write", ["set_data", "in place"])
def test_what_is_written_between_backward_and_step_stays(net, write):
    trainer = scaled(net)
    backward(trainer, net, BAD)
    mean = net[1].running_mean
    if write == "set_data":
        mean.set_data(nd.array([5, 6]))
    else:
        mean.data()[:] = nd.array([5, 6])
    assert not trainer.step(1).applied
    assert mean.data().asnumpy().tolist() == [5, 6]
    assert net[1].running_var.data().asnumpy().tolist() == [1, 1]


def test_what_is_written_between_forward_and_backward_stays(net):
    trainer = scaled(net)
    with autograd.record():
        loss = net(BAD).sum()
    net[1].running_mean.set_data(nd.array([5, 6]))
    trainer.backward(loss)
    assert not trainer.step(1).applied
    assert net[1].running_mean.data().asnumpy().tolist() == [5, 6]


def test_what_is_written_between_two_passes_of_a_step_stays(net):
    trainer = scaled(net)
    backward(trainer, net, FINE)
    net[1].running_mean.set_data(nd.array([5, 6]))
    backward(trainer, net, BAD)
    assert not trainer.step(1).applied
    assert net[1].running_mean.data().asnumpy().tolist() == [5, 6]
    assert net[1].running_var.data().asnumpy().tolist() == [1, 1]


@pytest.mark.parametrize("cast", [(), ("generator",), ("critic",), ("generator", "critic")])
@pytest.mark.parametrize("critic_scale", [None, 4])
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
        loss = critic(generator(BAD)).sum()
    of_generator.backward(loss)
    assert not of_generator.step(1).applied
    same(before[0], statistics(generator))
    same(before[1], statistics(critic))
    of_critic.backward(run_critic(critic, generator))
    assert of_critic.step(1).applied
    assert np.isfinite([*statistics(critic).values()]).all()
    assert not np.array_equal(before[1].popitem()[1], statistics(critic).popitem()[1])


def run_critic(critic, generator):
    with autograd.record():
        return critic(generator(FINE).detach()).sum()


def test_a_skip_of_one_trainer_leaves_what_another_one_applied():
    first, second = norm_net(), norm_net()
    trainers = scaled(first), scaled(second)
    backward(trainers[0], first, BAD)
    backward(trainers[1], second, FINE)
    assert trainers[1].step(1).applied
    learnt = statistics(second)
    assert not trainers[0].step(1).applied
    same(learnt, statistics(second))


def test_a_shared_pass_is_undone_by_the_trainer_that_did_not_run_it():
    nets = norm_net(prefix="a_"), norm_net(prefix="b_")
    shared = amp.StaticLossScale(8)
    trainers = [Trainer(n.collect_params(), "sgd", loss_scale=shared) for n in nets]
    before = [statistics(n) for n in nets]
    with autograd.record():
        loss = nets[0](FINE).sum() + nets[1](BAD).sum()
    trainers[0].backward(loss)
    assert trainers[0].step(1).applied
    assert not trainers[1].step(1).applied
    same(before[1], statistics(nets[1]))


def test_a_cast_child_called_on_its_own_does_not_end_the_care_for_its_parent():
    child = amp.cast(norm_net(), "mixed_float16")
    parent = nn.HybridSequential()
    parent.add(child, nn.BatchNorm(in_channels=2))
    parent[1].initialize()
    trainer = scaled(parent)
    with autograd.record():
        child(FINE)
    for hybridize in (False, True):
        if hybridize:
            parent.hybridize()
        backward(trainer, parent, FINE)
        assert trainer.step(1).applied
        before = statistics(parent)
        backward(trainer, parent, BAD)
        assert not trainer.step(1).applied
        same(before, statistics(parent))


def test_scale_loss_is_undone_too():
    net = norm_net()
    trainer = scaled(net)
    before = statistics(net)
    for inside in (True, False):  # MXNet's documentation has it inside, and it need not be
        with autograd.record(), amp.scale_loss(net(BAD).sum(), trainer) as loss:
            if inside:
                autograd.backward(loss)
        if not inside:
            autograd.backward(loss)
        assert not trainer.step(1).applied
        same(before, statistics(net))


# ------------------------------------------------------------------------------ what is held


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_nothing_is_held_of_passes_that_are_over(policy):
    net = amp.cast(norm_net(), policy)
    trainer = scaled(net)
    inputs = []
    for _ in range(20):
        inputs.append(FINE.copy())
        backward(trainer, net, inputs[-1])
        with autograd.record():
            net(inputs[-1])
    gc.collect()
    # the list's own reference and that of the call
    assert [sys.getrefcount(inputs[k]) for k in range(20)] == [2] * 20
    assert len(trainer.window.passes) == 1
    assert trainer.step(1).applied


def test_a_net_that_is_gone_is_not_held_by_its_pass():
    other = scaled(norm_net())
    net = amp.cast(norm_net(), "mixed_float16")
    with autograd.record():
        net(FINE)
    mean = weakref.ref(net[1].running_mean)
    del net
    gc.collect()
    assert mean() is None
    assert other.loss_scale.scale == 8


def test_backward_passes_in_threads():
    """As GluonCV's detectors run them, one thread for each device."""
    net = norm_net()
    net.collect_params().reset_ctx(TWO)
    trainer = scaled(net)
    data = [BAD, FINE.as_in_context(TWO[1])]
    before = statistics(net)
    threads = [threading.Thread(target=backward, args=(trainer, net, x)) for x in data]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not trainer.step(2).applied
    same(before, statistics(net))
    for p in net.collect_params().values():
        assert all(np.isfinite(d.asnumpy()).all() for d in p.list_data())


# ------------------------------------------------------------------------------ the wrong trainer


def notebook_output():
    """Something that holds an object for good, as a notebook's Out[] does."""
    return []


@pytest.mark.parametrize("kind", [gluon.Trainer, Trainer])
@pytest.mark.parametrize("policy", ["float16", "mixed_float16"])
def test_a_trainer_built_before_the_cast_refuses_to_step(kind, policy):
    held = notebook_output()
    net = norm_net()
    held.append(kind(net.collect_params(), "sgd"))
    amp.cast(net, policy)  # whoever holds the old trainer
    new = Trainer(net.collect_params(), "sgd", loss_scale=8)
    backward(new, net, FINE)
    for call in (held[0].step, held[0].update):
        with pytest.raises(RuntimeError, match="was built before the cast, build a new one"):
            call(1)
    with pytest.raises(RuntimeError, match="was built before the cast"):
        held[0].allreduce_grads() if kind is gluon.Trainer else held[0].clip_global_norm(1.0)
    assert new.step(1).applied


def test_a_stock_trainer_is_right_for_bfloat16_and_after_the_cast_is_undone():
    net = norm_net()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    amp.cast(net, "mixed_float16")
    amp.cast(net, "bfloat16")
    backward_plain(net)
    trainer.step(1)
    amp.cast(net, "float32")
    backward_plain(net)
    trainer.step(1)


def backward_plain(net):
    with autograd.record():
        loss = net(FINE).sum()
    loss.backward()


def test_init_trainer_takes_a_stock_trainer_that_was_built_before_the_cast():
    net = norm_net()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"multi_precision": True})
    amp.cast(net, "float16")
    amp.init_trainer(trainer, loss_scale=8)
    backward(trainer, net, FINE)
    assert trainer.step(1).applied
