"""Damaged, forged and foreign files."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.checkpoint import load_checkpoint, save_checkpoint
from gluon_amp.checkpoint.contents import FILE
from gluon_amp.files import archive
from tests import forging
from tests.checkpoint.helpers import assert_same, content, make_trainer, refused

from mxnet import autograd, nd
from mxnet.gluon import nn


def test_truncated_files_are_refused_at_every_length(saved, tmp_path):
    path, net, trainer = saved
    with open(path, "rb") as file:
        data = file.read()
    before = content(net, trainer)
    cut = tmp_path / "cut.ckpt"
    lengths = [0, 1, 4, 30, 60, *range(100, len(data), len(data) // 40), len(data) - 1]
    for length in lengths:
        cut.write_bytes(data[:length])
        expected = "truncated or damaged" if length >= 100 else "not written by|truncated"
        with pytest.raises(ValueError, match=expected):
            load_checkpoint(cut, net, trainer)
    assert_same(content(net, trainer), before)


def test_one_wrong_bit_anywhere_is_refused(saved, tmp_path):
    path, net, trainer = saved
    with open(path, "rb") as file:
        data = file.read()
    before = content(net, trainer)
    bent = tmp_path / "bent.ckpt"
    for position in np.random.RandomState(0).randint(100, len(data), 60):
        wrong = bytearray(data)
        wrong[position] ^= 1 << (position % 8)
        bent.write_bytes(wrong)
        with pytest.raises(ValueError, match="truncated or damaged"):
            load_checkpoint(bent, net, trainer)
    assert_same(content(net, trainer), before)


@pytest.fixture
def small(tmp_path):
    """A checkpoint's bytes and path, its net, and its trainer."""
    net = nn.HybridSequential()
    net.add(nn.Dense(2, in_units=2), nn.BatchNorm(in_channels=2))
    net.initialize()
    trainer = make_trainer(amp.cast(net, "float16"))
    with autograd.record():
        loss = net(nd.ones((2, 2))).sum()
    trainer.backward(loss)
    trainer.step(1)
    path = save_checkpoint(tmp_path / "net.ckpt", net, trainer, epoch=3, order=np.arange(3))
    with open(path, "rb") as file:
        return file.read(), path, net, trainer


def forge(path, data):
    with open(path, "wb") as file:
        file.write(data)


def test_many_forged_headers_are_refused_or_right(small):
    """Anybody can compute a digest, so the contents of the header are checked, too."""
    data, path, net, trainer = small

    def state():  # one array of the net and one of the optimizer stand for all
        states = trainer.updaters[0].states  # a header may leave out those of a weight
        arrays = net[0].weight.data(), *(states[0][1:2] if 0 in states else ())
        counts = trainer.optimizer._index_update_count, trainer.loss_scale.state_dict()
        return [array.asnumpy().tolist() for array in arrays], repr(counts)

    refusals = 0
    for header in forging.mutations(forging.header_of(data), np.random.RandomState(2), 250):
        net[0].weight.set_data(nd.full((2, 2), 7))  # so that a load is visible
        trainer.optimizer._index_update_count[0] = 9
        before = state()
        forge(path, forging.with_header(data, header))
        try:
            extra = load_checkpoint(path, net, trainer)
        except ValueError as error:
            refusals += 1
            assert "\n" not in str(error)
            assert len(str(error)) < 6000
            assert state() == before
        else:
            assert isinstance(extra, dict)
    assert 150 < refusals < 250


@pytest.mark.parametrize(
    "name, array",
    [
        ("parameters/0.weight", np.ones((2, 3), np.float32)),
        ("parameters/0.weight", np.ones((2, 2), np.float64)),
        ("parameters/0.weight", np.ones((2, 2), np.complex64)),
        ("parameters/0.weight", np.ones((2, 2), bool)),
        ("parameters/0.weight", np.array([["a", "b"], ["c", "d"]])),
        ("parameters/0.weight", np.float32(1)),
        ("parameters/0.weight", np.ones((2, 0), np.float32)),
        ("parameters/0.bias", None),
        ("parameters/1.running_mean", np.ones((2, 1), np.float32)),
        ("trainer/6", np.ones(3, np.float32)),
        ("trainer/6", np.ones((2, 2), np.float64)),
        ("trainer/6", np.array(["a"])),
        ("trainer/6", None),
    ],
)
def test_forged_arrays_are_refused(small, name, array):
    _, path, net, trainer = small
    header, arrays = archive.read(FILE, path)
    assert name in arrays
    if array is None:
        del arrays[name]
    else:
        arrays[name] = np.asarray(array)
    forge(path, archive.encode(FILE, header, arrays))
    if name == "parameters/0.weight" and getattr(array, "dtype", None) == np.float64:
        load_checkpoint(path, net, trainer)  # a float64 weight is rounded
        assert (net[0].weight.data().asnumpy() == 1).all()
    else:
        refused("", path, net, trainer)


def test_a_header_that_contradicts_itself(small):
    data, path, net, trainer = small
    forge(path, forging.with_header(data, {**forging.header_of(data), "trained": ["0.weight"]}))
    refused("the optimizer has states of parameters that are not trained", path, net, trainer)
    header = forging.header_of(data)
    header["parameters"]["0.weight"]["arrays"] *= 2
    header["parameters"]["0.weight"]["arrays"][1] = "parameters/0.bias"
    forge(path, forging.with_header(data, header))
    refused("the arrays of 0.weight are missing or different", path, net, trainer)


def test_foreign_files_are_refused(saved, tmp_path):
    _, net, trainer = saved
    path = str(tmp_path / "foreign")
    net.save_parameters(path)
    refused("was not written by amp.save_checkpoint", path, net, trainer)
    trainer.save_states(path)
    refused("was not written by amp.save_checkpoint", path, net, trainer)
    np.savez(path, a=np.ones(3))
    refused("was not written by amp.save_checkpoint", path + ".npz", net, trainer)
    with open(path, "w") as file:
        file.write("hello")
    refused("was not written by amp.save_checkpoint", path, net, trainer)


def test_a_later_version_is_refused(saved, tmp_path, monkeypatch):
    from gluon_amp.checkpoint import save

    _, net, trainer = saved
    monkeypatch.setattr(save, "FILE", FILE._replace(version=2))
    path = save_checkpoint(tmp_path / "later.ckpt", net, trainer)
    monkeypatch.undo()
    refused("has version 2 of the format, this gluon_amp reads 1", path, net, trainer)
