"""Trainer states in files: gluon_amp's own, stock MXNet's, damaged ones and forged ones."""

import collections
import itertools
import json
import pickle
import warnings

import numpy as np
import pytest

from gluon_amp import DynamicLossScale, Trainer
from gluon_amp.files import archive
from gluon_amp.symbolic import Module
from gluon_amp.trainer import state_files, stock_pickle
from tests import forging

import mxnet as mx
from mxnet import autograd, gluon, nd

SHAPES = [(2, 3), (3,), (1,)]


def parameters(dtype="float32", contexts=None, names="abc"):
    made = []
    for name, shape in zip(names, SHAPES):
        param = gluon.Parameter(name, shape=shape, dtype=dtype, init=mx.init.One())
        param.initialize(ctx=contexts or mx.cpu())
        made.append(param)
    return made


def train(trainer, steps=3):
    """Pull all parameters to different values, with gradients that float16 holds."""
    for step in range(steps):
        losses = []
        with autograd.record():
            for context in trainer._contexts or [mx.cpu()]:
                losses += [
                    ((p.data(context).astype("float32") - 0.25 * k - step) ** 2).sum()
                    for k, p in enumerate(trainer._params)
                ]
        if isinstance(trainer, Trainer):
            trainer.backward(losses)
        else:
            autograd.backward(losses)
        trainer.step(4 * len(trainer._contexts or [1]))
    return trainer


def values(trainer):
    return [p.list_data()[0].asnumpy() for p in trainer._params]


def leaves(state):
    """All arrays of a state, in order."""
    if isinstance(state, (tuple, list)):
        return [leaf for item in state for leaf in leaves(item)]
    if isinstance(state, dict):
        return [leaf for key in sorted(state) for leaf in leaves(state[key])]
    return [] if state is None else [state.asnumpy() if isinstance(state, nd.NDArray) else state]


def refuse(trainer, path, match=None):
    """Assert that a file is refused in one sentence, and that nothing is changed."""
    before = repr(trainer.state_dict())
    with pytest.raises(ValueError, match=match) as caught:
        trainer.load_states(path)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1000
    assert repr(trainer.state_dict()) == before


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "states")


def own(optimizer="sgd", dtype="float16", **settings):
    settings = settings or ({"momentum": 0.5} if optimizer == "sgd" else {})
    scale = DynamicLossScale(16, growth_interval=4)
    return Trainer(parameters(dtype), optimizer, settings, loss_scale=scale)


# --------------------------------------------------------------------------------- our own files


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "rmsprop", "nadam"])
def test_a_file_is_an_archive_of_numbers(path, optimizer):
    first, second = train(own(optimizer)), own(optimizer)
    first.save_states(path)
    with np.load(path) as content:  # allow_pickle is False by default
        header = json.loads(content["gluon_amp_states.json"])
        assert all(content[name].dtype == np.float32 for name in content.files[1:])
    assert (header["format"], header["version"]) == ("gluon_amp trainer states", 1)
    for mine, theirs in zip(second._params, first._params):
        mine.set_data(theirs.data())
    second.load_states(path)
    assert repr(second.state_dict()) == repr(first.state_dict())
    train(first, 2)
    train(second, 2)
    assert repr(second.state_dict()) == repr(first.state_dict())


@pytest.mark.parametrize("bit", [0, 4, 7])
def test_a_wrong_bit_in_any_byte_is_refused(path, bit):
    trainer = train(own())
    trainer.save_states(path)
    with open(path, "rb") as file:
        data = bytearray(file.read())
    with open(path, "r+b", buffering=0) as file:
        for position in range(len(data)):
            file.seek(position)
            file.write(bytes([data[position] ^ 1 << bit]))
            with pytest.raises(ValueError):
                state_files.read(path, trainer)
            file.seek(position)
            file.write(data[position : position + 1])
    state_files.read(path, trainer)


