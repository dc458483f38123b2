"""A replay restores the net, the trainer and the random numbers."""

import random

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.inspection.diagnose import diagnose
from tests.inspection.nets import L2, images, labels, make_net

from mxnet import autograd


def drawing(out, label):
    """Return a loss, and draw random numbers of Python and numpy."""
    return L2(out, label) * (1 + 0 * (random.random() + np.random.uniform()))


@pytest.mark.parametrize("scale, factor", [(1, 1), (2.0**20, 1), (1, 1e7)])
def test_it_changes_nothing(scale, factor):
    net = make_net()
    params = net.collect_params().values()
    for param in params:
        if param.grad_req != "null":
            param.grad_req = "add"
    trainer = amp.Trainer(net.collect_params(), "adam", loss_scale=4)
    for _ in range(2):
        with autograd.record():
            loss = L2(net(images()), labels())
        trainer.backward(loss)

    def content():
        values = [p.data().asnumpy().tobytes() for p in params]
        grads = [p.grad().asnumpy().tobytes() for p in params if p.grad_req != "null"]
        flags = [p.data()._fresh_grad for p in params]
        return values, grads, flags, random.getstate(), np.random.get_state()[1].tobytes()

    before = content()
    with autograd.record():
        loss = L2(net(images()), labels())  # its backward pass is still to come
    statistics = content()[0]
    diagnose(net, drawing, images() * factor, labels(), scale)
    assert content() == (statistics, *before[1:])
    assert not any("forward" in vars(block) for block in (net, *net))
    # A backward pass adds to the same buffers, and the step uses them.
    trainer.backward(loss)
    after = [p.grad().asnumpy() for p in params if p.grad_req != "null"]
    assert any(new.tobytes() != old for new, old in zip(after, before[1]))
    report = trainer.step(2)
    assert report.applied
    assert report.loss_scale == 4


def test_everything_is_restored_when_the_loss_function_fails():
    net = make_net()
    weight = net[0].weight.data()
    with pytest.raises(ZeroDivisionError):
        diagnose(net, lambda out, label: 1 / 0, images(), labels())
    assert not any("forward" in vars(block) for block in (net, *net))
    assert net[0].weight.data() is weight
    with autograd.record():
        loss = L2(net(images()), labels())
    loss.backward()
    assert net[0].weight.grad().asnumpy().any()
