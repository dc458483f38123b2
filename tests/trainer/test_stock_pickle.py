"""Pickles that stock MXNet did not write: nothing in them is executed."""

import pickle
import warnings

import numpy as np
import pytest

from gluon_amp import Trainer
from gluon_amp.trainer import stock_states
from tests.trainer.state_helpers import leaves, own, parameters, refuse, stock_trainer, train

import mxnet as mx
from mxnet import nd


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


def test_the_reader_returns_plain_data():
    stock = train(stock_trainer("adam", "float16"))
    content = pickle.dumps((stock._updaters[0].states, stock.optimizer), 5)
    read = stock_states.read_pickle(content)
    assert str(read.optimizer.kind) == "mxnet.optimizer.optimizer.Adam"
    assert read.optimizer.fields["beta2"] == 0.999
    assert read.optimizer.fields["_index_update_count"] == {0: 3, 1: 3, 2: 3}
    for mine, theirs in zip(leaves(read.states), leaves(stock._updaters[0].states)):
        np.testing.assert_array_equal(mine, theirs)
