"""Files of stock MXNet, from which training continues; and forged ones, which execute nothing."""

import collections
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest

from gluon_amp import Trainer
from gluon_amp.trainer import stock_states
from tests.documents.test_documents import blocks, text_of
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


def continued(stock, path, optimizer, dtype="float32", contexts=None, **settings):
    """Save a stock trainer, and return one of gluon_amp that continues from its file."""
    stock.save_states(path)
    params = parameters(dtype, contexts)
    for mine, theirs in zip(params, stock._params):
        mine.set_data(theirs.list_data()[0])
    trainer = Trainer(params, optimizer, settings, loss_scale=None)
    trainer.load_states(path)
    return trainer


def states_of(trainer):
    return leaves(trainer._updaters[0].states)


def train_both(trainer, stock, rtol):
    """Train both, and assert that their weights stay the same."""
    for one in (stock, trainer):
        mx.random.seed(1)  # SGLD adds noise
        train(one)
    for mine, theirs in zip(weights(trainer), weights(stock)):
        np.testing.assert_allclose(mine, theirs, rtol=rtol)


# MXNet's LARS fails on a CPU in float16: its norm has no kernel.
STOCK = [
    ("lars", "float32", {"momentum": 0.9}),
    ("sgd", "float32", {"momentum": 0.9, "wd": 0.01}),
    ("sgd", "float16", {"momentum": 0.9, "wd": 0.01}),
    ("nag", "float16", {"momentum": 0.9}),
    *((name, "float16", {}) for name in ("adam", "lamb", "adagrad", "ftml", "nadam", "signum")),
    *((name, "float16", {}) for name in ("sgld", "dcasgd")),
    ("rmsprop", "float16", {"centered": True}),
]
OURS = [
    *(("sgd", "float16", settings) for settings in ({}, {"momentum": 0.9})),
    *((name, "float32", {"momentum": 0.9}) for name in ("sgd", "lars")),
    *((name, "float16", {}) for name in ("adam", "lamb")),
]


@pytest.mark.parametrize("ours, case", [(False, c) for c in STOCK] + [(True, c) for c in OURS])
def test_training_continues_with_mxnets_own_optimizer_bit_for_bit_and_with_ours(path, ours, case):
    optimizer, dtype, settings = case
    stock = train(stock_trainer(optimizer, dtype, **settings))
    settings = {"learning_rate": 2.0**-6, **settings}
    if not ours:
        optimizer = type(stock.optimizer)(multi_precision=dtype == "float16", **settings)
        settings = {}
    trainer = continued(stock, path, optimizer, dtype, **settings)

    def arrays(trainer):
        """Return the arrays of the states, with the masters, in any order."""
        return collections.Counter(array.tobytes() for array in states_of(trainer))

    assert arrays(trainer) == arrays(stock)
    assert trainer.state_dict()["counts"] == {0: 3, 1: 3, 2: 3}
    train_both(trainer, stock, rtol=0 if not ours else 2e-3 if dtype == "float16" else 2e-6)
    assert ours or arrays(trainer) == arrays(stock)


@pytest.mark.parametrize("before, after", [("float32", "float16"), ("float16", "float32")])
def test_training_continues_in_another_dtype(path, before, after):
    stock = train(stock_trainer("adam", before))
    train_both(continued(stock, path, "adam", after, learning_rate=2.0**-6), stock, rtol=2e-3)


@pytest.mark.filterwarnings("ignore:Accumulating with float16")
def test_float16_states_without_masters(path):
    stock = train(gluon.Trainer(parameters("float16"), "sgd", {"momentum": 0.5}))
    assert states_of(stock)[0].dtype == np.float16
    trainer = continued(stock, path, "sgd", "float16", momentum=0.5)
    loaded = trainer.state_dict()["states"].values()
    for (_, (momentum,)), theirs in zip(loaded, states_of(stock)):
        assert momentum.dtype == np.float32
        np.testing.assert_array_equal(momentum, theirs)


