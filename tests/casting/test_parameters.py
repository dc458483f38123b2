"""All ways to save a cast net write float32 masters, and all ways to load one set them."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.base.host import host_copy
from gluon_amp.casting.parameters import dtype_of
from tests import kinds

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn


class OwnForward(gluon.Block):
    """A plain Block around HybridBlocks."""

    def __init__(self):
        super().__init__(prefix="own_")
        with self.name_scope():
            self.first = nn.Dense(4, in_units=3, activation="relu")
            self.second = nn.HybridSequential()
            with self.second.name_scope():
                self.second.add(nn.Dense(4, in_units=4), nn.BatchNorm(in_channels=4))

    def forward(self, x):
        return self.second(self.first(x) + 1)


def hybrid():
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(4, in_units=3, activation="relu"), nn.BatchNorm(in_channels=4))
        net.add(nn.Dense(2, in_units=4))
    return net


def symbol_block():
    x = data = mx.sym.var("data")
    x = mx.sym.FullyConnected(x, num_hidden=4, name="fc0")
    x = mx.sym.FullyConnected(mx.sym.relu(x), num_hidden=2, name="fc1")
    if mx.util.is_np_array():
        x, data = x.as_np_ndarray(), data.as_np_ndarray()
    return gluon.SymbolBlock(x, [data])


NETS = {"HybridBlock": hybrid, "Block": OwnForward, "SymbolBlock": symbol_block}


def data(seed=0):
    return kinds.array(np.random.RandomState(seed).normal(size=(4, 3)))


def initialized(make, seed=0):
    mx.random.seed(seed)
    net = make()
    net.initialize(mx.init.Uniform(1))
    net(data())
    return net


def train(net, trainer, steps=3):
    for step in range(steps):
        with autograd.record():
            loss = (net(data(step)) ** 2).mean()
        if isinstance(trainer, amp.Trainer):
            trainer.backward(loss)
        else:
            loss.backward()
        trainer.step(1)


def trained(make, policy="float16"):
    """A cast net and its Trainer after steps too small for float16 weights."""
    net = amp.cast(initialized(make), policy)
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-3, "momentum": 0.9})
    train(net, trainer)
    return net, trainer


def weights_of(net):
    return {p.name: host_copy(p.data()) for p in net.collect_params().values()}


def kinds_of(net):
    """Return the types of the arrays and gradients of a net's parameters."""
    params = net.collect_params().values()
    grads = [p.grad() for p in params if p.grad_req != "null"]
    return {type(held) for held in [*(p.data() for p in params), *grads]}


SAVERS = {
    "save_parameters": lambda net, path: net.save_parameters(path),
    "deduplicate": lambda net, path: net.save_parameters(path, deduplicate=True),
    "ParameterDict.save": lambda net, path: net.collect_params().save(path),
}
LOADERS = {
    "save_parameters": lambda net, path: net.load_parameters(path),
    "deduplicate": lambda net, path: net.load_parameters(path),
    "ParameterDict.save": lambda net, path: net.collect_params().load(path),
}


# A stock SymbolBlock cannot load what its own save_parameters writes: the names have no dots.
@pytest.mark.parametrize(
    "arrays, kind, save",
    [
        ("nd", "HybridBlock", "save_parameters"),
        ("nd", "Block", "deduplicate"),
        ("nd", "SymbolBlock", "ParameterDict.save"),
        ("np", "HybridBlock", "save_parameters"),
    ],
    indirect=["arrays"],
)
def test_stock_mxnet_loads_the_masters_whatever_saves_them(arrays, kind, save, tmp_path):
    net, trainer = trained(NETS[kind])
    path = str(tmp_path / "a.params")
    SAVERS[save](net, path)
    stock = initialized(NETS[kind], seed=1)
    LOADERS[save](stock, path)
    wide = {name: array.asnumpy() for name, array in trainer.master_params().items()}
    weights, loaded = weights_of(net), weights_of(stock)
    assert list(loaded) == list(weights)
    assert {array.dtype.name for array in loaded.values()} == {"float32"}
    for name, values in wide.items():
        np.testing.assert_array_equal(loaded[name], values)
    low = [name for name, array in weights.items() if array.dtype == np.float16]
    assert low
    for name in low:  # else the test could not tell a master from its rounding
        assert (wide[name] != weights[name].astype(np.float32)).any()
    assert {dtype_of(net.collect_params()[name]) for name in low} == {"float16"}


