"""A crash, a full disk or a folder without permission leaves the old file or the new one."""

import errno
import os
import re
import signal
import subprocess
import sys
import textwrap

import pytest

from gluon_amp.checkpoint import save_checkpoint
from tests.checkpoint.helpers import names

SETUP = """
    import os, signal, sys
    import gluon_amp as amp
    from gluon_amp.checkpoint import load_checkpoint, save_checkpoint
    import mxnet as mx
    folder = sys.argv[1]

    def build(value):
        net = mx.gluon.nn.Dense(64, in_units=64)
        net.initialize(mx.init.Constant(value))
        return net, amp.Trainer(amp.cast(net, "float16").collect_params(), "sgd")

    old, new = build(1.0), build(2.0)
"""

KILLER = """
    class Kill:
        # Counts the system calls of a save, and kills the process right before a given one.
        def __init__(self, at):
            self.at, self.count = at, 0

        def call(self, function):
            def counted(*args, **kwargs):
                self.count += 1
                if self.count == self.at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*args, **kwargs)
            return counted

        def install(self):
            for name in ("open", "close", "fsync", "replace", "unlink", "chmod"):
                setattr(os, name, self.call(getattr(os, name)))
            fdopen = os.fdopen
            os.fdopen = lambda *args: Slow(fdopen(*args), self)

    class Slow:
        # Writes in pieces, as the system does.
        def __init__(self, file, kill):
            self.file, self.kill = file, kill

        def write(self, data):
            piece = len(data) // 12 + 1
            for start in range(0, len(data), piece):
                self.kill.call(self.file.write)(data[start : start + piece])
                self.file.flush()

        def __getattr__(self, name):
            return getattr(self.file, name)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

    def attempt(save, at):
        # Saves in a child process. Returns its number of calls, or None if it was killed.
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            kill = Kill(at)
            write, exit_now = os.write, os._exit
            kill.install()
            save()
            write(writing, str(kill.count).encode())
            exit_now(0)
        _, status = os.waitpid(child, 0)
        os.close(writing)
        with os.fdopen(reading) as file:
            count = file.read()
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            return None
        assert status == 0
        return int(count)

    def what(path):
        extra = load_checkpoint(path, *spare)
        assert (spare[0].weight.data().asnumpy() == {"old": 1, "new": 2}[extra["which"]]).all()
        return extra["which"]

    spare = build(3.0)
    kills, outcomes = 0, []

    # One file that is replaced.
    path = os.path.join(folder, "one.ckpt")
    at = 0
    while True:
        save_checkpoint(path, *old, which="old")
        at += 1
        count = attempt(lambda: save_checkpoint(path, *new, which="new"), at)
        outcomes.append(what(path))
        if count is not None:
            assert outcomes[-1] == "new"
            break
        kills += 1
    assert "old" in outcomes and "new" in outcomes[:-1]
    assert outcomes == sorted(outcomes, key=["old", "new"].index)

    # Numbered files, of which two are kept.
    pattern = os.path.join(folder, "many-{step}.ckpt")
    at = 0
    while True:
        for step in (1, 2, 3):
            old[1].optimizer.num_update = step
            save_checkpoint(pattern, *old, which="old")
        new[1].optimizer.num_update = 4
        at += 1
        count = attempt(lambda: save_checkpoint(pattern, *new, keep=2, which="new"), at)
        newest = what(pattern)
        left = [s for s in (1, 2, 3, 4) if os.path.exists(pattern.replace("{step}", str(s)))]
        assert left[-2:] == ([3, 4] if newest == "new" else [2, 3])
        for step in left[:-1]:
            assert what(pattern.replace("{step}", str(step))) == "old"
        if count is not None:
            assert left == [3, 4]
            break
        if newest == "new":
            os.unlink(pattern.replace("{step}", "4"))
        kills += 1

    # No file before.
    path = os.path.join(folder, "first.ckpt")
    at = 0
    while True:
        at += 1
        count = attempt(lambda: save_checkpoint(path, *new, which="new"), at)
        if os.path.exists(path):
            assert what(path) == "new"
            os.unlink(path)
        if count is not None:
            break
        kills += 1
    print(kills)
"""


LEAVES_HALF = """
    os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    save_checkpoint(os.path.join(folder, "net.ckpt"), *new)
"""


def test_kill_9_leaves_nothing_for_longer_than_one_save(saved, tmp_path):
    path, net, trainer = saved
    code = textwrap.dedent(SETUP) + textwrap.dedent(LEAVES_HALF)
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 2
    save_checkpoint(path, net, trainer)
    assert names(tmp_path) == ["net.ckpt"]


def in_a_process(code, folder, **env):
    # MXNet runs without engine threads, so that the process can be forked.
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(folder)],
        env={**os.environ, "MXNET_ENGINE_TYPE": "NaiveEngine", "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_kill_9_between_any_two_system_calls_loses_nothing(tmp_path):
    kills = int(in_a_process(textwrap.dedent(SETUP) + textwrap.dedent(KILLER), tmp_path))
    assert kills >= 50


FULL_DISK = """
    import resource
    path = os.path.join(folder, "net.ckpt")
    save_checkpoint(path, *old, which="old")
    with open(path, "rb") as file:
        before = file.read()
    for size in (0, 100, 4096, len(before) - 1):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        try:
            save_checkpoint(path, *new, which="new")
            print("no error")
        except OSError as error:
            print(error.errno, error)
        assert os.listdir(folder) == ["net.ckpt"]
        with open(path, "rb") as file:
            assert file.read() == before
    assert load_checkpoint(path, *new) == {"which": "old"}
"""


def test_a_full_disk_is_reported_and_the_previous_file_stays(tmp_path):
    lines = in_a_process(textwrap.dedent(SETUP) + textwrap.dedent(FULL_DISK), tmp_path).splitlines()
    assert len(lines) == 4
    for line in lines:
        assert line.startswith(f"{errno.EFBIG} ")
        assert "The checkpoint of 0.0 MB was not written (File too large), and what was" in line
        assert re.search(r"was there before is unchanged: '.*net\.ckpt'", line)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_reported(saved, tmp_path):
    path, net, trainer = saved
    os.chmod(tmp_path, 0o500)
    try:
        with pytest.raises(PermissionError, match="was not written"):
            save_checkpoint(path, net, trainer)
    finally:
        os.chmod(tmp_path, 0o700)