def test_truncated_files_are_refused_at_every_length(path):
    trainer = train(own())
    trainer.save_states(path)
    with open(path, "r+b") as file:
        for length in reversed(range(len(file.read()))):
            file.truncate(length)
            with pytest.raises(ValueError, match="truncated"):
                state_files.read(path, trainer)
    refuse(trainer, path, "truncated")


@pytest.mark.parametrize("settings", [{}, {"update_on_kvstore": True, "kvstore": "local"}])
def test_stock_mxnet_refuses_our_files(path, settings):
    train(own()).save_states(path)
    contexts = [mx.cpu(0), mx.cpu(1)] if settings else [mx.cpu()]
    stock = gluon.Trainer(parameters(contexts=contexts), "sgd", {"momentum": 0.5}, **settings)
    with pytest.raises(pickle.UnpicklingError):
        stock.load_states(path)
    with pytest.raises(pickle.UnpicklingError), open(path, "rb") as file:
        pickle._Unpickler(file).load()


def test_states_of_before_are_refused_with_a_way_out(path):
    trainer = train(own())
    with open(path, "wb") as file:
        pickle.dump(trainer.state_dict(), file, protocol=4)
    refuse(trainer, path, "of a gluon_amp that pickled its trainer states")


def test_a_checkpoint_is_no_states(path):
    net = gluon.nn.Dense(2, in_units=2)
    net.initialize()
    trainer = Trainer(net.collect_params(), "sgd")
    from gluon_amp import save_checkpoint

    save_checkpoint(path, net, trainer)
    refuse(trainer, path, "a checkpoint with amp.load_checkpoint")


# -------------------------------------------------------------------------------- forged states


def edited(path, edit):
    """Change the unpacked states of a file, and write them as anybody can."""
    header, arrays = archive.read(state_files.FILE, path)
    saved = archive.unpack(header["trainer"], arrays)
    edit(saved)
    state_files.write(path, saved)


def put(*keys_and_value):
    *keys, last, value = keys_and_value

    def edit(saved):
        for key in keys:
            saved = saved[key]
        saved[last] = value

    return edit


ONES = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    "edit",
    [
        put("skips", (float("nan"), 0)),
        put("skips", (-1, 0)),
        put("skips", 3),
        put("counts", 0, float("nan")),
        put("counts", 0, 2.0),
        put("counts", 0, True),
        put("counts", 0, 2**64),
        put("counts", 7, 1),
        put("counts", "a", 1),
        put("counts", [1]),
        put("progress", {}),
        put("progress", "num_update", float("nan")),
        put("progress", "num_update", 1.0),
        put("progress", "update", 3),
        put("progress", "__class__", 3),
        put("settings", "lr", [1]),
        put("settings", "lr\nlr", 1),
        put("settings", None),
        put("shapes", [(2, 3), (3,)]),
        put("shapes", [(2, 3), (3,), (float("nan"),)]),
        put("states", 0, (ONES, (ONES[0],))),
        put("states", 0, (ONES, (ONES.astype(np.float64),))),
        put("states", 0, (ONES, (ONES.astype(np.float16),))),
        put("states", 0, (ONES, ())),
        put("states", 0, (ONES, (ONES, ONES))),
        put("states", 0, (ONES, ((ONES,),))),
        put("states", 0, (ONES, (3.0,))),
        put("states", 0, (ONES, (None,))),
        put("states", 0, (ONES[0], (ONES,))),
        put("states", 0, (ONES.astype(np.int32), (ONES,))),
        put("states", 0, (ONES.astype(np.float64), (ONES,))),
        put("states", 0, (ONES,)),
        put("states", 3, (ONES, (ONES,))),
        put("states", -1, (ONES, (ONES,))),
        put("states", []),
        put("loss_scale", ("x", {})),
        put("loss_scale", ("gluon_amp.trainer.loss_scale.DynamicLossScale", {})),
        put("loss_scale", 1, "scale", 3.0),
        put("loss_scale", 1, "scale", float("inf")),
        put("loss_scale", 1, "scale", ONES),
        put("loss_scale", 1, "finite_steps", -1),
        put("loss_scale", 1, "hysteresis", 1.0),
        put("optimizer", "mxnet.optimizer.optimizer.SGD"),
        put("optimizer", "x\ny"),
        put("optimizer", "x" * 10_000),
        put("optimizer", ["gluon_amp.optimizer.SGD"]),
        put("version", 2),
        put("version", "1"),
        put("format", "gluon_amp checkpoint"),
        put("more", 1),
        lambda saved: saved.pop("counts"),
        lambda saved: saved.clear(),
    ],
)
def test_forged_states_are_refused_in_one_sentence(path, edit):
    trainer = train(own())
    trainer.save_states(path)
    edited(path, edit)
    refuse(trainer, path)


