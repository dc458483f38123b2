"""The file that `save_checkpoint` writes."""

import errno
import hashlib
import json
import os
import resource
import subprocess
import sys

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


KILLS = """
import os, signal, sys
import gluon_amp as amp
from gluon_amp.checkpoint import load_checkpoint, save_checkpoint
import mxnet as mx
pattern = os.path.join(sys.argv[1], "net-{step}.ckpt")

def build(value):
    net = mx.gluon.nn.Dense(64, in_units=64)
    net.initialize(mx.init.Constant(value))
    return net, amp.Trainer(amp.cast(net, "float16").collect_params(), "sgd")

def path_of(step):
    return pattern.replace("{step}", str(step))

def save_and_die(at):
    # Saves in a child process that is killed right before a system call. False if it ends before.
    child = os.fork()
    if child == 0:
        count, fdopen, leave = 0, os.fdopen, os._exit
        def counted(function):
            def call(*args, **kwargs):
                nonlocal count
                count += 1
                if count == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*args, **kwargs)
            return call
        class Slow:  # writes in pieces, as the system does
            def __init__(self, file):
                self.file = file
            def write(self, data):
                for start in range(0, len(data), len(data) // 8 + 1):
                    counted(self.file.write)(data[start : start + len(data) // 8 + 1])
                    self.file.flush()
            def __getattr__(self, name):
                return getattr(self.file, name)
            def __enter__(self):
                return self
            def __exit__(self, *_):
                self.file.close()
        for name in ("open", "close", "fsync", "replace", "unlink", "chmod"):
            setattr(os, name, counted(getattr(os, name)))
        os.fdopen = lambda *args: Slow(fdopen(*args))
        save_checkpoint(pattern, *new, keep=2, step=3)
        leave(0)
    status = os.waitpid(child, 0)[1]
    assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL
    return status != 0

old, new, spare = build(1.0), build(2.0), build(3.0)
new[1].optimizer.num_update = 3
outcomes, killed = [], True
while killed:
    for step in (1, 2, 3):  # the third one is replaced
        old[1].optimizer.num_update = step
        save_checkpoint(pattern, *old, step=-step)
    killed = save_and_die(len(outcomes) + 1)
    outcomes.append(load_checkpoint(pattern, *spare)["step"])
    assert (spare[0].weight.data().asnumpy() == (1 if outcomes[-1] < 0 else 2)).all()
    left = [step for step in (1, 2, 3) if os.path.exists(path_of(step))]
    assert left == [2, 3] or (left == [1, 2, 3] and killed), left
    earlier = [load_checkpoint(path_of(step), *spare)["step"] for step in left[:-1]]
    assert earlier == [-step for step in left[:-1]]
assert outcomes == sorted(outcomes), outcomes
assert outcomes.count(-3) > 10 and outcomes.count(3) > 3, outcomes
"""


@pytest.mark.slow
def test_kill_9_between_any_two_system_calls_loses_nothing(tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", KILLS, str(tmp_path)],
        # MXNet runs without engine threads, so that the process can be forked.
        env={**os.environ, "MXNET_ENGINE_TYPE": "NaiveEngine", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
