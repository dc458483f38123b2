"""Files and folders are the old or the new ones, whenever their writer is killed."""

import concurrent.futures
import errno
import os
import subprocess
import sys

import pytest

from gluon_amp.base import locks
from gluon_amp.files import atomic


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# ------------------------------------------------------------------------------------------- files


def test_writers_at_the_same_time_do_not_remove_each_others_files(tmp_path):
    def write(number):
        for turn in range(20):
            atomic.write(tmp_path / str(number % 2), b"%d %d" % (number, turn))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert files(tmp_path) == ["0", "1"]
    assert {(tmp_path / name).read_text().split()[1] for name in files(tmp_path)} == {"19"}


def test_temporary_files_of_killed_writers_are_removed_and_of_others_not(tmp_path):
    mine, other, named = (
        tmp_path / f"f.{name}.unfinished" for name in ("aaaaaaaa", "b_2bbbbb", "x")
    )
    for path in (mine, other, named):
        path.touch()
    with open(mine) as file:
        assert locks.lock(file)
        atomic.write(tmp_path / "f", b"new")
        assert files(tmp_path) == ["f", mine.name, named.name]
    atomic.write(tmp_path / "f", b"newer")
    assert files(tmp_path) == ["f", named.name]
    assert (tmp_path / "f").read_bytes() == b"newer"
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    """As root, a rename onto /dev/null would put a file in its place, for all programs."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    descriptor = os.open(pipe, os.O_RDWR)
    atomic.write(pipe, b"all of it")
    assert os.read(descriptor, 100) == b"all of it"
    os.close(descriptor)
    assert pipe.is_fifo()
    assert os.listdir(tmp_path) == ["pipe"]


# ----------------------------------------------------------------------------------------- folders


def test_a_folder_appears_whole_and_replaces_the_old_one(tmp_path):
    for content in ("old", "new"):
        with atomic.folder(tmp_path / "f") as folder:
            (folder / content).write_text(content)
            if content == "new":
                assert files(tmp_path / "f") == ["old"]
            else:
                assert not (tmp_path / "f").exists()
    assert files(tmp_path) == ["f", "f/new"]


def test_what_killed_writers_left_is_cleared(tmp_path):
    left = tmp_path / "f.unfinished"
    (left / "deep").mkdir(parents=True)
    (left / "deep" / "file").touch()
    (left / "link").symlink_to(tmp_path)
    (tmp_path / "f.replaced").mkdir()
    (tmp_path / "f.removed" / "half").mkdir(parents=True)
    (tmp_path / "f").mkdir()
    with atomic.folder(tmp_path / "f") as folder:
        assert files(folder) == []
        (folder / "new").touch()
    assert files(tmp_path) == ["f", "f/new"]


def test_one_writer_of_a_folder(tmp_path):
    with atomic.folder(tmp_path / "f") as folder:
        (folder / "first").touch()
        with pytest.raises(atomic.InUseError) as caught, atomic.folder(tmp_path / "f"):
            pytest.fail("two writers")
        assert str(caught.value) == f"another process is writing {folder}"
    assert files(tmp_path) == ["f", "f/first"]


def test_a_folder_replaces_a_file_or_a_link(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with atomic.folder(tmp_path / name) as folder:
            (folder / "new").touch()
    assert files(tmp_path) == ["file", "file/new", "link", "link/new", "target"]
    assert not (tmp_path / "link").is_symlink()


def fail(*arguments):
    raise OSError(errno.EIO, "Input/output error")


def interrupt(monkeypatch):
    raise KeyboardInterrupt


def fail_in_the_second_rename(monkeypatch):
    rename = os.rename
    calls = {True: fail, False: rename}
    ours = lambda source, target: calls[source.endswith(atomic.SUFFIX)](source, target)  # noqa: E731
    monkeypatch.setattr(os, "rename", ours)


FAILURES = {
    "block": interrupt,
    # `os.sync` reports no errors: a full disk or a broken one shows in `os.fsync`
    "flush of a file": lambda monkeypatch: monkeypatch.setattr(os, "fsync", fail),
    "second rename": fail_in_the_second_rename,
}


@pytest.mark.parametrize("what", FAILURES)
def test_a_failure_leaves_the_old_folder(what, tmp_path, monkeypatch):
    with atomic.folder(tmp_path / "f") as folder:
        (folder / "old").touch()
    errors = (OSError, KeyboardInterrupt)
    with pytest.raises(errors, match="Input/output|^$"), atomic.folder(tmp_path / "f") as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "new").write_text("new")
        FAILURES[what](monkeypatch)
    assert files(tmp_path) == ["f", "f/old"]


def test_the_only_whole_folder_is_restored_before_anything_else(tmp_path):
    # The state after a kill between two renames.
    (tmp_path / "f.replaced").mkdir()
    (tmp_path / "f.replaced" / "old").touch()
    with atomic.folder(tmp_path / "f") as folder:
        assert files(tmp_path / "f") == ["old"]
        (folder / "new").touch()
    assert files(tmp_path) == ["f", "f/new"]


def test_writers_at_the_same_time_lose_nothing(tmp_path):
    def write(number):
        done = 0
        for turn in range(10):
            try:
                with atomic.folder(tmp_path / "f") as folder:
                    assert not any(folder.iterdir())
                    for name in "ab":
                        (folder / name).write_text(f"{number} {turn}")
                done += 1
            except atomic.InUseError:
                pass
        return done

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(write, range(4))) > 0
    assert files(tmp_path) == ["f", "f/a", "f/b"]
    assert (tmp_path / "f" / "a").read_text() == (tmp_path / "f" / "b").read_text()


# ------------------------------------------------------------------------------------------- kills

KILLER = """
import fcntl, importlib.util, os, shutil, signal, sys, types
locks, source, folder = sys.argv[1:]

