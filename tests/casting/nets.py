"""Small nets and data, and a training pass."""

import warnings

import numpy as np

from gluon_amp.base.dtypes import dtype_name
from gluon_amp.base.mxnet_internals import flatten
from tests import kinds

import mxnet as mx
from mxnet import autograd
from mxnet.gluon import nn

POLICIES = ("float16", "mixed_float16", "bfloat16", "fused_float32")


class Net(mx.gluon.HybridBlock):
    """Computes `forward(net, F, *arguments)`, and has these children."""

    def __init__(self, forward, **children):
        super().__init__()
        self.code = forward
        for name, child in children.items():
            setattr(self, name, child)

    def hybrid_forward(self, F, *arguments, **params):
        return self.code(self, F, *arguments, **params)


class AsksForTheMode(mx.gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return x * 2 if autograd.is_training() else x * 3


class OwnNorm(mx.gluon.HybridBlock):
    """A norm of a user's own: Gluon does not know that operators write its parameters."""

    def __init__(self, size):
        super().__init__()
        with self.name_scope():
            for name, init, grad_req in (
                ("gamma", "ones", "write"),
                ("beta", "zeros", "write"),
                ("mean", "zeros", "null"),
                ("var", "ones", "null"),
            ):
                param = self.params.get(name, shape=(size,), init=init, grad_req=grad_req)
                setattr(self, name, param)

    def hybrid_forward(self, F, x, gamma, beta, mean, var):
        norm = F.npx.batch_norm if mx.util.is_np_array() else F.BatchNorm
        return norm(x, gamma, beta, mean, var, fix_gamma=False)


def small_net(prefix="net_"):
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Conv2D(8, 3, padding=1, in_channels=3), nn.BatchNorm(in_channels=8))
        net.add(nn.Activation("relu"), nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(4, in_units=8))
    net.initialize(mx.init.Xavier())
    return net


def images(n=2, seed=0, size=8):
    return kinds.array(np.random.RandomState(seed).normal(size=(n, 3, size, size)))


def backward(net, *inputs):
    """Run a training pass whose loss weighs all outputs differently, and return the outputs."""
    with autograd.record():
        out = net(*inputs)
        flat, _ = flatten(out, "output")
    heads = [kinds.array(np.random.RandomState(1).normal(size=o.shape)) for o in flat]
    autograd.backward(flat, heads)
    return out


def dtypes_of(net):
    return {name.split("_", 1)[1]: dtype_name(p.dtype) for name, p in net.collect_params().items()}


def exported(net, folder, **options):
    """Export a net to `folder`/net-*, and return the text of its graph."""
    net.export(str(folder / "net"), **options)
    return (folder / "net-symbol.json").read_text()


def imported(folder, inputs=("data",)):
    """Return what `exported` wrote, as stock MXNet reads it."""
    files = str(folder / "net-symbol.json"), list(inputs), str(folder / "net-0000.params")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the data's dtype
        return mx.gluon.SymbolBlock.imports(*files)
