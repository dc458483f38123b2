"""A Module's checkpoints: resume, stock MXNet, other policies, Gluon's exports."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.symbolic import Module
from tests.symbolic.networks import (
    HALF,
    batch_of,
    conv_net,
    images,
    linear_module,
    ops_of,
    same,
    step,
    train,
    values,
)

import mxnet as mx
from mxnet import gluon, nd
from mxnet.io import DataBatch, NDArrayIter


def test_a_checkpoint_runs_in_stock_mxnet(tmp_path):
    data, label = images()
    prefix = str(tmp_path / "net")
    module = train(Module(conv_net(), loss_scale=2.0**6), data, label)
    module.save_checkpoint(prefix, 2)
    symbol, arg_params, aux_params = mx.model.load_checkpoint(prefix, 2)
    assert ops_of(symbol) == ops_of(conv_net())
    assert {a.dtype for a in [*arg_params.values(), *aux_params.values()]} == {np.float32}
    same(values(module), {k: v.asnumpy() for k, v in {**arg_params, **aux_params}.items()})

    stock = mx.mod.Module.load(prefix, 2)
    stock.bind([("data", data.shape)], [("softmax_label", label.shape)], for_training=False)
    in_float32 = Module.load(prefix, 2, policy="float32")
    in_float32.bind([("data", data.shape)], [("softmax_label", label.shape)], for_training=False)
    for one in (stock, in_float32):
        one.forward(batch_of(data, label), is_train=False)
    expected = stock.get_outputs()[0].asnumpy()
    np.testing.assert_array_equal(in_float32.get_outputs()[0].asnumpy(), expected)
    # float16 has 11 bits, and three roundings follow each other
    ours = module.predict(NDArrayIter(data, label, 16)).asnumpy()
    np.testing.assert_allclose(ours, expected, atol=2e-2)


def test_masters_are_what_is_saved(tmp_path):
    module = linear_module([[1.0]], (1, 1), (1, 1), {"learning_rate": 2.0**-14}, loss_scale=4.0)
    step(module, [[1.0]], [[0.0]])
    module.save_params(str(tmp_path / "p"))
    assert nd.load(str(tmp_path / "p"))["arg:fc_weight"].asscalar() == 1 - 2.0**-14
    module.set_params({"fc_weight": nd.zeros((1, 1))}, {})
    module.load_params(str(tmp_path / "p"))
    assert values(module)["fc_weight"].item() == 1 - 2.0**-14


@pytest.mark.parametrize("policy", HALF)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_law_5_resume_equals_uninterrupted(tmp_path, policy, optimizer):
    data, label = images()
    prefix = str(tmp_path / "net")
    fit = {"optimizer": optimizer, "optimizer_params": {"learning_rate": 0.05}}

    def scale():  # epochs of four steps; growth after three: the save is inside a window
        return amp.DynamicLossScale(init_scale=2.0**5, growth_interval=3, max_scale=2.0**8)

    straight = Module(conv_net(), policy=policy, loss_scale=scale())
    train(straight, data, label, epochs=3, **fit)
    first = Module(conv_net(), policy=policy, loss_scale=scale())
    save = mx.callback.module_checkpoint(first, prefix, 1, save_optimizer_states=True)
    train(first, data, label, epochs=1, epoch_end_callback=save, **fit)
    second = Module.load(prefix, 1, load_optimizer_states=True, policy=policy, loss_scale=scale())
    with pytest.warns(UserWarning, match="already initialized"):
        train(second, data, label, epochs=3, begin_epoch=1, **fit)
    same(values(second), values(straight))
    assert second.loss_scale.state_dict() == straight.loss_scale.state_dict()


def test_states_move_between_policies(tmp_path):
    data, label = images()
    prefix = str(tmp_path / "net")
    scale = {"loss_scale": 2.0**6}
    wide = train(Module(conv_net(), policy="mixed_float16", **scale), data, label, epochs=1)
    wide.save_checkpoint(prefix, 1, save_optimizer_states=True)
    module = Module.load(prefix, 1, load_optimizer_states=True, policy="float16", **scale)
    with pytest.warns(UserWarning, match="already initialized"):
        train(module, data, label, epochs=0)
    same(values(module), values(wide))
    held = {name: a.asnumpy() for name, a in module.trainer.master_params().items()}
    same(held, values(wide))
    step(module, data[:16], label[:16])
    assert not np.array_equal(values(module)["fc_weight"], values(wide)["fc_weight"])


def test_states_leave_the_parameters_alone(tmp_path):
    module = linear_module([[1.0]], (1, 1), (1, 1), {"learning_rate": 2.0**-14}, loss_scale=4.0)
    for _ in range(2):
        step(module, [[1.0]], [[0.0]])
        module.save_optimizer_states(str(tmp_path / "states"))
    before = module.trainer.master_params()["fc_weight"].asscalar()
    module.load_optimizer_states(str(tmp_path / "states"))
    assert values(module)["fc_weight"].item() == before


def test_stock_states_go_on(tmp_path):
    data, label = images()
    prefix = str(tmp_path / "net")
    stock = train(mx.mod.Module(conv_net()), data, label, epochs=1)
    stock.save_checkpoint(prefix, 1, save_optimizer_states=True)
    module = Module.load(prefix, 1, load_optimizer_states=True)
    module.bind([("data", (16, 1, 8, 8))], [("softmax_label", (16,))])
    module.init_optimizer(optimizer_params={"learning_rate": 0.1, "momentum": 0.9})
    same(values(module), values(stock))
    names = [name for name in stock.symbol.list_arguments() if name in values(stock)]
    momenta = {
        names[index]: rest[0] for index, (_, rest) in module.trainer.state_dict()["states"].items()
    }
    theirs = stock._updater.states
    assert len(momenta) == len(theirs) > 0
    for index, momentum in theirs.items():
        np.testing.assert_array_equal(momenta[names[index]], momentum.asnumpy())


def test_a_gluon_export_goes_on_as_a_module(tmp_path):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(5, activation="relu"), gluon.nn.BatchNorm(), gluon.nn.Dense(4))
    net.initialize(mx.init.Xavier())
    amp.cast(net, "float16")
    x = nd.random.uniform(shape=(6, 3))
    expected = net(x).asnumpy()
    net.export(str(tmp_path / "net"))
    module = Module.load(str(tmp_path / "net"), 0, policy="float16", label_names=None)
    module.bind([("data", (6, 3))], for_training=False)
    module.forward(DataBatch([x]), is_train=False)
    np.testing.assert_array_equal(module.get_outputs()[0].asnumpy(), expected)


def test_an_earlier_state_rewinds_the_schedule_of_the_same_and_of_a_new_module(tmp_path):
    def build():
        schedule = mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=1.0)
        return linear_module([[1.0, 0.5]], sgd={"lr_scheduler": schedule})

    def rates(module):
        found = []
        for _ in range(5):
            step(module, [[1.0, 0.5], [0.25, 1]], [[1.0], [0.5]])
            found.append(module.optimizer.learning_rate)
        return found

    module, path = build(), str(tmp_path / "states")
    module.save_optimizer_states(path)
    expected = rates(module)
    assert expected[-1] < expected[0]
    for again in (module, build()):
        again.load_optimizer_states(path)
        assert rates(again) == expected