@pytest.mark.parametrize(
    "arrays, kind, policy",
    [
        ("nd", "HybridBlock", "float16"),
        ("np", "Block", "float16"),
        ("nd", "SymbolBlock", "float16"),
        ("nd", "HybridBlock", "bfloat16"),
    ],
    indirect=["arrays"],
)
def test_a_stock_file_is_loaded_into_a_cast_net_by_all_ways(arrays, kind, policy, tmp_path):
    stock = initialized(NETS[kind], seed=1)
    expected = weights_of(stock)
    own, full = str(tmp_path / "own.params"), str(tmp_path / "full.params")
    stock.save_parameters(own)
    nd.save(full, {name: nd.array(values) for name, values in expected.items()})
    saved = {"cast_dtype": True, "dtype_source": "saved"}
    by_block = [
        lambda net: net.load_parameters(own),
        lambda net: net.load_parameters(own, **saved),
    ]
    ways = [
        *(by_block if kind != "SymbolBlock" else ()),
        lambda net: net.collect_params().load(full),
        lambda net: set_data(net, nd.load(full)),
        lambda net: set_data(net, expected),
    ]
    for load in ways:
        net = amp.cast(initialized(NETS[kind]), policy)
        dtypes = {p.name: dtype_of(p) for p in net.collect_params().values()}
        load(net)
        assert {p.name: dtype_of(p) for p in net.collect_params().values()} == dtypes
        assert kinds_of(net) == {type(arrays.ones((1,)))}
        for name, values in weights_of(net).items():
            assert values.dtype == np.dtype(dtypes[name])
            np.testing.assert_array_equal(values, expected[name].astype(values.dtype))


def set_data(net, values):
    for name, param in net.collect_params().items():
        param.set_data(values[name])


SETTERS = {
    "load_parameters": lambda net, path: net.load_parameters(path),
    "set_data": lambda net, path: set_data(
        net, dict(zip(net.collect_params(), nd.load(path).values()))
    ),
}


@pytest.mark.parametrize(
    "steps, build, setter",
    [
        (0, amp.Trainer, "load_parameters"),  # before the optimizer has a state
        (2, gluon.Trainer, "load_parameters"),
        (2, amp.Trainer, "set_data"),
    ],
)
def test_loaded_values_become_the_masters_and_are_saved_again(steps, build, setter, tmp_path):
    path = str(tmp_path / "a.params")
    stock = initialized(hybrid, seed=1)
    stock.save_parameters(path)
    net = amp.cast(initialized(hybrid), "float16")
    options = {"learning_rate": 1e-3, "multi_precision": True}
    trainer = build(net.collect_params(), "sgd", options)
    train(net, trainer, steps)
    SETTERS[setter](net, path)
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
    net, trainer = trained(hybrid)
    path = str(tmp_path / "a.params")
    wide = {name: array.asnumpy() for name, array in trainer.master_params().items()}
    nd.save(path, {name: nd.array(values, dtype="float16") for name, values in wide.items()})
    net.collect_params().load(path, allow_missing=True)
    for name, array in trainer.master_params().items():
        if dtype_of(net.collect_params()[name]) == "float16":
            np.testing.assert_array_equal(array.asnumpy(), wide[name])


def test_masters_of_a_stock_trainer_are_saved_and_come_back_with_the_undo(tmp_path):
    net = amp.cast(initialized(hybrid), "float16")
    options = {"learning_rate": 1e-3, "multi_precision": True}
    trainer = gluon.Trainer(net.collect_params(), "adam", options)
    train(net, trainer)
    index = [p.name for p in trainer._params].index(net[0].weight.name)
    master = trainer._updaters[0].states[index][0].asnumpy()
    net.save_parameters(str(tmp_path / "a.params"))
    saved = nd.load(str(tmp_path / "a.params"))["0.weight"].asnumpy()
    np.testing.assert_array_equal(saved, master)
    assert (saved != net[0].weight.data().asnumpy()).any()
    amp.cast(net, "float32")
    np.testing.assert_array_equal(net[0].weight.data().asnumpy(), master)