def test_many_forged_headers_are_refused_or_right(path):
    trainer = train(own())
    trainer.save_states(path)
    with open(path, "rb") as file:
        data = file.read()

    def state():  # one array of the optimizer's, as it is done for each
        counts = trainer.optimizer._index_update_count, trainer.loss_scale.state_dict()
        return trainer._updaters[0].states[2][1].asnumpy().tolist(), repr(counts)

    refusals = 0
    for header in forging.mutations(forging.header_of(data), np.random.RandomState(1), 250):
        trainer._updaters[0].states = {2: (nd.ones(1), nd.full(1, 7))}
        trainer.optimizer._index_update_count[0] = 9
        before = state()
        with open(path, "wb") as file:
            file.write(forging.with_header(data, header))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                trainer.load_states(path)
        except ValueError as error:
            refusals += 1
            assert "\n" not in str(error)
            assert state() == before
    assert 150 < refusals < 250
    train(trainer, 1)


def test_a_state_dict_is_checked_like_a_file():
    trainer = train(own())
    saved = trainer.state_dict()
    saved["counts"][0] = float("nan")
    before = repr(trainer.state_dict())
    with pytest.raises(ValueError, match=r"counts'\]\[0\] is nan and not a whole number"):
        trainer.load_state_dict(saved)
    with pytest.raises(ValueError, match="is not states that a gluon_amp Trainer has saved"):
        trainer.load_state_dict([])
    assert repr(trainer.state_dict()) == before


# ------------------------------------------------------------------------------ stock MXNet's files

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


def stock_trainer(optimizer, dtype="float32", contexts=None, **settings):
    settings = {"learning_rate": 2.0**-6, **settings}
    if dtype == "float16":
        settings["multi_precision"] = True
    return gluon.Trainer(parameters(dtype, contexts), optimizer, settings)


