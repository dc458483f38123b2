"""Forged and foreign files: anybody can compute a digest, so the contents are checked, too."""

from pathlib import Path

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.checkpoint import load_checkpoint, save_checkpoint
from gluon_amp.checkpoint.contents import FILE, policies_of
from gluon_amp.files import archive
from tests import forging
from tests.checkpoint.helpers import made, read, refused

from mxnet.gluon import nn


@pytest.mark.parametrize(
    "kind, edit",
    [
        ("parameters/0.weight", lambda array: array[:1]),
        ("parameters/0.weight", lambda array: array.astype(str)),
        ("parameters/0.weight", lambda array: array.astype(np.complex64)),
        ("parameters/0.bias", None),
        ("trainer/", lambda array: array[:1]),
        ("trainer/", lambda array: array.astype(np.float64)),
        ("trainer/", None),
    ],
)
def test_forged_arrays_are_refused(saved, kind, edit):
    path, net, trainer = saved
    header, arrays = archive.read(FILE, path)
    name = next(name for name in arrays if name.startswith(kind))
    array = arrays.pop(name)
    if edit is not None:
        arrays[name] = edit(array)
    Path(path).write_bytes(archive.encode(FILE, header, arrays))
    refused("", path, net, trainer)


AVERAGE = "averages/0/0.weight"


@pytest.mark.parametrize(
    "edit, match",
    [
        (lambda h, a: a.update({AVERAGE: a[AVERAGE][:1]}), "average of 0.weight has another shape"),
        (lambda h, a: a.update({AVERAGE: a[AVERAGE].astype("f2")}), "another shape or dtype"),
        (lambda h, a: a.update({AVERAGE: a[AVERAGE].astype("i4")}), "another shape or dtype"),
        (lambda h, a: a.pop(AVERAGE), "average of 0.weight has no values"),
        (lambda h, a: h["averages"][0].update(x=AVERAGE), "average of x has no values or no param"),
        (lambda h, a: h["averages"][0].update({"0.weight": [AVERAGE]}), "not a name"),
        (lambda h, a: h.update(averages={}), "not a list"),
        (lambda h, a: h.update(averages=[[]]), "not a dict"),
    ],
)
def test_forged_averages_are_refused(saved, edit, match):
    path, net, trainer = saved
    amp.EMA(net, trainer)
    save_checkpoint(path, net, trainer)
    header, arrays = archive.read(FILE, path)
    edit(header, arrays)
    Path(path).write_bytes(archive.encode(FILE, header, arrays))
    refused(f"correct checksum.*{match}", path, net, trainer)


def test_an_empty_array_does_not_fit_an_unknown_shape(saved):
    path = saved[0]
    header, arrays = archive.read(FILE, path)
    arrays["parameters/0.weight"] = arrays["parameters/0.weight"][:, :0]
    Path(path).write_bytes(archive.encode(FILE, header, arrays))
    with pytest.raises(ValueError, match="0.weight is empty"):
        load_checkpoint(path, *made())


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
def test_a_header_that_is_malformed_or_contradicts_itself_is_refused(saved, edit, match):
    path, net, trainer = saved
    header = forging.header_of(read(path))
    edit(header)
    Path(path).write_bytes(forging.with_header(read(path), header))
    refused(f"net.ckpt has a correct checksum.*{match}", path, net, trainer)


def test_foreign_files_are_refused(saved, tmp_path):
    _, net, trainer = saved
    path = str(tmp_path / "foreign")
    for write in (net.save_parameters, trainer.save_states):
        write(path)
        refused("was not written by amp.save_checkpoint", path, net, trainer)
    np.savez(path, a=np.ones(3))
    refused("was not written by amp.save_checkpoint", path + ".npz", net, trainer)


def test_pins_are_stored_with_their_directions():
    policy = amp.Policy("compute=float8_e4m3").pin(["dot"]).pin(["dot"], direction="forward")
    pins = policies_of(amp.cast(nn.Dense(1, in_units=1), policy))[""]["pins"]
    assert pins == [[["dot"], [], "float32"], [["dot"], [], "float32", "forward"]]
