"""Law 1: casting one net changes nothing else."""

import numpy as np
import pytest

import gluon_amp as amp
from tests.laws.training import LOW_PRECISION, batch, dense_net
from tests.lowering import back_through

import mxnet as mx
from mxnet.gluon import nn

MODULES = [mx.nd, mx.nd.op, mx.nd.contrib, mx.sym, mx.sym.op, mx.sym.contrib, mx.gluon, mx.gluon.nn]
MODULES += [mx.gluon.rnn, mx.gluon.loss, mx.gluon.block, mx.gluon.Block, mx.gluon.HybridBlock]
MODULES += [mx.gluon.SymbolBlock, mx.gluon.Parameter, mx.gluon.Trainer, mx.autograd, mx.optimizer]
MODULES += [mx.mod, mx.mod.Module, mx.np, mx.npx]


def attributes():
    """Return the attributes of all modules of MXNet that other libraries are known to patch."""
    return {
        (module.__name__, name): id(value)
        for module in MODULES
        for name, value in vars(module).items()
        if not name.startswith("__")
    }


def trained(net):
    return back_through(net, batch(0)).asnumpy(), net[0].weight.grad().asnumpy()


@pytest.mark.parametrize("policy", LOW_PRECISION)
def test_no_attribute_of_mxnet_and_no_other_net_changes(policy):
    other = dense_net()
    other.hybridize()
    before, found = trained(other), attributes()
    net = amp.cast(dense_net(), policy)
    trained(net)
    for _ in range(2):
        assert attributes() == found
        for old, new in zip(before, trained(other)):
            np.testing.assert_array_equal(old, new)
        assert type(other) is nn.HybridSequential
        amp.cast(net, "float32")  # and after the cast was undone
