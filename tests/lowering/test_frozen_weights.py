"""The bias of a dense layer with a frozen weight gets its gradient."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.symbolic import Module
from tests.lowering import back_through

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import nn

POLICIES = ["float16", "mixed_float16", "bfloat16"]
DATA = np.arange(6, dtype=np.float32).reshape(3, 2) / 4
LABEL = np.array([0, 1, 2], np.float32)


def gradient(net, flatten_rows=1):
    with autograd.record():
        loss = (net(nd.array(DATA).reshape((flatten_rows, -1, 2))) * nd.arange(1, 5)).sum()
    loss.backward()
    return net[-1].bias.grad().asnumpy().tolist()


def network(**kwargs):
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=2, **kwargs))
    net.initialize(mx.init.One())
    return net


@pytest.mark.parametrize("policy, static", zip(POLICIES, (False, True, True)))
def test_dense_layers(policy, static):
    net = amp.cast(network(flatten=False), policy)
    net.hybridize(static_alloc=static)
    whole = [3.0, 6.0, 9.0, 12.0]  # three rows, each output with its factor
    for grad_req in ("null", "write", "null"):
        net[0].weight.grad_req = grad_req
        assert gradient(net) == whole
        assert gradient(net, 3) == whole
    out = net(nd.array(DATA)).asnumpy()
    np.testing.assert_allclose(out, np.repeat(DATA.sum(axis=1), 4).reshape(3, 4), rtol=2e-2)


@pytest.mark.parametrize(
    "policy, frozen_by", [("float16", "fixed_param_names"), ("bfloat16", "grad_req")]
)
def test_module(policy, frozen_by):
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc")
    symbol = mx.sym.SoftmaxOutput(symbol, name="softmax")
    fixed = ["fc_weight"] if frozen_by == "fixed_param_names" else None
    module = Module(symbol, policy=policy, loss_scale=None, fixed_param_names=fixed)
    requests = "write" if fixed else {"fc_weight": "null", "fc_bias": "write", "data": "null"}
    module.bind([("data", (3, 2))], [("softmax_label", (3,))], grad_req=requests)
    module.init_params(mx.init.One())
    batch = mx.io.DataBatch([nd.array(DATA)], [nd.array(LABEL)])
    for _ in range(2):
        module.forward(batch, is_train=True)
        module.backward()
    grad = module.executors[0].grad_dict["fc_bias"].asnumpy()
    # equal outputs: a quarter each, minus one for each label
    np.testing.assert_allclose(grad, [-0.25, -0.25, -0.25, 0.75], atol=1e-2)


def test_number_of_rows_that_follows_from_the_result():
    class Net(nn.HybridBlock):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(2, in_units=2)

        def hybrid_forward(self, F, x):
            return self.dense(F.ones((0, 2))) + x

    net = Net()
    net.initialize(mx.init.One())
    net.dense.weight.grad_req = "null"
    amp.cast(net, amp.Policy.parse("float16").pin(ops=["FullyConnected"]))
    out = back_through(net, nd.array(DATA))
    assert out.asnumpy().tolist() == (DATA + 2).tolist()
    assert net.dense.bias.grad().asnumpy().tolist() == [3, 3]
