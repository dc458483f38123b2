"""A Module's optimizer, on one device, several devices and several workers."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.symbolic import Module
from tests.symbolic.networks import (
    batch_of,
    conv_net,
    exact_problem,
    images,
    linear_module,
    linear_net,
    on_device,
    same,
    step,
    train,
    values,
)
from tests.two_workers import run_two_workers

import mxnet as mx
from mxnet import nd


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_optimizers_are_ours_where_we_have_them(name):
    module = Module(conv_net(), loss_scale=2.0**6)
    train(module, *images(), epochs=1, optimizer=name, optimizer_params={})
    assert type(module.optimizer) is amp.optimizer.OPTIMIZERS[name]
    assert module.optimizer.rescale_grad == 1 / 16
    assert module._update_on_kvstore is False


def test_weight_decay_and_multipliers_are_the_modules():
    x = mx.sym.var("data")
    weight = mx.sym.var("fc_weight", lr_mult=0.5)
    x = mx.sym.FullyConnected(x, weight=weight, num_hidden=1, name="fc")
    symbol = mx.sym.LinearRegressionOutput(x, mx.sym.var("softmax_label"))
    results = []
    for kind in (Module, mx.mod.Module):
        module = kind(symbol, **({"policy": "float32"} if kind is Module else {}))
        module.bind([("data", (2, 1))], [("softmax_label", (2, 1))])
        start = {"fc_weight": nd.array([[1.0]]), "fc_bias": nd.array([1.0])}
        module.init_params(arg_params=start, aux_params={})
        module.init_optimizer(optimizer_params={"learning_rate": 0.1, "wd": 0.5})
        module.forward(batch_of([[1.0], [2.0]], [[0.0], [1.0]]), is_train=True)
        module.backward()
        module.update()
        results.append(values(module))
    np.testing.assert_allclose(results[0]["fc_weight"], results[1]["fc_weight"], rtol=1e-6)
    np.testing.assert_allclose(results[0]["fc_bias"], results[1]["fc_bias"], rtol=1e-6)
    # g = ((2 - 0)·1 + (3 - 1)·2) / 2 = 3 with half the rate, and the bias does not decay: g = 2
    np.testing.assert_allclose(results[0]["fc_weight"], 1 - 0.05 * (3 + 0.5), rtol=1e-6)
    np.testing.assert_allclose(results[0]["fc_bias"], 1 - 0.1 * 2, rtol=1e-6)


def test_a_rescale_grad_set_during_training_is_respected():
    module = linear_module([[4.0]], (1, 1), (1, 1), loss_scale=2.0**4)
    module.optimizer.rescale_grad = 0.5
    step(module, [[1.0]], [[0.0]])
    assert values(module)["fc_weight"].item() == 2
    assert module.optimizer.rescale_grad == 0.5  # without the loss scale


def test_an_optimizer_object():
    module = Module(linear_net(), loss_scale=2.0)
    module.bind([("data", (4, 1))], [("softmax_label", (4, 1))])
    module.init_params(arg_params={"fc_weight": nd.array([[1.0]])}, aux_params={})
    optimizer = amp.optimizer.SGD(learning_rate=1.0)
    with pytest.warns(UserWarning, match="rescale_grad 1, which is not .* 0.25; it is kept"):
        module.init_optimizer(optimizer=optimizer)
    step(module, [[1.0]] * 4, [[0.0]] * 4)
    assert values(module)["fc_weight"].item() == 1 - 4


def test_small_updates_reach_the_master():
    module = linear_module([[1.0]], (1, 1), (1, 1), {"learning_rate": 2.0**-14}, loss_scale=4.0)
    for _ in range(3):
        step(module, [[1.0]], [[0.0]])  # 1 - 2**-14 rounds to 1 in float16
    assert on_device(module).asscalar() == 1
    assert 1 - 3.1 * 2**-14 < values(module)["fc_weight"].item() < 1 - 2.9 * 2**-14


@pytest.mark.parametrize("kvstore", ["local", "device"])
def test_two_devices_are_one(kvstore):
    data, label = exact_problem()
    results = []
    for contexts in (mx.cpu(), [mx.cpu(0), mx.cpu(1)]):
        module = Module(linear_net(), context=contexts, loss_scale=2.0)
        module.bind([("data", (32, 4))], [("softmax_label", (32, 1))])
        module.init_params(arg_params={"fc_weight": nd.array([[0.25, 0.5, 1, -1]])}, aux_params={})
        module.init_optimizer(kvstore, optimizer_params={"learning_rate": 0.25, "momentum": 0.5})
        # one step, as the sums over halves of later batches need more bits than float16 has
        assert step(module, data, label).applied
        results.append(values(module))
        weights = [e.arg_dict["fc_weight"].asnumpy() for e in module.executors]
        assert all((weights[0] == weight).all() for weight in weights)
    same(*results)


def test_two_devices_skip_together():
    module = Module(linear_net(), context=[mx.cpu(0), mx.cpu(1)], loss_scale=4.0)
    module.bind([("data", (2, 1))], [("softmax_label", (2, 1))])
    module.init_params(arg_params={"fc_weight": nd.array([[1.0]])}, aux_params={})
    module.init_optimizer("device", optimizer_params={"learning_rate": 1.0})
    report = step(module, [[1.0], [300.0]], [[0.0], [0.0]])  # only the second one overflows
    assert not report.applied
    assert values(module)["fc_weight"].item() == 1


WORKER = """
import json, sys
import gluon_amp
from gluon_amp.symbolic import Module
import mxnet as mx
from mxnet import nd
from mxnet.io import DataBatch

