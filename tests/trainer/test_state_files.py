"""Files of trainer states: whole, damaged and forged."""

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from gluon_amp import Trainer, save_checkpoint
from gluon_amp.files import archive
from gluon_amp.trainer import state_files
from tests.trainer.state_helpers import own, refuse, train

from mxnet import gluon


@pytest.mark.parametrize("optimizer", ["sgd", "nadam"])
def test_a_file_is_an_archive_of_numbers(path, optimizer):
    first, second = train(own(optimizer)), own(optimizer)
    first.save_states(path)
    with np.load(path) as content:  # allow_pickle is False by default
        header = json.loads(content["gluon_amp_states.json"])
        assert all(content[name].dtype == np.float32 for name in content.files[1:])
    assert (header["format"], header["version"]) == ("gluon_amp trainer states", 1)
    for mine, theirs in zip(second.parameters, first.parameters):
        mine.set_data(theirs.data())
    second.load_states(path)
    assert repr(second.state_dict()) == repr(first.state_dict())
    train(first, 2)
    train(second, 2)
    assert repr(second.state_dict()) == repr(first.state_dict())


def test_pickled_states_of_gluon_amp_are_refused_with_a_way_out(path):
    trainer = train(own())
    with open(path, "wb") as file:
        pickle.dump(trainer.state_dict(), file, protocol=4)
    refuse(trainer, path, "of a gluon_amp that pickled its trainer states")


def test_foreign_files_are_refused(path):
    trainer = train(own())
    for content in (b"", b"\x93NUMPY", pickle.dumps([1]), pickle.dumps(os.system)):
        Path(path).write_bytes(content)
        refuse(trainer, path, r"is truncated or was not|save_states did not write")
    net = gluon.nn.Dense(2, in_units=2)
    net.initialize()
    save_checkpoint(path, net, Trainer(net.collect_params(), "sgd"))
    refuse(trainer, path, "a checkpoint with amp.load_checkpoint")


def test_a_failed_save_keeps_the_old_file(path, monkeypatch):
    def fail(*args):
        raise OSError("disk full")

    trainer = own()
    trainer.save_states(path)
    before = Path(path).read_bytes()
    train(trainer, 1)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        trainer.save_states(path)
    assert Path(path).read_bytes() == before


# ------------------------------------------------------------------------------ forged states


def edited(path, edit):
    """Change the unpacked states of a file, and write them with a correct digest."""
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
        put("skips", (-1, 0)),
        put("counts", 0, float("nan")),
        put("counts", 7, 1),
        put("counts", [1]),
        put("progress", {}),
        put("progress", "num_update", float("nan")),
        put("progress", "update", 3),
        put("settings", "lr", [1]),
        put("shapes", [(2, 3), (3,)]),
        put("states", 0, (ONES, (ONES[0],))),
        put("states", 0, (ONES, (ONES.astype(np.float16),))),
        put("states", 0, (ONES, (ONES, ONES))),
        put("states", 0, (ONES, (3.0,))),
        put("states", 0, (ONES.astype(np.float64), (ONES,))),
        put("states", 0, (ONES,)),
        put("states", 3, (ONES, (ONES,))),
        put("states", []),
        put("loss_scale", ("x", {})),
        put("loss_scale", 1, "scale", 3.0),
        put("loss_scale", 1, "finite_steps", -1),
        put("optimizer", "mxnet.optimizer.optimizer.SGD"),
        put("optimizer", ["gluon_amp.optimizer.SGD"]),
        put("version", 2),
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


def test_the_message_names_the_file(path):
    trainer = train(own())
    trainer.save_states(path)
    edited(path, put("skips", (-1, 0)))
    refuse(trainer, path, f"^{path} .*skips")


def test_a_state_dict_is_checked_like_a_file():
    trainer = train(own())
    saved = trainer.state_dict()
    saved["counts"][0] = float("nan")
    before = repr(trainer.state_dict())
    with pytest.raises(ValueError, match=r"counts'\]\[0\] is nan and not a whole number"):
        trainer.load_state_dict(saved)
    with pytest.raises(ValueError, match="is not the state of a gluon_amp Trainer"):
        trainer.load_state_dict([])
    assert repr(trainer.state_dict()) == before
