"""Files of stock MXNet, from which training continues."""

import collections
import warnings

import numpy as np
import pytest

from gluon_amp import Trainer
from gluon_amp.symbolic import Module
from gluon_amp.trainer import stock_pickle
from tests.trainer.state_helpers import (
    leaves,
    own,
    parameters,
    refuse,
    stock_trainer,
    train,
    weights,
)

import mxnet as mx
from mxnet import gluon, nd

STOCK = {
    "sgd": {"momentum": 0.9, "wd": 0.01},
    "nag": {"momentum": 0.9},
    "adam": {},
    "lamb": {},
    "lars": {"momentum": 0.9},
    "rmsprop": {"centered": True},
    "adagrad": {},
    "adadelta": {},
    "ftrl": {},
    "ftml": {},
    "adamax": {},
    "nadam": {},
    "signum": {},
    "sgld": {},
    "dcasgd": {},
}


def continued(stock, path, optimizer, dtype="float32", contexts=None, **settings):
    """Save a stock trainer, and return one of gluon_amp that continues from its file."""
    stock.save_states(path)
    params = parameters(dtype, contexts)
    for mine, theirs in zip(params, stock._params):
        mine.set_data(theirs.list_data()[0])
    trainer = Trainer(params, optimizer, settings, loss_scale=None)
    trainer.load_states(path)
    return trainer


# MXNet's LARS fails on a CPU in float16: its norm has no kernel.
FLOAT16 = [(optimizer, "float16") for optimizer in STOCK if optimizer != "lars"]


@pytest.mark.parametrize(
    "optimizer, dtype", [*FLOAT16, ("lars", "float32"), ("sgd", "float32"), ("dcasgd", "float32")]
)
def test_training_continues_with_mxnets_own_optimizer_bit_for_bit(path, optimizer, dtype):
    stock = train(stock_trainer(optimizer, dtype, **STOCK[optimizer]))
    instance = type(stock.optimizer)(
        learning_rate=2.0**-6, multi_precision=dtype == "float16", **STOCK[optimizer]
    )
    stock.save_states(path)
    params = parameters(dtype)
    for mine, theirs in zip(params, stock._params):
        mine.set_data(theirs.data())
    trainer = Trainer(params, instance, loss_scale=None)
    trainer.load_states(path)
    assert trainer.optimizer.num_update == 3
    for one in (stock, trainer):
        mx.random.seed(1)  # SGLD adds noise
        train(one)
    for mine, theirs in zip(weights(trainer), weights(stock)):
        np.testing.assert_array_equal(mine, theirs)
    for mine, theirs in zip(*(leaves(t._updaters[0].states) for t in (trainer, stock))):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    "optimizer, settings, dtype",
    [
        ("sgd", {}, "float16"),
        ("sgd", {"momentum": 0.9}, "float16"),
        ("sgd", {"momentum": 0.9}, "float32"),
        ("nag", {"momentum": 0.9}, "float16"),
        ("adam", {}, "float16"),
        ("lamb", {}, "float16"),
        ("lars", {"momentum": 0.9}, "float32"),
    ],
)
def test_training_continues_with_gluon_amps_optimizer(path, optimizer, settings, dtype):
    stock = train(stock_trainer(optimizer, dtype, **settings))
    trainer = continued(stock, path, optimizer, dtype, learning_rate=2.0**-6, **settings)
    # The same arrays, with the masters, in any order.
    mine, theirs = (leaves(t._updaters[0].states) for t in (trainer, stock))
    counted = [collections.Counter(a.tobytes() for a in arrays) for arrays in (mine, theirs)]
    assert counted[0] == counted[1]
    assert trainer.state_dict()["counts"] == {0: 3, 1: 3, 2: 3}
    train(stock)
    train(trainer)
    for mine, theirs in zip(weights(trainer), weights(stock)):
        np.testing.assert_allclose(mine, theirs, rtol=2e-3 if dtype == "float16" else 2e-6)


@pytest.mark.parametrize("before, after", [("float32", "float16"), ("float16", "float32")])
def test_training_continues_in_another_dtype(path, before, after):
    stock = train(stock_trainer("adam", before))
    trainer = continued(stock, path, "adam", after, learning_rate=2.0**-6)
    train(stock)
    train(trainer)
    for mine, theirs in zip(weights(trainer), weights(stock)):
        np.testing.assert_allclose(mine, theirs, rtol=2e-3)