@pytest.mark.parametrize(
    "build, name",
    [
        (amp.Trainer, "adam"),
        (gluon.Trainer, "sgd"),  # an array in place of a pair
        (gluon.Trainer, "adam"),  # a pair in the layout of (master, momentum)
        (gluon.Trainer, "rmsprop"),
    ],
)
def test_states_of_a_trainer_from_before_the_cast_are_not_taken_for_masters(build, name, tmp_path):
    net = initialized(hybrid)
    params = list(net.collect_params().values())
    options = {"learning_rate": 1e-3, "multi_precision": True}
    if name in ("sgd", "nag", "signum"):
        options["momentum"] = 0.9
    train(net, build(params, name, options))
    states = params[0]._trainer._updaters[0].states
    amp.cast(net, "float16")
    low = weights_of(net)
    path = str(tmp_path / "a.params")
    before = [host_copy(array) for state in states.values() for array in flat(state)]
    net.collect_params().save(path)
    for parameter, values in nd.load(path).items():
        np.testing.assert_array_equal(values.asnumpy(), low[parameter].astype(np.float32))
    net.collect_params().load(path)
    after = [host_copy(array) for state in states.values() for array in flat(state)]
    assert all(np.array_equal(a, b) for a, b in zip(before, after))
    amp.cast(net, "float32")
    for parameter, values in weights_of(net).items():
        np.testing.assert_array_equal(values, low[parameter].astype(np.float32))


def flat(state):
    if isinstance(state, (list, tuple)):
        return [array for item in state for array in flat(item)]
    return [] if state is None else [state]


def test_several_devices(tmp_path):
    contexts = [mx.cpu(0), mx.cpu(1)]
    net = initialized(hybrid)
    net.collect_params().reset_ctx(contexts)
    amp.cast(net, "float16")
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-3}, loss_scale=128)
    with autograd.record():
        losses = [(net(data().as_in_context(ctx)) ** 2).mean() for ctx in contexts]
    trainer.backward(losses)
    assert trainer.step(2).applied
    master = trainer.master_params()[net[0].weight.name].asnumpy()
    path = str(tmp_path / "a.params")
    net.save_parameters(path)
    np.testing.assert_array_equal(nd.load(path)["0.weight"].asnumpy(), master)
    net.load_parameters(path)
    index = trainer._params.index(net[0].weight)
    held = [updater.states[index][0] for updater in trainer._updaters]
    assert [array.context for array in held] == contexts
    for array in held:
        np.testing.assert_array_equal(array.asnumpy(), master)


def test_masters_on_a_kvstore_that_updates(tmp_path):
    contexts = [mx.cpu(0), mx.cpu(1)]
    net = initialized(hybrid)
    net.collect_params().reset_ctx(contexts)
    amp.cast(net, "float16")
    options = {"learning_rate": 1e-3, "multi_precision": True}
    trainer = gluon.Trainer(net.collect_params(), "sgd", options)  # on the kvstore by default
    with autograd.record():
        losses = [(net(data().as_in_context(ctx)) ** 2).mean() for ctx in contexts]
    autograd.backward(losses)
    trainer.step(2)
    index = trainer._params.index(net[0].weight)
    _, master = trainer._kvstore._updater.states[index]
    net.save_parameters(str(tmp_path / "a.params"))
    saved = nd.load(str(tmp_path / "a.params"))["0.weight"].asnumpy()
    np.testing.assert_array_equal(saved, master.asnumpy())
    assert (saved != net[0].weight.data(contexts[0]).asnumpy()).any()


@pytest.mark.parametrize("move", ["reset_ctx", "set_data before the shape is known"])
def test_a_parameters_arrays_keep_its_dtype_and_kind(arrays, move):
    if move == "reset_ctx":
        net = amp.cast(initialized(hybrid), "float16")
        before = net[0].weight.data().asnumpy()
        net[0].weight.reset_ctx([mx.cpu(1)])
        expected, context = before, mx.cpu(1)
    else:
        net = nn.HybridSequential()
        net.add(nn.Dense(4))
        net.initialize()
        amp.cast(net, "float16")
        net[0].weight.set_data(nd.full((4, 3), 0.1))
        net(data())
        expected, context = np.full((4, 3), 0.1, np.float16), mx.cpu()
    weight = net[0].weight.data()
    assert weight.dtype == np.float16 and weight.context == context
    assert net[0].weight.grad().dtype == np.float16
    np.testing.assert_array_equal(weight.asnumpy(), expected)
    assert kinds_of(net[0]) == {type(arrays.ones((1,)))}


def test_the_undo_gives_parameters_their_own_class_back():
    net = initialized(hybrid)
    before = [type(p) for p in net.collect_params().values()]
    amp.cast(net, "float16")
    assert all(isinstance(p, gluon.Parameter) for p in net.collect_params().values())
    amp.cast(net, "float32")
    assert [type(p) for p in net.collect_params().values()] == before
    assert all("_amp_gradient_dtype" not in vars(p) for p in net.collect_params().values())