def taken_over(stock, path, optimizer, dtype="float32", contexts=None, **settings):
    """Save a stock trainer, and go on with one of gluon_amp and the same parameters."""
    stock.save_states(path)
    params = parameters(dtype, contexts)
    for mine, theirs in zip(params, stock._params):
        mine.set_data(theirs.list_data()[0])
    trainer = Trainer(params, optimizer, settings, loss_scale=None)
    trainer.load_states(path)
    return trainer


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("optimizer", STOCK)
def test_a_job_goes_on_with_mxnets_own_optimizer_bit_for_bit(path, optimizer, dtype):
    if (optimizer, dtype) == ("lars", "float16"):
        pytest.skip("MXNet's LARS fails on a CPU: its float16 norm has no kernel")
    stock = train(stock_trainer(optimizer, dtype, **STOCK[optimizer]))
    instance = type(stock._optimizer)(
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
    for mine, theirs in zip(values(trainer), values(stock)):
        np.testing.assert_array_equal(mine, theirs)
    for mine, theirs in zip(*(leaves(t._updaters[0].states) for t in (trainer, stock))):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "optimizer, settings",
    [("sgd", {}), ("sgd", {"momentum": 0.9}), ("nag", {"momentum": 0.9}), ("adam", {}),
     ("lamb", {}), ("lars", {"momentum": 0.9})],
)  # fmt: skip
def test_a_job_goes_on_with_gluon_amps_optimizer(path, optimizer, settings, dtype):
    if (optimizer, dtype) == ("lars", "float16"):
        pytest.skip("MXNet's LARS fails on a CPU: its float16 norm has no kernel")
    stock = train(stock_trainer(optimizer, dtype, **settings))
    trainer = taken_over(stock, path, optimizer, dtype, learning_rate=2.0**-6, **settings)
    # The same arrays, masters included, in whatever order.
    mine, theirs = (leaves(t._updaters[0].states) for t in (trainer, stock))
    counted = [collections.Counter(a.tobytes() for a in arrays) for arrays in (mine, theirs)]
    assert counted[0] == counted[1]
    assert trainer.state_dict()["counts"] == {0: 3, 1: 3, 2: 3}
    train(stock)
    train(trainer)
    for mine, theirs in zip(values(trainer), values(stock)):
        np.testing.assert_allclose(mine, theirs, rtol=2e-3 if dtype == "float16" else 2e-6)


@pytest.mark.parametrize("before, after", [("float32", "float16"), ("float16", "float32")])
def test_a_job_changes_its_dtype(path, before, after):
    stock = train(stock_trainer("adam", before))
    trainer = taken_over(stock, path, "adam", after, learning_rate=2.0**-6)
    train(stock)
    train(trainer)
    for mine, theirs in zip(values(trainer), values(stock)):
        np.testing.assert_allclose(mine, theirs, rtol=2e-3)


def test_float16_states_without_masters(path):
    stock = train(gluon.Trainer(parameters("float16"), "sgd", {"momentum": 0.5}))
    assert leaves(stock._updaters[0].states)[0].dtype == np.float16
    trainer = taken_over(stock, path, "sgd", "float16", momentum=0.5)
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
        trainer = taken_over(stock, path, "sgd", lr_scheduler=schedule(), learning_rate=0.25)
    train(stock)
    train(trainer)
    assert trainer.learning_rate == stock.learning_rate == 0.25 / 4
    for mine, theirs in zip(values(trainer), values(stock)):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_a_rate_of_numpy_and_a_setting_that_differs(path):
    stock = train(gluon.Trainer(parameters(), "sgd", {"learning_rate": np.float64(0.125)}))
    with pytest.warns(UserWarning, match=r"had lr=0\.125; this trainer keeps its 0\.5") as told:
        taken_over(stock, path, "sgd", learning_rate=0.5)
    assert len(told) == 1
    assert told[0].filename == __file__


def test_parameters_that_had_no_update_yet(path):
    stock = stock_trainer("sgd", momentum=0.9)
    train(stock)
    del stock._updaters[0].states[1]  # as of a parameter that was frozen from the beginning
    trainer = taken_over(stock, path, "sgd", momentum=0.9, learning_rate=2.0**-6)
    assert sorted(trainer.state_dict()["states"]) == [0, 2]


@pytest.mark.parametrize("settings", [{}, {"update_on_kvstore": True}])
def test_several_devices(path, settings):
    contexts = [mx.cpu(0), mx.cpu(1)]
    stock = gluon.Trainer(parameters(contexts=contexts), "adam", {}, kvstore="local", **settings)
    trainer = taken_over(train(stock), path, "adam", contexts=contexts)
    train(stock)
    train(trainer)
    assert trainer.state_dict()["counts"] == {0: 6, 1: 6, 2: 6}
    for mine, theirs in zip(values(trainer), values(stock)):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def test_parameters_that_stock_mxnet_sorts_as_text(path):
    # It has layer10 before layer9; the shapes are alike, so only the order tells them apart.
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


