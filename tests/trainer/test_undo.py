"""What a skipped step restores, and what it keeps alive until then."""

import gc
import sys
import threading
import weakref

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp import Trainer
from tests import kinds
from tests.trainer.helpers import TWO, backward, bad, fine, norm_net, same, scaled, statistics

import mxnet as mx
from mxnet import autograd
from mxnet.gluon import nn

pytestmark = pytest.mark.usefixtures("arrays")  # Law 13


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
        backward(trainer, net, fine())
        assert trainer.step(1).applied
    net[1].running_mean.set_data(kinds.array([5, 6]))
    net[1].running_var.data()[:] = 7
    before = statistics(net)
    backward(trainer, net, bad())
    assert not trainer.step(1).applied
    same(before, statistics(net))


@pytest.mark.parametrize("write", ["set_data", "in place"])
def test_what_is_written_between_backward_and_step_stays(net, write):
    trainer = scaled(net)
    backward(trainer, net, bad())
    mean = net[1].running_mean
    if write == "set_data":
        mean.set_data(kinds.array([5, 6]))
    else:
        mean.data()[:] = kinds.array([5, 6])
    assert not trainer.step(1).applied
    assert mean.data().asnumpy().tolist() == [5, 6]
    assert net[1].running_var.data().asnumpy().tolist() == [1, 1]


def test_what_is_written_between_forward_and_backward_stays(net):
    trainer = scaled(net)
    with autograd.record():
        loss = net(bad()).sum()
    net[1].running_mean.set_data(kinds.array([5, 6]))
    trainer.backward(loss)
    assert not trainer.step(1).applied
    assert net[1].running_mean.data().asnumpy().tolist() == [5, 6]


def test_what_is_written_between_two_passes_of_a_step_stays(net):
    trainer = scaled(net)
    backward(trainer, net, fine())
    net[1].running_mean.set_data(kinds.array([5, 6]))
    backward(trainer, net, bad())
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
        loss = critic(generator(bad())).sum()
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
        return critic(generator(fine()).detach()).sum()


def test_a_skip_of_one_trainer_leaves_what_another_one_applied():
    first, second = norm_net(), norm_net()
    trainers = scaled(first), scaled(second)
    backward(trainers[0], first, bad())
    backward(trainers[1], second, fine())
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
        loss = nets[0](fine()).sum() + nets[1](bad()).sum()
    trainers[0].backward(loss)
    assert trainers[0].step(1).applied
    assert not trainers[1].step(1).applied
    same(before[1], statistics(nets[1]))


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


def test_scale_loss_is_undone_too():
    net = norm_net()
    trainer = scaled(net)
    before = statistics(net)
    for inside in (True, False):  # MXNet's documentation has it inside, and it need not be
        with autograd.record(), amp.scale_loss(net(bad()).sum(), trainer) as loss:
            if inside:
                autograd.backward(loss)
        if not inside:
            autograd.backward(loss)
        assert not trainer.step(1).applied
        same(before, statistics(net))


# ------------------------------------------------------------------------------ what is kept alive


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_nothing_is_kept_alive_by_passes_that_are_over(policy):
    net = amp.cast(norm_net(), policy)
    trainer = scaled(net)
    inputs = []
    for _ in range(20):
        inputs.append(fine().copy())
        backward(trainer, net, inputs[-1])
        with autograd.record():
            net(inputs[-1])
    gc.collect()
    # the list's own reference and that of the call
    assert [sys.getrefcount(inputs[k]) for k in range(20)] == [2] * 20
    assert len(trainer.loss_scale.last_pass.written) == 1
    assert trainer.step(1).applied


def test_a_deleted_net_is_not_kept_alive_by_its_pass():
    other = scaled(norm_net())
    net = amp.cast(norm_net(), "mixed_float16")
    with autograd.record():
        net(fine())
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
    data = [bad(), fine().as_in_context(TWO[1])]
    before = statistics(net)
    numpy = mx.util.is_np_array()

    def run(x):
        with mx.util.np_shape(numpy), mx.util.np_array(numpy):  # each thread has its own
            backward(trainer, net, x)

    threads = [threading.Thread(target=run, args=(x,)) for x in data]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not trainer.step(2).applied
    same(before, statistics(net))
    for p in net.collect_params().values():
        assert all(np.isfinite(d.asnumpy()).all() for d in p.list_data())
