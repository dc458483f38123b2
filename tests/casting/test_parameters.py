"""All ways to save a cast net write float32 masters, and all ways to load one set them."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.base.host import host_copy
from gluon_amp.casting.parameters import dtype_of
from gluon_amp.optimizer.arrays import flatten
from tests import kinds

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

OPTIONS = {"learning_rate": 1e-3, "multi_precision": True}
DEVICES = [mx.cpu(0), mx.cpu(1)]


def hybrid():
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(4, in_units=3, activation="relu"), nn.BatchNorm(in_channels=4))
        net.add(nn.Dense(2, in_units=4))
    return net


def symbol_block():
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc0")
    x = mx.sym.FullyConnected(mx.sym.relu(x), num_hidden=2, name="fc1")
    return gluon.SymbolBlock(x, [mx.sym.var("data")])


def data(seed=0):
    return kinds.array(np.random.RandomState(seed).normal(size=(4, 3)))


def initialized(make=hybrid, seed=0, ctx=None):
    mx.random.seed(seed)
    net = make()
    net.initialize(mx.init.Uniform(1), ctx)
    net(data())
    return net


def train(net, trainer, steps=3, ctx=(None,)):
    for step in range(steps):
        with autograd.record():
            inputs = [data(step).as_in_context(one or mx.cpu()) for one in ctx]
            losses = [(net(x) ** 2).mean() for x in inputs]
        getattr(trainer, "backward", autograd.backward)(losses)
        trainer.step(len(losses))


def trained(make=hybrid, build=amp.Trainer, optimizer="sgd", ctx=None):
    """A cast net and its trainer after steps too small for float16 weights."""
    net = amp.cast(initialized(make, ctx=ctx), "float16")
    trainer = build(net.collect_params(), optimizer, OPTIONS)
    train(net, trainer, ctx=ctx or (None,))
    return net, trainer


def values_of(net):
    return {p.name: host_copy(p.data()) for p in net.collect_params().values()}


def states_of(trainer):
    """Return copies of all arrays in the states of a trainer's optimizer."""
    states = [state for updater in trainer._updaters for state in updater.states.values()]
    return [host_copy(array) for array in flatten(states) if array is not None]


def set_data(net, values):
    for param, value in zip(net.collect_params().values(), values):
        param.set_data(value)


# A stock SymbolBlock cannot load what its own save_parameters writes: the names have no dots.
@pytest.mark.parametrize(
    "arrays, make, save, load",
    [
        ("nd", hybrid, "save_parameters", "load_parameters"),
        ("np", hybrid, "save_parameters", "load_parameters"),
        ("nd", hybrid, "save", "load"),  # of the ParameterDict
        ("nd", symbol_block, "save", "load"),
    ],
    indirect=["arrays"],
)
def test_stock_mxnet_loads_the_masters_whatever_saves_them(arrays, make, save, load, tmp_path):
    net, trainer = trained(make)
    path, stock = str(tmp_path / "a.params"), initialized(make, seed=1)
    for one, do in ((net, save), (stock, load)):
        getattr(one if do.endswith("parameters") else one.collect_params(), do)(path)
    low, loaded = values_of(net), values_of(stock)
    assert {array.dtype.name for array in loaded.values()} == {"float32"}
    for name, master in trainer.master_params().items():
        np.testing.assert_array_equal(loaded[name], master.asnumpy())
        if low[name].dtype == np.float16:  # else it could not be told from its rounding
            assert (loaded[name] != low[name]).any()


@pytest.mark.parametrize(
    "arrays, make, policy",
    [
        ("nd", hybrid, "float16"),
        ("np", hybrid, "float16"),
        ("nd", symbol_block, "float16"),
        ("nd", hybrid, "bfloat16"),
    ],
    indirect=["arrays"],
)
def test_a_stock_file_is_loaded_into_a_cast_net_by_all_ways(arrays, make, policy, tmp_path):
    stock, path = initialized(make, seed=1), str(tmp_path / "a.params")
    expected = values_of(stock)
    stock.save_parameters(path)
    nd.save(path + ".names", {name: nd.array(values) for name, values in expected.items()})
    by_block = [
        lambda net: net.load_parameters(path),
        lambda net: net.load_parameters(path, cast_dtype=True, dtype_source="saved"),
    ]
    for load in [
        *(by_block if make is hybrid else ()),
        lambda net: net.collect_params().load(path + ".names"),
        lambda net: set_data(net, nd.load(path + ".names").values()),
        lambda net: set_data(net, expected.values()),  # of numpy
    ]:
        net = amp.cast(initialized(make), policy)
        dtypes = {p.name: dtype_of(p) for p in net.collect_params().values()}
        load(net)
        assert {p.name: dtype_of(p) for p in net.collect_params().values()} == dtypes
        params = net.collect_params().values()
        held = [a for p in params for a in (*p.list_data(), *(p.list_grad() if p._grad else ()))]
        assert {type(array) for array in held} == {type(arrays.ones((1,)))}
        for name, values in values_of(net).items():
            assert values.dtype == np.dtype(dtypes[name])
            np.testing.assert_array_equal(values, expected[name].astype(values.dtype))


