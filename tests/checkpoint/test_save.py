"""The file that `save_checkpoint` writes."""

import errno
import hashlib
import json
import os
import resource

import numpy as np
import pytest

from gluon_amp.checkpoint import load_checkpoint, save_checkpoint
from gluon_amp.checkpoint.contents import FILE
from tests.checkpoint.helpers import made, names, read

import mxnet as mx


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
    shapes = [archive[name].shape for name in archive.files if name != FILE.header]
    assert shapes.count(master.shape) == 2  # the master once, and the momentum


def test_the_same_state_gives_the_same_bytes_and_their_digest_ends_them(saved, tmp_path):
    path, net, trainer = saved
    data = read(path)
    assert read(save_checkpoint(tmp_path / "again.ckpt", net, trainer, epoch=3)) == data
    assert data[-64:].decode() == hashlib.sha256(data[:-64]).hexdigest()


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
    "numpy_state": ("MT19937", np.arange(4, dtype=np.uint32), 624, 0, 0.0),
    "nested": [{"deep": np.array([True])}],
}


def test_extra_comes_back_as_it_was(saved, tmp_path):
    _, net, trainer = saved
    path = save_checkpoint(tmp_path / "extra.ckpt", net, trainer, **EXTRA)
    extra = load_checkpoint(path, net, trainer)

    np.testing.assert_equal(extra, EXTRA)
    assert repr(extra) == repr(EXTRA)  # types, dtypes and the order of keys
    assert type(extra["half"]) is np.float16


@pytest.mark.parametrize(
    "value, where",
    [
        ([1, {"k": object()}], r"extra\['thing'\]\[1\]\['k'\] is a builtins.object"),
        (np.array([None]), r"extra\['thing'\] is a numpy.ndarray"),
        (mx.nd.ones(2), r"call .asnumpy\(\) on it"),
    ],
)
def test_what_cannot_be_saved_is_refused_and_the_old_file_stays(saved, value, where):
    path, net, trainer = saved
    before = read(path)
    with pytest.raises(TypeError, match=where):
        save_checkpoint(path, net, trainer, thing=value)
    assert read(path) == before


def test_a_net_without_values_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"0.weight, 1.gamma, 1.beta and 3 more have no values"):
        save_checkpoint(tmp_path / "net.ckpt", *made())
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


# ------------------------------------------------------------------------------------- crashes


def test_a_full_disk_is_reported_and_all_earlier_files_stay(saved, tmp_path):
    _, net, trainer = saved
    path = tmp_path / "net-{step}.ckpt"
    trainer.optimizer.num_update = 1
    before = read(save_checkpoint(path, net, trainer))
    left = names(tmp_path)
    trainer.optimizer.num_update = 2
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        with pytest.raises(OSError, match="The checkpoint of 0.0 MB was not written") as caught:
            save_checkpoint(path, net, trainer, keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG
    assert "(File too large), and what was there before is unchanged" in str(caught.value)
    assert names(tmp_path) == left
    assert read(tmp_path / "net-1.ckpt") == before