def test_under_numpys_semantics(path):
    mx.npx.set_np()
    try:
        stock = train(stock_trainer("adam"))
        trainer = taken_over(stock, path, "adam", learning_rate=2.0**-6)
        train(stock)
        train(trainer)
        for mine, theirs in zip(values(trainer), values(stock)):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5)
    finally:
        mx.npx.reset_np()


def test_an_optimizer_of_gluon_amp_in_a_stock_trainer(path):
    stock = train(stock_trainer("amp_sgd", "float16", momentum=0.5))
    trainer = taken_over(stock, path, "sgd", "float16", momentum=0.5, learning_rate=2.0**-6)
    train(stock)
    train(trainer)
    for mine, theirs in zip(values(trainer), values(stock)):
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


# ------------------------------------------------------------------------- forged pickles


class Call:
    """Pickles as a call of something else than the class."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


class Handle:
    """Pickles as an NDArray with these bytes."""

    def __init__(self, data):
        self.data = bytearray(data)

    def __reduce__(self):
        return nd.NDArray, (None,), {"handle": self.data}


def marked():
    """Return whether anything was executed."""
    return marked.calls


def call_me(*_):
    marked.calls += 1
    return 1.0


marked.calls = 0
CALL = Call(call_me)
GOOD = nd.ones((2, 3)).__getstate__()["handle"]
HUGE = GOOD[:12] + (2**40).to_bytes(8, "little") * 2 + GOOD[28:]


def nested(levels):
    value = nd.ones((1,))
    for _ in range(levels):
        value = (value, value)
    return value


def endless():
    value = []
    value.append(value)
    return value


FORGED = {
    "a call": CALL,
    "a call in a state": {0: CALL},
    "a call as a key": {CALL: None},
    "a call in the optimizer's place": ({0: None}, CALL),
    "a call as a setting": ({}, {"lr": CALL}),
    "eval": {0: Call(eval, "1")},
    "getattr": {0: Call(getattr, "text", "upper")},
    "a class with an effect": {0: Call(open, "/dev/null")},
    "numpy objects": {0: np.array([None, 1], object)},
    "numpy array": {0: np.ones(3, np.float32)},
    "numpy dtype": {0: np.dtype("f4")},
    "a set": {0: {1, 2}},
    "a complex number": {0: 1j},
    "text": "states",
    "text in a state": {0: "x"},
    "nothing": None,
    "three parts": ({}, None, None),
    "no optimizer": ({}, 3),
    "a schedule for an optimizer": ({}, mx.lr_scheduler.FactorScheduler(1)),
    "billion laughs": {0: nested(60)},
    "a list in itself": {0: endless()},
    "deep": {0: json.loads("[" * 400 + "]" * 400)},
    "huge number": {0: 10**5000},
    "huge key": {10**5000: nd.ones(1)},
    "bytes": {0: Handle(b"")},
    "short bytes": {0: Handle(GOOD[:30])},
    "long bytes": {0: Handle(bytes(GOOD) + b"1")},
    "huge sizes": {0: Handle(HUGE)},
    "negative sizes": {0: Handle(GOOD[:12] + b"\xff" * 16 + GOOD[28:])},
    "many dimensions": {0: Handle(GOOD[:8] + b"\xff\xff\xff\x7f" + GOOD[12:])},
    "minus dimensions": {0: Handle(GOOD[:8] + b"\xff\xff\xff\xff" + GOOD[12:])},
    "unknown dtype": {0: Handle(GOOD[:36] + b"\x0c\x00\x00\x00" + GOOD[40:])},
    "sparse": {0: nd.ones((2, 3)).tostype("row_sparse")},
    "unknown magic": {0: Handle(b"1234" + bytes(GOOD[4:]))},
}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("what", FORGED)
def test_forged_pickles_are_refused_and_nothing_is_executed(path, what, protocol):
    with open(path, "wb") as file:
        pickle.dump(FORGED[what], file, protocol)
    refuse(own(), path)
    assert marked() == 0


@pytest.mark.parametrize(
    "code",
    [
        b"", b".", b"N.", b"(", b"0.", b"1.", b"2.", b"a.", b"e.", b"u.", b"s.", b"b.", b"R.",
        b"\x81.", b"\x85.", b"\x86.", b"t.", b"\x94.", b"h\x00.", b"h\x07.", b"\x93.", b"NN.",
        b"(N.", b"cos\nsystem\n(S'true'\ntR.", b"(S'true'\nios\nsystem\n.",
        b"(cos\nsystem\nS'true'\no.", b"cos\nsystem\n)\x81.", b"Pid\n.", b"NQ.", b"\x82\x01.",
        b"I10\n.", b"L" + b"9" * 9999 + b"L\n.", b"cmxnet.ndarray.ndarray\nNDArray\n)\x81.",
        b"cmxnet.ndarray.ndarray\nNDArray\n)R.", b"cmxnet.ndarray.ndarray\nNDArray\nN\x85R}b.",
        b"cmxnet.ndarray.ndarray\nNDArray\n}b.",
        b"cmxnet.optimizer.optimizer\nOptimizer.create_optimizer\nU\x03sgd\x85R.",
        b"cmxnet.optimizer\ncreate\nX\x03\x00\x00\x00sgd\x85R.",
        b"cmxnet.optimizer.optimizer\nSGD\nX\x03\x00\x00\x00sgd\x85\x81.",
        b"cbuiltins\nbytearray\nK\x7f\x85R.", b"cbuiltins\nbytearray\n)R.",
        b"cnumpy\ndtype\nX\x01\x00\x00\x00O\x85R.", b"cnumpy.core.multiarray\nscalar\nNN\x86R.",
        b"X\xff\xff\xff\x7fabc.", b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
        b"\x8b\xff\xff\xff\x7f1.", b"}(NN\x94NNu.", b"}(N1NNu.", b"}(]Nu.", b"}(K\x00NK\x00Nu.",
        b"\xff\xff", b"\x80\x09N.",
    ],
    ids=itertools.count(),
)  # fmt: skip
def test_forged_opcodes_are_refused(path, code):
    with open(path, "wb") as file:
        file.write(b"\x80\x04" + code)
    # Opcodes of old protocols, of persistent objects and of registered extensions among them.
    refuse(own(), path, "is a pickle that stock MXNet's save_states did not write")


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_damaged_stock_files_are_refused_or_read(path, optimizer):
    """They have no checksum, so a wrong number can be read, but nothing else can happen."""
    schedule = mx.lr_scheduler.FactorScheduler(2)
    stock = train(stock_trainer(optimizer, lr_scheduler=schedule))
    stock.save_states(path)
    trainer = Trainer(parameters(), optimizer, loss_scale=None)
    with open(path, "rb") as file:
        data = file.read()
    random = np.random.RandomState(3)
    refused = 0
    for trial in range(300):
        wrong = bytearray(data)
        if trial % 2:
            wrong[random.randint(1, len(wrong))] = random.randint(256)
        else:
            del wrong[random.randint(1, len(wrong)) :]
        with open(path, "wb") as file:
            file.write(wrong)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                trainer.load_states(path)
        except ValueError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 180


def test_the_reader_gives_plain_data():
    stock = train(stock_trainer("adam", "float16"))
    content = pickle.dumps((stock._updaters[0].states, stock._optimizer), 3)
    found = stock_pickle.read(content)
    assert found.optimizer.class_name == "mxnet.optimizer.optimizer.Adam"
    assert found.optimizer.fields["beta2"] == 0.999
    assert found.optimizer.fields["_index_update_count"] == {0: 3, 1: 3, 2: 3}
    for mine, theirs in zip(leaves(found.states), leaves(stock._updaters[0].states)):
        np.testing.assert_array_equal(mine, theirs)
