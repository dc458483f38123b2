"""Damaged, forged and foreign files."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.checkpoint import load_checkpoint, save_checkpoint
from gluon_amp.checkpoint.contents import FILE
from gluon_amp.files import archive
from tests import forging
from tests.checkpoint.helpers import make_trainer, read, refused

from mxnet import autograd, nd
from mxnet.gluon import nn


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
    return read(path), path, net, trainer


def forge(path, data):
    with open(path, "wb") as file:
        file.write(data)


def test_truncated_and_damaged_files_are_refused(small):
    data, path, net, trainer = small
    for length in (0, 4, 60, 100, len(data) // 2, len(data) - 1):
        forge(path, data[:length])
        match = "truncated or damaged" if length >= 100 else "not written by|truncated"
        refused(match, path, net, trainer)
    for position in np.random.RandomState(0).randint(100, len(data), 8):
        bent = bytearray(data)
        bent[position] ^= 1 << (position % 8)
        forge(path, bent)
        refused("truncated or damaged", path, net, trainer)


@pytest.mark.slow
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
        ("parameters/0.weight", np.ones((2, 2), np.complex64)),
        ("parameters/0.weight", np.ones((2, 2), bool)),
        ("parameters/0.weight", np.array([["a", "b"], ["c", "d"]])),
        ("parameters/0.weight", np.float32(1)),
        ("parameters/0.weight", np.ones((2, 0), np.float32)),
        ("parameters/0.bias", None),
        ("trainer/6", np.ones(3, np.float32)),
        ("trainer/6", np.ones((2, 2), np.float64)),
        ("trainer/6", None),
    ],
)
def test_forged_arrays_are_refused(small, name, array):
    _, path, net, trainer = small
    header, arrays = archive.read(FILE, path)
    assert arrays.pop(name) is not None
    if array is not None:
        arrays[name] = np.asarray(array)
    forge(path, archive.encode(FILE, header, arrays))
    refused("", path, net, trainer)


def test_a_float64_weight_is_rounded(small):
    _, path, net, trainer = small
    header, arrays = archive.read(FILE, path)
    arrays["parameters/0.weight"] = np.ones((2, 2)) / 3
    forge(path, archive.encode(FILE, header, arrays))
    load_checkpoint(path, net, trainer)
    assert (trainer.master_params()[net[0].weight.name].asnumpy() == np.float32(1 / 3)).all()


def with_trained(header, names):
    return {**header, "trained": names}


def with_arrays(header, *keys):
    header["parameters"]["0.weight"]["arrays"] = list(keys)
    return header


@pytest.mark.parametrize(
    "edit, args, match",
    [
        (with_trained, [["0.weight"]], "the optimizer has states of parameters that are not tra"),
        (with_trained, [["0.weight", "0.weight"]], "trained parameters are not among the param"),
        (with_trained, [["0.weight", "x"]], "trained parameters are not among the parameters"),
        (with_arrays, ["parameters/0.weight", "parameters/0.bias"], "missing or different"),
        (with_arrays, [], "the arrays of 0.weight are missing or different"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(small, edit, args, match):
    data, path, net, trainer = small
    forge(path, forging.with_header(data, edit(forging.header_of(data), *args)))
    refused(match, path, net, trainer)


def test_foreign_files_are_refused(saved, tmp_path):
    _, net, trainer = saved
    path = str(tmp_path / "foreign")
    for write in (net.save_parameters, trainer.save_states):
        write(path)
        refused("was not written by amp.save_checkpoint", path, net, trainer)
    np.savez(path, a=np.ones(3))
    refused("was not written by amp.save_checkpoint", path + ".npz", net, trainer)


def test_a_later_version_is_refused(saved, tmp_path, monkeypatch):
    from gluon_amp.checkpoint import save

    _, net, trainer = saved
    monkeypatch.setattr(save, "FILE", FILE._replace(version=2))
    path = save_checkpoint(tmp_path / "later.ckpt", net, trainer)
    monkeypatch.undo()
    refused("has version 2 of the format, this gluon_amp reads 1", path, net, trainer)
