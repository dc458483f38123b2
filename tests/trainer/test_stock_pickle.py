"""Pickles that stock MXNet did not write: nothing in them is executed."""

import itertools
import json
import pickle
import warnings

import numpy as np
import pytest

from gluon_amp import Trainer
from gluon_amp.trainer import stock_pickle
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


FORGED_CODES = [
    b"",
    b".",
    b"N.",
    b"(",
    b"0.",
    b"1.",
    b"2.",
    b"a.",
    b"e.",
    b"u.",
    b"s.",
    b"b.",
    b"R.",
    b"\x81.",
    b"\x85.",
    b"\x86.",
    b"t.",
    b"\x94.",
    b"h\x00.",
    b"h\x07.",
    b"\x93.",
    b"NN.",
    b"(N.",
    b"cos\nsystem\n(S'true'\ntR.",
    b"(S'true'\nios\nsystem\n.",
    b"(cos\nsystem\nS'true'\no.",
    b"cos\nsystem\n)\x81.",
    b"Pid\n.",
    b"NQ.",
    b"\x82\x01.",
    b"I10\n.",
    b"L" + b"9" * 9999 + b"L\n.",
    b"cmxnet.ndarray.ndarray\nNDArray\n)\x81.",
    b"cmxnet.ndarray.ndarray\nNDArray\n)R.",
    b"cmxnet.ndarray.ndarray\nNDArray\nN\x85R}b.",
    b"cmxnet.ndarray.ndarray\nNDArray\n}b.",
    b"cmxnet.optimizer.optimizer\nOptimizer.create_optimizer\nU\x03sgd\x85R.",
    b"cmxnet.optimizer\ncreate\nX\x03\x00\x00\x00sgd\x85R.",
    b"cmxnet.optimizer.optimizer\nSGD\nX\x03\x00\x00\x00sgd\x85\x81.",
    b"cbuiltins\nbytearray\nK\x7f\x85R.",
    b"cbuiltins\nbytearray\n)R.",
    b"cnumpy\ndtype\nX\x01\x00\x00\x00O\x85R.",
    b"cnumpy.core.multiarray\nscalar\nNN\x86R.",
    b"X\xff\xff\xff\x7fabc.",
    b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
    b"\x8b\xff\xff\xff\x7f1.",
    b"}(NN\x94NNu.",
    b"}(N1NNu.",
    b"}(]Nu.",
    b"}(K\x00NK\x00Nu.",
    b"\xff\xff",
    b"\x80\x09N.",
]


@pytest.mark.parametrize("code", FORGED_CODES, ids=itertools.count())
def test_forged_opcodes_are_refused(path, code):
    with open(path, "wb") as file:
        file.write(b"\x80\x04" + code)
    # Some opcodes are of old protocols, persistent objects or registered extensions.
    refuse(own(), path, "is a pickle that stock MXNet's save_states did not write")


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_damaged_stock_files_are_refused_or_read(path, optimizer):
    """They have no checksum: a wrong number can be read, and nothing worse."""
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


def test_the_reader_returns_plain_data():
    stock = train(stock_trainer("adam", "float16"))
    content = pickle.dumps((stock._updaters[0].states, stock.optimizer), 3)
    read = stock_pickle.read(content)
    assert read.optimizer.class_name == "mxnet.optimizer.optimizer.Adam"
    assert read.optimizer.fields["beta2"] == 0.999
    assert read.optimizer.fields["_index_update_count"] == {0: 3, 1: 3, 2: 3}
    for mine, theirs in zip(leaves(read.states), leaves(stock._updaters[0].states)):
        np.testing.assert_array_equal(mine, theirs)
