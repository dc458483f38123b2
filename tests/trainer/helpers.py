"""Parameters, networks and steps with literal numbers, and arrays of the kind at hand.

The tests of the laws use them too.
"""

import numpy as np

from gluon_amp.trainer import Trainer
from tests import kinds

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn

TWO = [mx.cpu(0), mx.cpu(1)]


def fine():
    return kinds.array([[1, 2], [3, 4]])


def bad():
    return kinds.array([[np.inf, 2], [3, 4]])


class Reducing(gluon.Trainer):
    """Like Horovod's trainer of two equal workers: its own reduction and factor, no kvstore."""

    reductions = 0

    def __init__(self, params, optimizer, *args, **kwargs):
        super().__init__(params, optimizer, *args, kvstore=None, **kwargs)
        self._scale /= 2

    def _allreduce_grads(self):
        self.reductions += 1
        for param in self._params:
            for grad in param.list_grad():
                grad *= 2


def parameter(name, value, dtype="float16", ctx=None, **kwargs):
    """Return an initialized Parameter with these values."""
    value = np.asarray(value, "float32")
    param = gluon.Parameter(name, shape=value.shape, dtype=dtype, **kwargs)
    param.initialize(ctx=ctx, init=mx.init.Zero())
    param.set_data(kinds.array(value, dtype=dtype))
    return param


def run(trainer, terms, batch_size=1, step=True):
    """Run backward on sum(parameter * factor) over (parameter, factor) pairs, and make a step.

    Unscaled, each parameter's gradient is its factor. (`cast`, as the gradient of `astype`
    overwrites a buffer to which it should be added.)
    """
    with autograd.record():
        loss = sum(
            (kinds.cast(p.data(c), "float32") * kinds.array(factor, ctx=c)).sum()
            for p, factor in terms
            for c in p.list_ctx()[:1]
        )
    trainer.backward(loss)
    return trainer.step(batch_size) if step else None


def values(param):
    return param.data().asnumpy()


def losses_on(p, factors, contexts):
    with autograd.record():
        return [kinds.cast(p.data(c), "float32") * f for c, f in zip(contexts, factors)]


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