x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, no_bias=True, name="fc")
module = Module(mx.sym.LinearRegressionOutput(x, mx.sym.var("softmax_label")), loss_scale=8)
module.bind([("data", (1, 1))], [("softmax_label", (1, 1))])
first = sys.argv[1] == "0"
start = 1.0 if first else 5.0  # those of one worker count
module.init_params(arg_params={"fc_weight": nd.array([[start]])}, aux_params={})
module.init_optimizer("dist_sync", optimizer_params={"learning_rate": 0.5})
results = [module.get_params()[0]["fc_weight"].asscalar().item()]
for huge in (False, True):
    x = 300.0 if huge and first else 1.0  # only one worker has the overflow
    module.forward(DataBatch([nd.array([[x]])], [nd.zeros((1, 1))]), is_train=True)
    module.backward()
    module.update()
    results += [module.last_report.applied, module.get_params()[0]["fc_weight"].asscalar().item()]
with open(sys.argv[2], "w") as file:
    json.dump(results, file)
"""


@pytest.mark.slow
def test_two_workers_step_and_skip_together(tmp_path):
    one, other = run_two_workers(tmp_path, WORKER)
    start = one[0]
    assert start in (1.0, 5.0)  # MXNet numbers workers as they arrive
    # the gradient of w²/2 is w on both, halved for two workers, at rate 0.5
    assert one == other == [start, True, start / 2, False, start / 2]


def test_an_unknown_optimizer_is_refused():
    module = Module(linear_net())
    module.bind([("data", (1, 1))], [("softmax_label", (1, 1))])
    module.init_params()
    with pytest.raises(ValueError, match="Unknown optimizer 'sdg'"):
        module.init_optimizer(optimizer="sdg")
    assert not module.optimizer_initialized


def test_an_optimizer_of_mxnet_gets_masters():
    module = Module(linear_net())
    module.bind([("data", (1, 1))], [("softmax_label", (1, 1))])
    module.init_params()
    optimizer = mx.optimizer.SGD(rescale_grad=1.0)
    module.init_optimizer(optimizer=optimizer)
    assert module.optimizer_initialized and optimizer.multi_precision


def test_compression_is_refused_under_a_scale():
    contexts = [mx.cpu(0), mx.cpu(1)]
    compression = {"type": "2bit", "threshold": 0.5}
    module = Module(linear_net(), context=contexts, compression_params=compression)
    module.bind([("data", (2, 1))], [("softmax_label", (2, 1))])
    module.init_params()
    with pytest.raises(ValueError, match="Gradient compression"):
        module.init_optimizer("device")