def test_float16_states_without_masters(path):
    stock = train(gluon.Trainer(parameters("float16"), "sgd", {"momentum": 0.5}))
    assert leaves(stock._updaters[0].states)[0].dtype == np.float16
    trainer = continued(stock, path, "sgd", "float16", momentum=0.5)
    states_of = trainer.state_dict()["states"].values()
    for (_, (momentum,)), theirs in zip(states_of, leaves(stock._updaters[0].states)):
        assert momentum.dtype == np.float32
        np.testing.assert_array_equal(momentum, theirs)


def test_a_schedule_of_the_learning_rate(path):
    def schedule():
        return mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.25)

    settings = {"lr_scheduler": schedule(), "learning_rate": 0.25}
    stock = train(gluon.Trainer(parameters(), "sgd", settings))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = continued(stock, path, "sgd", lr_scheduler=schedule(), learning_rate=0.25)
    train(stock)
    train(trainer)
    assert trainer.learning_rate == stock.learning_rate == 0.25 / 4
    for mine, theirs in zip(weights(trainer), weights(stock)):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_a_rate_of_numpy_and_a_setting_that_differs(path):
    stock = train(gluon.Trainer(parameters(), "sgd", {"learning_rate": np.float64(0.125)}))
    with pytest.warns(UserWarning, match=r"had lr=0\.125; this trainer keeps its 0\.5") as caught:
        continued(stock, path, "sgd", learning_rate=0.5)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_parameters_that_had_no_update_yet(path):
    stock = stock_trainer("sgd", momentum=0.9)
    train(stock)
    del stock._updaters[0].states[1]  # as if the parameter had always been frozen
    trainer = continued(stock, path, "sgd", momentum=0.9, learning_rate=2.0**-6)
    assert sorted(trainer.state_dict()["states"]) == [0, 2]


@pytest.mark.parametrize("settings", [{}, {"update_on_kvstore": True}])
def test_several_devices(path, settings):
    contexts = [mx.cpu(0), mx.cpu(1)]
    stock = gluon.Trainer(parameters(contexts=contexts), "adam", {}, kvstore="local", **settings)
    trainer = continued(train(stock), path, "adam", contexts=contexts)
    train(stock)
    train(trainer)
    assert trainer.state_dict()["counts"] == {0: 6, 1: 6, 2: 6}
    for mine, theirs in zip(weights(trainer), weights(stock)):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def test_parameters_that_stock_mxnet_sorts_as_text(path):
    # Stock MXNet has layer10 before layer9. The shapes are equal, so only the order differs.
    def build(kind):
        named = {}
        for k, name in enumerate(["layer9", "layer10"]):
            named[name] = gluon.Parameter(name, shape=(1,), init=mx.init.Constant(k))
            named[name].initialize()
        return kind(named, "sgd", {"momentum": 0.9})

    stock = train(build(gluon.Trainer))
    assert [p.name for p in stock._params] == ["layer10", "layer9"]
    stock.save_states(path)
    trainer = build(Trainer)
    assert [p.name for p in trainer._params] == ["layer9", "layer10"]
    trainer.load_states(path)
    theirs = [state.asscalar() for state in stock._updaters[0].states.values()]
    by_name = dict(zip(["layer10", "layer9"], theirs))
    loaded = trainer.state_dict()["states"]
    assert loaded[0][1][0] == by_name["layer9"] != by_name["layer10"] == loaded[1][1][0]


def test_a_file_of_arrays_of_mx_np(path):
    """They have a version of their own in a file, in which an array may have no dimensions."""
    mx.npx.set_np()
    try:
        stock = train(stock_trainer("adam", "float16"))
        stock.save_states(path)
        values, states = weights(stock), leaves(stock._updaters[0].states)
        scalar = mx.np.ones(()).__getstate__()["handle"]
    finally:
        mx.npx.reset_np()
    assert stock_pickle.ndarray(bytes(scalar)) == 1
    params = parameters("float16")
    for param, value in zip(params, values):
        param.set_data(nd.array(value, dtype="float16"))
    trainer = Trainer(params, "adam", {"learning_rate": 2.0**-6}, loss_scale=None)
    trainer.load_states(path)
    for mine, theirs in zip(leaves(trainer._updaters[0].states), states):
        np.testing.assert_array_equal(mine, theirs)


def test_an_optimizer_of_gluon_amp_in_a_stock_trainer(path):
    stock = train(stock_trainer("amp_sgd", "float16", momentum=0.5))
    trainer = continued(stock, path, "sgd", "float16", momentum=0.5, learning_rate=2.0**-6)
    train(stock)
    train(trainer)
    for mine, theirs in zip(weights(trainer), weights(stock)):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("kind", ["stock", "own"])
