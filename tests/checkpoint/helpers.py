"""A small net, its trainer, and comparisons of their whole state."""

import os

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.checkpoint import load_checkpoint
from tests import kinds

import mxnet as mx
from mxnet import autograd
from mxnet.gluon import nn

BATCHES = np.random.RandomState(0).uniform(-1, 1, (12, 4, 3, 6, 6)).astype(np.float32)
OVERFLOWS = (2, 7)  # batches whose loss is so large that its gradients overflow


def make_net(policy="float16", channels=4, in_channels=0, ctx=None):
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(channels, 3, in_channels=in_channels),
        nn.BatchNorm(),
        nn.Activation("relu"),
        nn.Dense(3),
    )
    net.initialize(mx.init.Xavier(), ctx=ctx)
    return amp.cast(net, policy)


def make_trainer(net, optimizer="sgd", loss_scale="short", params=None, **settings):
    if loss_scale == "short":
        loss_scale = amp.DynamicLossScale(2.0**10, growth_interval=3)
    if optimizer == "sgd":
        settings = {"momentum": 0.9, "wd": 1e-3, **settings}
    settings = {"learning_rate": 0.01, **settings}
    params = net.collect_params() if params is None else params
    return amp.Trainer(params, optimizer, settings, loss_scale=loss_scale)


def made(*args, **kwargs):
    """Return a new net and its trainer, whose arguments these are."""
    net = make_net()
    return net, make_trainer(net, *args, **kwargs)


def run(net, trainer, steps):
    """Train on these batches, and return what each step did, without the parameters' names."""
    reports = []
    for step in steps:
        with autograd.record():
            loss = (net(kinds.array(BATCHES[step])) ** 2).sum()
            if step in OVERFLOWS:
                loss = loss * 1e30
        trainer.backward(loss)
        report = trainer.step(4)
        reports.append((report.applied, report.loss_scale, report.skipped_total))
    return reports


def content(net, trainer):
    """Return the whole state: parameters on each device, masters, optimizer state, counters."""
    params = [[a.asnumpy().tobytes() for a in p.list_data()] for p in net.collect_params().values()]
    masters = [m.asnumpy().tobytes() for m in trainer.master_params().values()]
    return params, masters, repr(trainer.state_dict())


def assert_same(one, other):
    for part, its_other in zip(one, other):
        assert part == its_other


def assert_continued(pair, other, steps=range(3, 6)):
    """Assert that two nets with their trainers make the same steps."""
    assert run(*pair, steps) == run(*other, steps)
    assert_same(content(*pair), content(*other))


def names(folder):
    return sorted(os.listdir(folder))


def read(path):
    with open(path, "rb") as file:
        return file.read()


def refused(match, path, net, trainer):
    """Assert that loading raises one sentence and changes nothing."""
    before = content(net, trainer)
    with pytest.raises(ValueError, match=match) as caught:
        load_checkpoint(path, net, trainer)
    assert "\n" not in str(caught.value)
    assert_same(content(net, trainer), before)
