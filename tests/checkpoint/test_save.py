"""The file that `save_checkpoint` writes."""

import hashlib
import json
import os

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.checkpoint import load_checkpoint, save_checkpoint
from gluon_amp.checkpoint.contents import FILE
from tests.checkpoint.helpers import make_net, make_trainer

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import nn


def test_it_is_a_numpy_archive_with_a_readable_header(saved):
    path, net, trainer = saved
    archive = np.load(path)  # allow_pickle is False by default
    header = json.loads(archive[FILE.header])
    assert (header["format"], header["version"]) == ("gluon_amp checkpoint", 1)
    assert header["policies"] == {"": {"dtypes": ["float16", "float16", "float32"], "pins": []}}
    assert sorted(header["trained"]) == sorted(header["parameters"])
    assert header["parameters"]["0.weight"]["dtype"] == "float16"
    master = archive["parameters/0.weight"]
    assert master.dtype == np.float32
    assert np.array_equal(master, trainer.master_params()[net[0].weight.name].asnumpy())
    assert np.array_equal(master.astype(np.float16), net[0].weight.data().asnumpy())


def test_the_same_state_gives_the_same_bytes(saved, tmp_path):
    path, net, trainer = saved
    again = save_checkpoint(tmp_path / "again.ckpt", net, trainer, epoch=3)
    with open(path, "rb") as one, open(again, "rb") as other:
        assert one.read() == other.read()


def test_the_last_64_bytes_are_the_sha256_of_the_others(saved):
    with open(saved[0], "rb") as file:
        data = file.read()
    assert data[-64:].decode() == hashlib.sha256(data[:-64]).hexdigest()


def test_masters_are_not_saved_twice(tmp_path):
    net = nn.Dense(1000, in_units=1000, use_bias=False)
    net.initialize()
    trainer = make_trainer(amp.cast(net, "float16"), "sgd")
    with autograd.record():
        loss = net(nd.ones((2, 1000))).sum()
    trainer.backward(loss)
    trainer.step(1)
    path = save_checkpoint(tmp_path / "net.ckpt", net, trainer)
    assert 8.0e6 < os.path.getsize(path) < 8.1e6  # master and momentum, 4 bytes each


EXTRA = {
    "epoch": 7,
    "best": 0.1,
    "nothing": None,
    "flag": True,
    "name": "résumé",
    "history": [1.5, float("inf"), (2, "x")],
    "by_step": {3: "c", (1, 2): [None], "k": {}},
    "array": np.arange(6, dtype=np.int16).reshape(2, 3),
    "fortran": np.asfortranarray([[1.0, 2.0], [3.0, 4.0]]),
    "empty": np.zeros((0, 3)),
    "zero_dimensional": np.array(2.5, np.float16),
    "half": np.float16(1.5),
    "names": np.array(["a", "bc"]),
    "nested": [{"deep": np.array([True])}],
}


def test_extra_comes_back_as_it_was(saved, tmp_path):
    _, net, trainer = saved
    path = save_checkpoint(tmp_path / "extra.ckpt", net, trainer, **EXTRA)
    extra = load_checkpoint(path, net, trainer)

    def assert_equal(a, b):
        assert type(a) is type(b)
        if isinstance(a, dict):
            assert list(a) == list(b)
            for key in a:
                assert_equal(a[key], b[key])
        elif isinstance(a, (list, tuple)):
            assert len(a) == len(b)
            for x, y in zip(a, b):
                assert_equal(x, y)
        elif isinstance(a, np.ndarray):
            assert a.dtype == b.dtype
            assert a.shape == b.shape
            assert np.array_equal(a, b)
        else:
            assert a == b

    assert_equal(extra, EXTRA)


def test_random_states_fit_into_extra(saved, tmp_path):
    import random

    _, net, trainer = saved
    state, numpy_state = random.getstate(), np.random.get_state()
    path = save_checkpoint(tmp_path / "r.ckpt", net, trainer, python=state, numpy=numpy_state)
    numbers = random.random(), np.random.rand()
    extra = load_checkpoint(path, net, trainer)
    random.setstate(extra["python"])
    np.random.set_state(extra["numpy"])
    assert (random.random(), np.random.rand()) == numbers


@pytest.mark.parametrize(
    "value, where",
    [
        ({1, 2}, r"extra\['thing'\] is a builtins.set"),
        ([1, {"k": object()}], r"extra\['thing'\]\[1\]\['k'\] is a builtins.object"),
        (np.array([None]), r"extra\['thing'\] is a numpy.ndarray"),
        (lambda: 0, "function"),
        (mx.nd.ones(2), r"call .asnumpy\(\) on it"),
    ],
)
def test_what_cannot_be_saved_is_refused_and_the_old_file_stays(saved, value, where):
    path, net, trainer = saved
    with open(path, "rb") as file:
        before = file.read()
    with pytest.raises(TypeError, match=where):
        save_checkpoint(path, net, trainer, thing=value)
    with open(path, "rb") as file:
        assert file.read() == before


def test_a_net_without_values_is_refused(tmp_path):
    net = make_net()
    with pytest.raises(ValueError, match=r"0.weight, 1.gamma, 1.beta and 3 more have no values"):
        save_checkpoint(tmp_path / "net.ckpt", net, make_trainer(net))
    assert os.listdir(tmp_path) == []


def test_a_net_that_does_not_hold_the_trainers_parameters_is_refused(saved):
    path, net, trainer = saved
    for call in (save_checkpoint, load_checkpoint):
        with pytest.raises(ValueError, match=r"The trainer updates .*conv.*_weight.* not in this"):
            call(path, net[1], trainer)


def test_a_missing_folder_or_file_is_named(saved, tmp_path):
    _, net, trainer = saved
    with pytest.raises(FileNotFoundError, match="There is no folder .*nowhere"):
        save_checkpoint(tmp_path / "nowhere" / "net.ckpt", net, trainer)
    with pytest.raises(FileNotFoundError, match=r"other\.ckpt"):
        load_checkpoint(tmp_path / "other.ckpt", net, trainer)
    with pytest.raises(FileNotFoundError, match="none has been saved yet"):
        load_checkpoint(tmp_path / "other-{step}.ckpt", net, trainer)
