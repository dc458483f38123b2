"""A replay restores the net, the trainer and the random numbers."""

import random

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.inspection.diagnose import diagnose
from tests.inspection.nets import L2, images, labels, make_net

import mxnet as mx
from mxnet import autograd
from mxnet.gluon import nn

pytestmark = pytest.mark.usefixtures("arrays")  # Law 13


def test_a_deferred_net_is_initialized():
    net = nn.HybridSequential()
    net.add(nn.Dense(3))
    net.initialize()
    assert diagnose(amp.cast(net, "float16"), L2, images(), labels(), 1).verdict == "ok"
    assert net[0].weight.shape == (3, 108)


@pytest.mark.parametrize("scale, factor", [(1, 1), (2.0**20, 1), (1, 1e7)])
def test_it_changes_nothing(scale, factor):
    net = make_net()
    for param in net.collect_params().values():
        if param.grad_req != "null":
            param.grad_req = "add"
    trainer = amp.Trainer(net.collect_params(), "adam", loss_scale=4)
    for _ in range(2):
        with autograd.record():
            loss = L2(net(images()), labels())
        trainer.backward(loss)
    params = net.collect_params().values()

    def content():
        values = [p.data().asnumpy().tobytes() for p in params]
        grads = [p.grad().asnumpy().tobytes() for p in params if p.grad_req != "null"]
        flags = [p.data()._fresh_grad for p in params]
        return values, grads, flags, random.getstate(), np.random.get_state()[1].tobytes()

    before = content()
    diagnose(net, L2, images() * factor, labels(), scale)
    assert content() == before
    assert not any("forward" in vars(block) for block in (net, *net))
    # Another backward pass adds to the same buffers, and the step uses them.
    with autograd.record():
        loss = L2(net(images()), labels())
    trainer.backward(loss)
    after = [p.grad().asnumpy() for p in params if p.grad_req != "null"]
    assert any(new.tobytes() != old for new, old in zip(after, before[1]))
    report = trainer.step(2)
    assert report.applied
    assert report.loss_scale == 4


def test_a_run_with_a_diagnosis_in_it_is_bit_for_bit_the_run_without():
    def run(look):
        np.random.seed(0)
        mx.random.seed(0)
        net = make_net()
        scale = amp.DynamicLossScale(2.0**12, growth_interval=2)
        trainer = amp.Trainer(net.collect_params(), "sgd", {"momentum": 0.9}, loss_scale=scale)
        verdicts = []
        for step in range(4):
            label = labels() * (1e5 if step == 1 else 1)
            if look:
                verdicts.append(diagnose(net, L2, images(), label, trainer.loss_scale).verdict)
            with autograd.record():
                loss = L2(net(images()), label)
            if look:
                diagnose(net, L2, images(), label, trainer.loss_scale)
            trainer.backward(loss)
            if look:
                diagnose(net, L2, images(), label, 1)
            applied = trainer.step(2).applied
            assert not look or applied == (verdicts[-1] == "ok")
        return [p.data().asnumpy().tobytes() for p in net.collect_params().values()]

    assert run(True) == run(False)


def test_everything_is_restored_when_the_loss_function_fails():
    net = make_net()
    with pytest.raises(ZeroDivisionError):
        diagnose(net, lambda out, label: 1 / 0, images(), labels())
    assert not any("forward" in vars(block) for block in (net, *net))
    with autograd.record():
        loss = L2(net(images()), labels())
    loss.backward()
    assert net[0].weight.grad().asnumpy().any()
