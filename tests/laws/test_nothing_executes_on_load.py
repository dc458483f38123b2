"""Law 12: loading executes nothing, and a damaged or forged file is refused in one sentence."""

import os
import pickle

import pytest

import gluon_amp as amp
from gluon_amp.files import torch_file as torch_files
from tests.laws.training import Training

SENTENCE = r"^[^\n]+\.$"


class Bomb:
    """A pickle that makes a folder when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def states(training, path):
    training.trainer.load_states(str(path))


def checkpoint(training, path):
    amp.load_checkpoint(str(path), training.net, training.trainer)


def torch_file(training, path):
    torch_files.read(path)


READERS = {"states": states, "checkpoint": checkpoint, "torch": torch_file}


@pytest.fixture(scope="module")
def training():
    found = Training("adam", policy="float16")
    found.step(0)
    return found


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_would_execute(name, protocol, training, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(pickle.dumps([Bomb(tmp_path / "made")], protocol))
    with pytest.raises(ValueError, match=SENTENCE):
        READERS[name](training, path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", ["states", "checkpoint"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-9],
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: data[:-40] + bytes([data[-40] ^ 1]) + data[-39:],
        lambda data: data + b"x",
    ],
    ids=["cut at the end", "cut in half", "empty", "a bit flipped", "a byte more"],
)
def test_a_damaged_file(name, damage, training, tmp_path):
    path = tmp_path / "file"
    if name == "states":
        training.trainer.save_states(str(path))
    else:
        amp.save_checkpoint(str(path), training.net, training.trainer)
    path.write_bytes(damage(path.read_bytes()))
    before = training.everything()
    with pytest.raises(ValueError, match=SENTENCE):
        READERS[name](training, path)
    assert training.everything() == before