@pytest.mark.parametrize(
    "optimizer, settings, dtype",
    [
        ("sgd", {}, "float16"),
        ("sgd", {"momentum": 0.5}, "float16"),
        ("sgd", {"momentum": 0.5}, "float32"),
        ("adam", {}, "float16"),
    ],
)
def test_states_without_their_optimizer(path, kind, optimizer, settings, dtype):
    """Sockeye pickles them so, and sets the update counter itself."""
    settings = {"learning_rate": 2.0**-6, **settings}
    trainer = train({"stock": stock_trainer, "own": own}[kind](optimizer, dtype, **settings))
    with open(path, "wb") as file:
        file.write(trainer._updaters[0].get_states(dump_optimizer=False))
    resumed = Trainer(parameters(dtype), optimizer, settings, loss_scale=16)
    for mine, theirs in zip(resumed._params, trainer._params):
        mine.set_data(theirs.data())
    resumed.load_states(path)
    resumed.optimizer.begin_num_update = resumed.optimizer.num_update = 3
    train(trainer)
    train(resumed)
    rtol = 0 if kind == "own" else {"float16": 2e-3, "float32": 2e-6}[dtype]
    for mine, theirs in zip(weights(resumed), weights(trainer)):
        np.testing.assert_allclose(mine, theirs, rtol=rtol)


def test_states_without_their_optimizer_are_of_the_parameters_in_natural_order(path):
    def build():
        params = gluon.ParameterDict()
        for name in ("layer9", "layer10"):
            params.get(name, shape=(1,)).initialize(mx.init.Constant(int(name[5:])))
        return Trainer(params, "adam", loss_scale=None)

    trainer, resumed = train(build()), build()
    with open(path, "wb") as file:
        file.write(trainer._updaters[0].get_states(dump_optimizer=False))
    resumed.load_states(path)
    for mine, theirs in zip(*(leaves(t._updaters[0].states) for t in (resumed, trainer))):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    "optimizer, settings, message",
    [
        (
            "adam",
            {},
            r"state of the optimizer mxnet\..*\.SGD, and this trainer has gluon_amp.*Adam",
        ),
        ("sgd", {}, "another kind of optimizer state for a .*momentum=0.9 and not 0.0"),
    ],
)
def test_stock_states_of_something_else(path, optimizer, settings, message):
    train(stock_trainer("sgd", momentum=0.9)).save_states(path)
    refuse(Trainer(parameters(), optimizer, settings), path, message)


def test_stock_states_of_other_parameters(path):
    train(stock_trainer("sgd", momentum=0.9)).save_states(path)
    refuse(Trainer(parameters()[:2], "sgd", {"momentum": 0.9}), path, "of other parameters than")
    other = parameters(names="ab")
    other.reverse()
    other.append(parameters(names="xyz")[2])
    refuse(Trainer(other, "sgd", {"momentum": 0.9}), path, "another kind of optimizer state for b")


@pytest.mark.parametrize("kvstore", [None, "on_kvstore"])
def test_states_of_a_stock_module(path, kvstore):
    def build(kind, **precision):
        data = mx.sym.var("data")
        net = mx.sym.FullyConnected(data, num_hidden=2, name="fc")
        net = mx.sym.LinearRegressionOutput(net, mx.sym.var("label"), name="out")
        contexts = [mx.cpu(0), mx.cpu(1)] if kvstore else mx.cpu()
        module = kind(net, label_names=["label"], context=contexts, **precision)
        module.bind([("data", (4, 3))], [("label", (4, 2))])
        module.init_params(mx.init.One())
        settings = {"learning_rate": 0.125, "momentum": 0.5}
        module.init_optimizer(optimizer="sgd", optimizer_params=settings)
        return module

    def step(module):
        batch = mx.io.DataBatch([nd.ones((4, 3))], [nd.zeros((4, 2))])
        module.forward_backward(batch)
        module.update()

    stock, module = build(mx.mod.Module), build(Module, policy="float32")
    for _ in range(2):
        step(stock)
    stock.save_optimizer_states(path)
    module.set_params(*stock.get_params())
    module.load_optimizer_states(path)
    for _ in range(2):
        step(stock)
        step(module)
    for name, value in stock.get_params()[0].items():
        np.testing.assert_array_equal(module.get_params()[0][name].asnumpy(), value.asnumpy())
