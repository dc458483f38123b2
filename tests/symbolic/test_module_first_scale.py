"""The search for the first loss scale by a Module: as by a Trainer, and it leaves no trace."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.symbolic import BucketingModule, Module
from tests.symbolic.networks import HALF, batch_of, conv_net, images, linear_net, same, values

import mxnet as mx
from mxnet import nd
from mxnet.gluon import nn


def module_of(symbol, data, label, init_scale=None, policy="float16", **bind):
    mx.random.seed(3)
    module = Module(symbol, policy=policy, loss_scale=amp.DynamicLossScale(init_scale))
    module.bind([("data", data.shape)], [("softmax_label", label.shape)], **bind)
    module.init_params(mx.init.Xavier())
    settings = {"learning_rate": 2.0**-14, "momentum": 0.9, "rescale_grad": 1 / len(data)}
    module.init_optimizer(optimizer="sgd", optimizer_params=settings)
    return module


def run(module, data, label, update=True):
    module.forward(batch_of(data, label), is_train=True)
    module.backward()
    if update:
        module.update()
    return module.last_report


@pytest.mark.parametrize("exponent, first", [(0, 2.0**12), (8, 2.0**4), (20, 2.0**-8)])
@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_one_overflow_finds_where_the_gradient_fits(exponent, first, grad_req):
    module = Module(linear_net())
    module.bind([("data", (1, 1))], [("softmax_label", (1, 1))], grad_req=grad_req)
    module.init_params(mx.init.Zero())
    module.init_optimizer(optimizer_params={"learning_rate": 0.0, "rescale_grad": 1.0})
    # the gradient of (w x - y)² / 2 at w = 0 is -x y
    reports = [run(module, [[1.0]], [[2.0**exponent]]) for _ in range(2)]
    assert [r.applied for r in reports] == [False, True]
    assert [r.next_loss_scale for r in reports] == [first, first]
    assert reports[1].skipped_total == 1


@pytest.mark.parametrize("grad_req", ["write", "add"])
@pytest.mark.parametrize("policy", HALF)
def test_the_run_goes_on_as_one_that_begins_with_the_found_scale(grad_req, policy):
    data, label = images(16)
    symbol = conv_net(grad_scale=2.0**12)
    module = module_of(symbol, data, label, policy=policy, grad_req=grad_req)
    before = values(module)
    first = run(module, data, label)
    same(before, values(module))
    assert not first.applied and first.next_loss_scale < 2.0**4
    twin = module_of(symbol, data, label, first.next_loss_scale, policy, grad_req=grad_req)
    for index in range(1, 4):
        for one in (module, twin):
            for executor in one.executors:
                for grad in executor.grad_arrays:
                    if grad is not None:
                        grad[:] = 0  # as users do who accumulate
            assert run(one, data * index, label).applied
    same(values(module), values(twin))


def test_outputs_and_gradients_after_the_search_are_those_of_the_pass():
    data, label = images(16)
    symbol = mx.sym.Dropout(mx.sym.var("data"), p=0.5)
    symbol = mx.sym.FullyConnected(symbol, num_hidden=4, name="fc")
    symbol = mx.sym.SoftmaxOutput(symbol, name="softmax", grad_scale=2.0**12)
    seen = []
    for init_scale in (None, 2.0**16):
        module = module_of(symbol, data, label, init_scale, inputs_need_grad=True)
        mx.random.seed(4)
        run(module, data, label, update=False)
        seen.append(
            {
                "output": module.get_outputs()[0].asnumpy(),
                "input": module.get_input_grads()[0].asnumpy(),
                "weight": module.executors[0].grad_dict["fc_weight"].asnumpy(),
            }
        )
    same(*seen)
    assert not np.isfinite(seen[0]["weight"]).all()


def test_several_devices():
    module = Module(linear_net(), context=[mx.cpu(0), mx.cpu(1)])
    module.bind([("data", (2, 1))], [("softmax_label", (2, 1))])
    module.init_params(mx.init.Zero())
    module.init_optimizer(optimizer_params={"learning_rate": 0.0, "rescale_grad": 1.0})
    assert run(module, [[1.0], [1.0]], [[1.0], [2.0**8]]).next_loss_scale == 2.0**4
    assert run(module, [[1.0], [1.0]], [[1.0], [2.0**8]]).applied


def test_a_module_finds_what_gluon_finds():
    data, label = nd.array([[1.0, 2.0]]), nd.array([[2.0**10]])
    module = Module(linear_net())
    module.bind([("data", (1, 2))], [("softmax_label", (1, 1))])
    module.init_params(mx.init.One())
    module.init_optimizer(optimizer_params={"learning_rate": 0.0, "rescale_grad": 1.0})
    net = amp.cast(nn.Dense(1, use_bias=False, in_units=2), "float16")
    net.initialize(mx.init.One())
    trainer = amp.Trainer(net.collect_params(), "sgd")
    with mx.autograd.record():
        loss = (net(data) - label).square() / 2
    trainer.backward(loss)
    found = trainer.step(1).next_loss_scale
    assert run(module, data, label).next_loss_scale == found == 4.0


def test_buckets():
    def generate(length):
        data = mx.sym.mean(mx.sym.var("data"), axis=1, keepdims=True)
        net = mx.sym.FullyConnected(data, num_hidden=1, no_bias=True, name="fc")
        return mx.sym.LinearRegressionOutput(net, name="head"), ("data",), ("head_label",)

    module = BucketingModule(generate, default_bucket_key=4)
    module.bind([("data", (1, 4))], [("head_label", (1, 1))])
    module.init_params(mx.init.Zero())
    module.init_optimizer(optimizer_params={"learning_rate": 0.0, "rescale_grad": 1.0})
    reports = []
    for length in (2, 4, 2):
        shapes = {
            "provide_data": [("data", (1, length))],
            "provide_label": [("head_label", (1, 1))],
        }
        arrays = [nd.ones((1, length))], [nd.full((1, 1), 2.0**8)]
        batch = mx.io.DataBatch(*arrays, bucket_key=length, **shapes)
        module.forward(batch, is_train=True)
        module.backward()
        module.update()
        reports.append(module.last_report)
    assert [r.applied for r in reports] == [False, True, True]
    assert {r.next_loss_scale for r in reports} == {2.0**4}