@pytest.mark.parametrize(
    "steps, build, load",
    [
        (0, amp.Trainer, lambda net, path: net.load_parameters(path)),  # the optimizer has no state
        (2, gluon.Trainer, lambda net, path: net.load_parameters(path)),
        (2, amp.Trainer, lambda net, path: set_data(net, nd.load(path).values())),
    ],
)
def test_loaded_values_become_the_masters_and_are_saved_again(steps, build, load, tmp_path):
    path = str(tmp_path / "a.params")
    initialized(seed=1).save_parameters(path)
    net = amp.cast(initialized(), "float16")
    trainer = build(net.collect_params(), "sgd", OPTIONS)
    train(net, trainer, steps)
    load(net, path)
    net.save_parameters(path + ".again")
    saved, again = nd.load(path), nd.load(path + ".again")
    for name, array in saved.items():
        np.testing.assert_array_equal(again[name].asnumpy(), array.asnumpy())
    # the next update starts from them
    trainer.set_learning_rate(1e-9)
    train(net, trainer, 1)
    net.save_parameters(path + ".again")
    for name, array in nd.load(path + ".again").items():
        if "running" not in name:
            np.testing.assert_allclose(array.asnumpy(), saved[name].asnumpy(), rtol=0, atol=1e-7)


def test_a_float16_file_leaves_the_bits_of_masters_that_it_agrees_with(tmp_path):
    net, trainer = trained()
    path = str(tmp_path / "a.params")
    wide = {name: array.asnumpy() for name, array in trainer.master_params().items()}
    nd.save(path, {name: nd.array(values, dtype="float16") for name, values in wide.items()})
    net.collect_params().load(path, allow_missing=True)
    for name, array in trainer.master_params().items():
        if dtype_of(net.collect_params()[name]) == "float16":
            np.testing.assert_array_equal(array.asnumpy(), wide[name])


@pytest.mark.parametrize("optimizer, ctx", [("adam", None), ("sgd", DEVICES)])
def test_masters_of_a_stock_trainer_are_saved_and_come_back_with_the_undo(optimizer, ctx, tmp_path):
    """With several devices, a stock trainer's kvstore updates, and has the states."""
    net, trainer = trained(hybrid, gluon.Trainer, optimizer, ctx)
    weight = net[0].weight
    updater = trainer._kvstore._updater if ctx else trainer._updaters[0]
    state = updater.states[trainer._params.index(weight)]
    master = state[1 if optimizer == "sgd" else 0].asnumpy()
    assert (master != host_copy(weight.data())).any()
    net.save_parameters(str(tmp_path / "a.params"))
    saved = nd.load(str(tmp_path / "a.params"))["0.weight"].asnumpy()
    np.testing.assert_array_equal(saved, master)
    amp.cast(net, "float32")
    np.testing.assert_array_equal(weight.data().asnumpy(), master)


@pytest.mark.parametrize(
    "build, name, options",
    [
        (amp.Trainer, "adam", {}),
        (gluon.Trainer, "sgd", {"momentum": 0.9}),  # an array in place of a pair
        (gluon.Trainer, "adam", {}),  # a pair in the layout of (master, momentum)
    ],
)
def test_states_from_before_the_cast_are_not_taken_for_masters(build, name, options, tmp_path):
    net, path = initialized(), str(tmp_path / "a.params")
    trainer = build(net.collect_params(), name, {**OPTIONS, **options})
    train(net, trainer)
    amp.cast(net, "float16")
    low, before = values_of(net), states_of(trainer)
    net.collect_params().save(path)
    for parameter, values in nd.load(path).items():
        np.testing.assert_array_equal(values.asnumpy(), low[parameter].astype(np.float32))
    net.collect_params().load(path)
    assert all(np.array_equal(a, b) for a, b in zip(before, states_of(trainer)))
    amp.cast(net, "float32")
    for parameter, values in values_of(net).items():
        np.testing.assert_array_equal(values, low[parameter].astype(np.float32))


def test_masters_on_several_devices(tmp_path):
    net, trainer = trained(ctx=DEVICES)
    master = trainer.master_params()[net[0].weight.name].asnumpy()
    path = str(tmp_path / "a.params")
    net.save_parameters(path)
    np.testing.assert_array_equal(nd.load(path)["0.weight"].asnumpy(), master)
    net.load_parameters(path)
    index = trainer._params.index(net[0].weight)
    held = [updater.states[index][0] for updater in trainer._updaters]
    assert [array.context for array in held] == DEVICES
    assert all(np.array_equal(array.asnumpy(), master) for array in held)


def test_arrays_keep_dtype_and_kind_when_they_are_moved_or_set_before_their_shape_is_known(arrays):
    def check(param, expected, context):
        weight = param.data()
        assert (weight.context, param.grad().dtype) == (context, np.float16)
        assert type(weight) is type(param.grad()) is type(arrays.ones((1,)))
        assert weight.dtype == np.float16 and np.array_equal(weight.asnumpy(), expected)

    net = amp.cast(initialized(), "float16")
    before = net[0].weight.data().asnumpy()
    net[0].weight.reset_ctx([mx.cpu(1)])
    check(net[0].weight, before, mx.cpu(1))
    net = amp.cast(nn.Dense(4), "float16")
    net.initialize()
    net.weight.set_data(nd.full((4, 3), 0.1))
    net(data())
    check(net.weight, np.full((4, 3), 0.1, np.float16), mx.cpu())
