"""Damaged, forged and foreign files."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.checkpoint import save_checkpoint
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


@pytest.mark.parametrize(
    "name, array",
    [
        ("parameters/0.weight", np.ones((2, 3), np.float32)),
        ("parameters/0.weight", np.array([["a", "b"], ["c", "d"]])),
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


def field(header, *keys):
    """Return a part of a header; that of the trainer is packed as pairs of keys and values."""
    for key in keys:
        header = dict(header["dict"])[key] if "dict" in header and key != "dict" else header[key]
    return header


@pytest.mark.parametrize(
    "edit, match",
    [
        (lambda h: h["trained"].pop(), "states of parameters that are not trained"),
        (lambda h: h["trained"].append("0.bias"), "trained parameters are not among the"),
        (lambda h: h["trained"].append("x"), "trained parameters are not among the"),
        (lambda h: h["trained"].append(3), "is 3 and not a name"),
        (lambda h: field(h, "parameters", "0.weight", "arrays").clear(), "0.weight are missing"),
        (
            lambda h: field(h, "parameters", "0.weight", "arrays").append("parameters/0.bias"),
            "diff",
        ),
        (lambda h: field(h, "policies", "")["pins"].append([["x"], "y", "z"]), "not a pin"),
        (
            lambda h: field(h, "trainer", "counts", "dict")[0].__setitem__(1, -1),
            "is -1 and not a wh",
        ),
        (lambda h: h["trainer"]["dict"].pop(), "the trainer"),
        (lambda h: h.update(extra=[1]), "extra"),
    ],
)
def test_a_header_that_is_malformed_or_contradicts_itself_is_refused(small, edit, match):
    data, path, net, trainer = small
    header = forging.header_of(data)
    edit(header)
    forge(path, forging.with_header(data, header))
    refused(match, path, net, trainer)


def test_foreign_files_are_refused(saved, tmp_path):
    _, net, trainer = saved
    path = str(tmp_path / "foreign")
    for write in (net.save_parameters, trainer.save_states):
        write(path)
        refused("was not written by amp.save_checkpoint", path, net, trainer)
    np.savez(path, a=np.ones(3))
    refused("was not written by amp.save_checkpoint", path + ".npz", net, trainer)