def test_a_schedule_of_the_learning_rate(path):
    def settings(rate):
        schedule = mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=rate)
        return {"lr_scheduler": schedule, "learning_rate": rate}

    stock = train(gluon.Trainer(parameters(), "sgd", settings(0.25)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = continued(stock, path, "sgd", **settings(0.5))  # the file's schedule counts
    # Without a schedule the warning is about that, and not about its present rate.
    with pytest.warns(UserWarning, match="lr_scheduler='FactorScheduler'; this") as caught:
        continued(stock, path, "sgd", learning_rate=0.5)
    assert len(caught) == 1
    train_both(trainer, stock, rtol=1e-6)
    assert trainer.learning_rate == stock.learning_rate == 0.25 / 4


def test_a_rate_of_numpy_and_a_setting_that_differs(path):
    stock = train(gluon.Trainer(parameters(), "sgd", {"learning_rate": np.float64(0.125)}))
    with pytest.warns(UserWarning, match=r"had lr=0\.125; this trainer keeps its 0\.5") as caught:
        continued(stock, path, "sgd", learning_rate=0.5)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_parameters_that_had_no_update_yet(path):
    stock = train(stock_trainer("sgd", momentum=0.9))
    del stock._updaters[0].states[1]  # as if the parameter had always been frozen
    trainer = continued(stock, path, "sgd", momentum=0.9, learning_rate=2.0**-6)
    assert sorted(trainer.state_dict()["states"]) == [0, 2]


@pytest.mark.parametrize("settings", [{}, {"update_on_kvstore": True}])
def test_several_devices(path, settings):
    contexts = [mx.cpu(0), mx.cpu(1)]
    stock = gluon.Trainer(parameters(contexts=contexts), "adam", {}, kvstore="local", **settings)
    trainer = continued(train(stock), path, "adam", contexts=contexts)
    train_both(trainer, stock, rtol=1e-5)
    assert trainer.state_dict()["counts"] == {0: 6, 1: 6, 2: 6}


def layers(kind, **settings):
    """Return a trainer of parameters that stock MXNet sorts as text: layer10 before layer9."""
    params = gluon.ParameterDict()
    for number in (9, 10):
        params.get(f"layer{number}", shape=(1,)).initialize(mx.init.Constant(number))
    return kind(params, "sgd", {"momentum": 0.9}, **settings)


def test_parameters_in_the_order_of_stock_mxnet_and_in_natural_order(path):
    stock, trainer = train(layers(gluon.Trainer)), layers(Trainer, loss_scale=None)
    assert [p.name for p in stock._params] == ["layer10", "layer9"]
    stock.save_states(path)
    trainer.load_states(path)
    ten, nine = (state.asscalar() for state in stock._updaters[0].states.values())
    loaded = trainer.state_dict()["states"]
    assert loaded[0][1][0] == nine != ten == loaded[1][1][0]
    # Without the optimizer it is the order of the trainer itself.
    resumed = layers(Trainer, loss_scale=None)
    with open(path, "wb") as file:
        file.write(train(trainer)._updaters[0].get_states(dump_optimizer=False))
    resumed.load_states(path)
    assert states_of(resumed) == states_of(trainer)


def test_a_file_of_arrays_of_mx_np(path):
    """They have a version of their own in a file, in which an array may have no dimensions."""
    with mx.util.np_shape(True), mx.util.np_array(True):
        stock = train(stock_trainer("adam", "float16"))
        stock.save_states(path)
        scalar = mx.np.ones(()).__getstate__()["handle"]
    assert stock_states.ndarray(bytes(scalar)) == 1
    params = parameters("float16")
    for param, value in zip(params, weights(stock)):
        param.set_data(nd.array(value, dtype="float16"))
    trainer = Trainer(params, "adam", {"learning_rate": 2.0**-6}, loss_scale=None)
    trainer.load_states(path)
    for mine, theirs in zip(states_of(trainer), states_of(stock)):
        np.testing.assert_array_equal(mine, theirs)


def test_an_optimizer_of_gluon_amp_in_a_stock_trainer(path):
    stock = train(stock_trainer("amp_sgd", "float16", momentum=0.5))
    trainer = continued(stock, path, "sgd", "float16", momentum=0.5, learning_rate=2.0**-6)
    train_both(trainer, stock, rtol=0)


@pytest.mark.parametrize(
    "make, optimizer, settings, dtype, rtol",
    [
        (stock_trainer, "sgd", {}, "float16", 2e-3),
        (stock_trainer, "sgd", {"momentum": 0.5}, "float16", 2e-3),
        (stock_trainer, "adam", {}, "float32", 2e-6),
        (own, "sgd", {"momentum": 0.5}, "float16", 0),
        (own, "sgd", {"momentum": 0.5}, "float32", 0),
        (own, "adam", {}, "float16", 0),
    ],
)
def test_states_without_their_optimizer(path, make, optimizer, settings, dtype, rtol):
    """Sockeye pickles them so, and sets the update counter itself."""
    settings = {"learning_rate": 2.0**-6, **settings}
    trainer = train(make(optimizer, dtype, **settings))
    with open(path, "wb") as file:
        file.write(trainer._updaters[0].get_states(dump_optimizer=False))
    resumed = Trainer(parameters(dtype), optimizer, settings, loss_scale=16)
    for mine, theirs in zip(resumed._params, trainer._params):
        mine.set_data(theirs.data())
    resumed.load_states(path)
    resumed.optimizer.begin_num_update = resumed.optimizer.num_update = 3
    train_both(resumed, trainer, rtol)


def test_states_of_something_else(path):
    train(stock_trainer("sgd", momentum=0.9)).save_states(path)
    named = r"state of the optimizer mxnet\..*\.SGD, and this trainer has gluon_amp.*Adam"
    refuse(Trainer(parameters(), "adam"), path, named)
    without = "another kind of optimizer state for a .*momentum=0.9 and not 0.0"
    refuse(Trainer(parameters(), "sgd"), path, without)
    momentum = {"momentum": 0.9}
    refuse(Trainer(parameters()[:2], "sgd", momentum), path, "of other parameters than")
    other = parameters(names="ab")[::-1] + parameters(names="xyz")[2:]
    refuse(Trainer(other, "sgd", momentum), path, "another kind of optimizer state for b")


def test_states_by_the_names_of_parameters(path):
    """As of a Module whose kvstore made the updates."""
    stock = train(stock_trainer("sgd", momentum=0.9))
    states = {p.name: stock._updaters[0].states[k] for k, p in enumerate(stock._params)}
    Path(path).write_bytes(pickle.dumps(states))
    trainer = Trainer(parameters(), "sgd", {"momentum": 0.9}, loss_scale=None)
    trainer.load_states(path)
    for mine, theirs in zip(states_of(trainer), states_of(stock)):
        np.testing.assert_array_equal(mine, theirs)


def test_stock_mxnet_continues_with_the_file_of_the_guide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = {}
    for snippet in blocks(text_of("docs/guide/checkpoint_and_resume.md"), "python"):
        exec(snippet, page)
    net, stock, found = page["net"], page["stock"], []
    before = {name: param.data().copy() for name, param in net.collect_params().items()}
    trainer = Trainer(net.collect_params(), "adam", {"learning_rate": 0.01}, loss_scale="dynamic")
    trainer.load_state_dict(page["saved"])
    for one in (stock, trainer):
        for name, param in net.collect_params().items():
            param.set_data(before[name])
        for _ in range(3):
            with mx.autograd.record():
                loss = gluon.loss.L2Loss()(net(page["data"]), page["label"])
            loss.backward() if one is stock else one.backward(loss)
            one.step(8)
        found.append(net.weight.data().asnumpy())
    np.testing.assert_allclose(*found, rtol=1e-5)


# ------------------------------------------------------------------------------ pickles


class Call:
    """Pickles as a call of another function than its class."""

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


def call_me(*_):
    call_me.calls += 1
    return 1.0


call_me.calls = 0
CALL = Call(call_me)
GOOD = nd.ones((2, 3)).__getstate__()["handle"]


def nested(levels):
    value = nd.ones((1,))
    for _ in range(levels):
        value = (value, value)
    return value


def endless():
    value = []
    value.append(value)
    return value


def handle(*pieces):
    """Return states with one NDArray of these bytes."""
    return {0: Handle(b"".join(map(bytes, pieces)))}


FORGED = [
    ({0: CALL}, "it names '.*call_me'"),
    (({0: None}, CALL), "it names '.*call_me'"),
    ({0: Call(getattr, "text", "upper")}, "it names 'builtins.getattr'"),
    ({0: np.array([None, 1], object)}, "it names 'numpy.*_reconstruct'"),
    ({0: np.dtype("O")}, "it calls numpy.dtype in an unknown way"),
    ({0: "x"}, "a state is 'x'"),
    (None, "it holds no dict of states"),
    (({}, None, None), "it holds no dict of states"),
    (({}, mx.lr_scheduler.FactorScheduler(1)), "the second part is not an optimizer"),
    ({0: nested(60)}, "it holds more values than bytes"),
    ({0: endless()}, "it holds more values than bytes"),
    ({10**5000: nd.ones(1)}, "of other parameters"),
    (handle(GOOD[:30]), "an NDArray is truncated"),
    (handle(GOOD, b"1"), "the size of an NDArray is not"),
    (handle(GOOD[:12], (2**40).to_bytes(8, "little") * 2, GOOD[28:]), "the size of an NDArray"),
    (handle(GOOD[:12], b"\xff" * 16, GOOD[28:]), "the size of an NDArray is not"),
    (handle(GOOD[:8], b"\x21\x00\x00\x00", bytes(300)), "an NDArray has 33 dimensions"),
    (handle(GOOD[:8], b"\xff" * 4, GOOD[12:]), "an NDArray has -1 dimensions"),
    (handle(GOOD[:8], bytes(4), GOOD[28:44]), "an NDArray has 0 dimensions"),  # None in mx.nd
    (handle(GOOD[:36], b"\x0c\x00\x00\x00", GOOD[40:]), "an NDArray has the unknown dtype 12"),
    ({0: nd.ones((2, 3)).tostype("row_sparse")}, "it names|sparse or of an unknown"),
    (handle(b"1234", GOOD[4:]), "sparse or of an unknown version"),
]


@pytest.mark.parametrize("content, reason", FORGED, ids=range(len(FORGED)))
def test_forged_pickles_are_refused_and_nothing_is_executed(path, content, reason):
    with open(path, "wb") as file:
        pickle.dump(content, file)
    refuse(own(), path, reason)
    assert call_me.calls == 0


NDARRAY = b"cmxnet.ndarray.ndarray\nNDArray\n"
SGD = b"cmxnet.optimizer.optimizer\nSGD\n"
SCALAR = b"cnumpy.core.multiarray\nscalar\n"
FORGED_CODES = [
    NDARRAY + b")R",
    NDARRAY + b"N\x85R}b",
    NDARRAY + b"}b",
    NDARRAY + b"N\x85R}X\x06\x00\x00\x00handleX\x01\x00\x00\x00xsb",
    SGD + b"X\x03\x00\x00\x00sgd\x85\x81",
    SGD + b")\x81]b",
    b"cmxnet.optimizer.optimizer\nOptimizer.create_optimizer\nX\x03\x00\x00\x00sgd\x85R",
    b"cmxnet.optimizer\ncreate\nX\x03\x00\x00\x00sgd\x85R",
    b"cno.such.module\nSGD\n)\x81",
    b"cbuiltins\nbytearray\nK\x7f\x85R",
    b"cbuiltins\nbytearray\n)R",
    b"cnumpy\ndtype\nX\x01\x00\x00\x00O\x85R",
    b"cnumpy\ndtype\nX\x02\x00\x00\x00f8\x85R(K\x03X\x01\x00\x00\x00>tb",  # big-endian
    SCALAR + b"NN\x86R",
    SCALAR + b"cnumpy\ndtype\nX\x02\x00\x00\x00f8\x85RC\x07aaaaaaa\x86R",
    b"\x82\x01",
    b"}K\x00" + b"]" * 2000 + b"a" * 1999 + b"s",  # deep
]


def test_forged_opcodes_are_refused(path):
    trainer = own()
    for code in FORGED_CODES:
        with open(path, "wb") as file:
            file.write(b"\x80\x04" + code + b".")
        refuse(trainer, path, "is a pickle that stock MXNet's save_states did not write")


def test_the_same_bytes_in_many_arrays_take_no_memory():
    """A copy for each of a few opcodes would be gigabytes."""
    arrays = [Handle(b"") for _ in range(1000)]
    for array in arrays:
        array.data = arrays[0].data
    arrays[0].data += nd.ones((10**5,)).__getstate__()["handle"]
    with pytest.raises(ValueError, match="it holds the same bytes in several arrays"):
        stock_states.read_pickle(pickle.dumps({0: arrays}))
    assert stock_states.read_pickle(pickle.dumps({0: arrays[0]})).states[0].shape == (10**5,)


def test_damaged_stock_files_are_refused_or_read(path):
    """They have no checksum: a wrong number can be read, and nothing worse."""
    schedule = mx.lr_scheduler.FactorScheduler(2)
    stock = train(stock_trainer("adam", lr_scheduler=schedule))
    stock.save_states(path)
    trainer = Trainer(parameters(), "adam", loss_scale=None)
    with open(path, "rb") as file:
        data = file.read()
    random = np.random.RandomState(3)
    refused = 0
    for trial in range(150):
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
    assert refused > 90
