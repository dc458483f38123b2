"""The file that `save_checkpoint` writes."""

import errno
import json
import os
import resource

import numpy as np
import pytest

from gluon_amp.checkpoint import load_checkpoint, read_extra, save_checkpoint
from gluon_amp.checkpoint.contents import FILE
from tests.checkpoint.helpers import made, names, read


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


def test_extra_comes_back_as_it_was_and_what_cannot_be_saved_is_refused(saved):
    path, net, trainer = saved
    extra = {
        "history": [1.5, float("inf"), (2, None, True, "é")],
        "by_step": {3: "c", (1, 2): np.arange(6, dtype=np.int16).reshape(2, 3)},
        "numpy_state": ("MT19937", np.arange(4, dtype=np.uint32), 624, 0, 0.0),
    }
    save_checkpoint(path, net, trainer, **extra)
    assert repr(load_checkpoint(path, net, trainer)) == repr(extra)
    before = read(path)
    with pytest.raises(TypeError, match=r"extra\['a'\]\[0\]\['k'\] is a builtins.object"):
        save_checkpoint(path, net, trainer, a=[{"k": object()}])
    assert read(path) == before
    assert repr(read_extra(path)) == repr(extra)
    with open(path, "r+b") as file:
        file.truncate(1000)
    with pytest.raises(ValueError, match="is truncated or damaged"):
        read_extra(path)


def test_what_is_missing_is_named(saved, tmp_path):
    path, net, trainer = saved
    with pytest.raises(ValueError, match=r"0.weight, 1.gamma, 1.beta and 3 more have no values"):
        save_checkpoint(tmp_path / "other.ckpt", *made())
    for call in (save_checkpoint, load_checkpoint):
        with pytest.raises(ValueError, match=r"The trainer updates .*conv.*_weight.* not in this"):
            call(path, net[1], trainer)
    with pytest.raises(FileNotFoundError, match="There is no folder .*nowhere"):
        save_checkpoint(tmp_path / "nowhere" / "net.ckpt", net, trainer)
    with pytest.raises(FileNotFoundError, match=r"other\.ckpt"):
        load_checkpoint(tmp_path / "other.ckpt", net, trainer)
    with pytest.raises(FileNotFoundError, match="none has been saved yet"):
        load_checkpoint(tmp_path / "other-{step}.ckpt", net, trainer)
    assert os.listdir(tmp_path) == ["net.ckpt"]


def test_a_full_disk_is_reported_and_all_earlier_files_stay(saved, tmp_path):
    _, net, trainer = saved
    path = tmp_path / "net-{step}.ckpt"
    trainer.optimizer.num_update = 1
    before = read(save_checkpoint(path, net, trainer))
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
    assert names(tmp_path) == ["net-1.ckpt", "net.ckpt"]
    assert read(tmp_path / "net-1.ckpt") == before