def load(name, path):
    # Without their package, which loads MXNet and starts threads.
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

for name in ("gluon_amp", "gluon_amp.base"):
    sys.modules[name] = types.ModuleType(name)
load("gluon_amp.base.locks", locks)
atomic = load("atomic", source)

CALLS = [(os, name) for name in ("open", "close", "fsync", "rename", "unlink", "rmdir", "mkdir",
                                 "lstat", "stat", "scandir", "sync")]
CALLS += [(fcntl, "flock")]
os.sync = lambda: None  # a flush for each kill is slow

def write(path, word):
    with atomic.folder(path) as into:
        (into / "deep").mkdir()
        for name in ("first", "deep/second"):
            (into / name).write_text(word * 1000)

def read(path):
    # Returns which of the two folders it is, after a check that it is whole.
    if not os.path.lexists(path):
        return None
    first, second = (open(os.path.join(path, name)).read() for name in ("first", "deep/second"))
    assert first == second and len(first) == 3000
    return first[:3]

def counted(function, at, count=[0]):
    def call(*args, **kwargs):
        count[0] += 1
        if count[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return call

def write_and_die(path, at):
    # Writes in a child process that is killed right before a call. False if there are fewer calls.
    child = os.fork()
    if child == 0:
        for module, name in CALLS:
            setattr(module, name, counted(getattr(module, name), at))
        # shutil.rmtree compares these before it uses them.
        os.supports_fd.add(os.scandir)
        os.supports_dir_fd.update((os.open, os.stat, os.unlink, os.rmdir))
        os.supports_follow_symlinks.add(os.stat)
        write(path, "new")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL)
    return status != 0

path = os.path.join(folder, "f")
for before in ("old", None):
    outcomes, killed = [], True
    while killed:
        shutil.rmtree(path, ignore_errors=True)
        if before:
            write(path, before)
        killed = write_and_die(path, len(outcomes) + 1)
        outcome = read(path)
        assert outcome or not before or read(path + ".replaced") == "old"
        try:
            with atomic.folder(path):
                raise ZeroDivisionError  # in the next writer
        except ZeroDivisionError:
            pass
        outcomes.append(read(path))
        assert os.listdir(folder) == (["f"] if outcomes[-1] else [])
        assert outcome in (None, outcomes[-1])
    assert outcomes == sorted(outcomes, key=[before, "new"].index) and outcomes[-1] == "new"
    assert outcomes.count(before) > 10 and outcomes.count("new") > 3, outcomes
"""


@pytest.mark.slow
def test_kill_9_between_any_two_system_calls_loses_no_folder(tmp_path):
    command = [sys.executable, "-c", KILLER, locks.__file__, atomic.__file__, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
