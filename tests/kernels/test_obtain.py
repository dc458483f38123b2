"""Finding or building the C++ library: only one that was tried on this machine is used."""

import os
import re
import subprocess
import sys
import textwrap
from unittest import mock

import pytest

from gluon_amp.kernels import build, cache, obtain
from gluon_amp.kernels.build import BuildError
from tests import ROOT
from tests.marks import needs_library

pytestmark = needs_library

LIBRARY = obtain.find()  # that of this process
GOOD, BROKEN = b"code that works" * 100, b"code that crashes" * 100


def trial(path):
    """Stands for the trial in a subprocess, for libraries that are only bytes."""
    if path.read_bytes() != GOOD:
        raise BuildError("the trial of the kernels failed (killed by SIGSEGV)")


def compiler_of(home, library, seconds=0):
    """Write a compiler that copies a library instead of linking one, and counts its calls."""
    compiler = home / "compiler"
    compiler.write_text(
        textwrap.dedent(f"""\
        #!/bin/sh
        while [ $# -gt 0 ]; do
          if [ "$1" = -o ]; then out=$2; fi
          shift
        done
        case $out in
          *.o) : > "$out" ;;
          *) sleep {seconds}; cp {library} "$out"; echo >> {home}/builds ;;
        esac
        """)
    )
    compiler.chmod(0o700)
    return compiler


def fill(content=GOOD, worked_here=True):
    """Store a library in the cache, as if it was built here."""
    path = cache.folder() / cache.file_name(content)
    path.write_bytes(content)
    path.chmod(0o600)
    if worked_here:
        cache.trial(path.parent, path).touch()
    return path


@pytest.fixture
def builds(home, monkeypatch):
    """Return how often a library was built, by a compiler that copies `linked.so`."""
    (home / "linked.so").write_bytes(GOOD)
    monkeypatch.setenv("CXX", str(compiler_of(home, home / "linked.so")))
    monkeypatch.setattr(obtain, "try_in_subprocess", trial)
    monkeypatch.setattr(cache, "PREBUILT", home / "prebuilt")
    log = home / "builds"
    return lambda: len(log.read_text()) if log.exists() else 0


@pytest.fixture
def wheel(builds):
    """Return what puts a library into the wheel that is installed."""

    def put(content=GOOD, name=None):
        path = cache.PREBUILT / (name or cache.file_name(content))
        path.parent.mkdir()
        path.write_bytes(content)
        path.chmod(0o666)  # whoever can change it can change the Python code, too
        return path

    return put


@pytest.fixture
def bare():
    """Return a context in which there is no compiler."""
    return mock.patch.dict(os.environ, CXX="", PATH="")


def test_first_use_says_once_what_it_builds_and_where_that_is_kept(
    builds, home, caplog, monkeypatch
):
    path = obtain.find_or_build()
    monkeypatch.setattr(obtain, "try_in_subprocess", lambda path: pytest.fail("tried again"))
    (record,) = caplog.records
    line, folder = record.getMessage(), home / ".cache" / "gluon_amp"
    start = f"Building gluon_amp's C++ kernels with {home / 'compiler'}. This takes a minute"
    assert line.startswith(start)
    assert line.endswith(f"once. The result is kept in {folder}.")
    assert record.levelname == "WARNING"  # printed unless the user has configured logging
    assert obtain.find_or_build() == path
    assert len(caplog.records) == 1
    assert builds() == 1
    kept = {file.name for file in folder.iterdir()}
    assert kept == {"lock", path.name, cache.trial(folder, path).name}


def test_an_import_finds_a_library_without_starting_a_program(builds, home, monkeypatch):
    monkeypatch.setattr(build, "run", lambda *_, **__: pytest.fail("a program was started"))
    assert obtain.find() is None
    assert not (home / ".cache").exists()  # and creates nothing
    path = fill()
    assert obtain.find() == path
    cache.trial(path.parent, path).unlink()  # it was not tried on this machine
    assert obtain.find() is None


@pytest.mark.parametrize("content", [GOOD, BROKEN])
def test_a_library_that_was_brought_is_tried_and_built_anew_if_it_does_not_work(builds, content):
    brought = fill(content, worked_here=False)
    path = obtain.find_or_build()
    assert path == obtain.find() and path.read_bytes() == GOOD
    assert (path == brought) == (content == GOOD)
    assert builds() == (content == BROKEN)


def test_a_truncated_library_is_built_anew(builds):
    path = fill()
    os.truncate(path, path.stat().st_size // 2)
    assert obtain.find_or_build() == path
    assert path.read_bytes() == GOOD
    assert builds() == 1


def test_one_that_does_not_work_when_built_anew_is_given_up(builds, home):
    path = fill(BROKEN, worked_here=False)
    (home / "linked.so").write_bytes(BROKEN)
    with pytest.raises(BuildError, match=r"^the trial of the kernels failed \(.+\)$"):
        obtain.find_or_build()
    assert builds() == 1 and obtain.find() is None
    assert not list(path.parent.glob("build-*"))


def test_without_a_compiler_a_library_that_was_brought_is_tried(builds, bare):
    path = fill(worked_here=False)
    with bare:
        assert obtain.find_or_build() == path
        path.unlink()
        with pytest.raises(BuildError, match=r"^no C\+\+ compiler: .*, and this is not the many"):
            obtain.find_or_build()


# --------------------------------------------------------------------------------- in the wheel


def test_the_order_is_cache_then_wheel_then_compiler(wheel, builds):
    prebuilt = wheel()
    assert obtain.find() is None  # it was not tried yet
    assert obtain.find_or_build() == prebuilt == obtain.find()
    cached = fill()
    assert obtain.find_or_build() == cached == obtain.find() and builds() == 0
    cached.unlink()
    prebuilt.unlink()
    assert obtain.find_or_build() == cached and builds() == 1


FAULTS = {
    "damaged": {"content": GOOD[1:], "name": cache.file_name(GOOD)},
    "of other sources": {"name": "native-0123456789abcdef-0123456789abcdef.so"},
    "a failure": {"content": BROKEN},
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_one_of_the_wheel_that_cannot_be_used_falls_through(fault, wheel, builds, caplog, bare):
    prebuilt = wheel(**FAULTS[fault])
    reason = f"{prebuilt} is damaged, or was compiled from other sources"
    if fault == "a failure":
        reason = "the trial of the kernels failed (killed by SIGSEGV)"
    with bare, pytest.raises(BuildError, match=f"was found, and {re.escape(reason)}$"):
        obtain.find_or_build()
    assert obtain.find_or_build().parent != prebuilt.parent and builds() == 1
    (line,) = caplog.messages
    assert f"since {reason}. This takes" in line


def test_without_a_cache_the_one_of_the_wheel_is_used(wheel, monkeypatch):
    prebuilt = wheel()
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    assert obtain.find_or_build() == prebuilt


# ------------------------------------------------------------------------------------- the trial


def test_the_trial_fails_for_a_library_that_crashes(tmp_path):
    content = LIBRARY.read_bytes()
    (tmp_path / "native.so").write_bytes(content[:4096].ljust(len(content), b"\0"))
    with pytest.raises(BuildError, match=r"^the trial of the kernels failed \(.+\)$"):
        obtain.try_in_subprocess(tmp_path / "native.so")


def test_the_trial_runs_nothing_of_the_current_directory(home, monkeypatch):
    for name in ("json", "runpy", "numpy", "mxnet", "requests", "sitecustomize", "ctypes"):
        (home / f"{name}.py").write_text(
            f"open({str(home / 'executed')!r}, 'a').write({name!r})\nraise SystemExit(1)"
        )
    monkeypatch.chdir(home)
    # This process may have found gluon_amp by a relative path: the trial knows its folder.
    monkeypatch.setattr(sys, "path", ["", ".", *(path for path in sys.path if path != str(ROOT))])
    obtain.try_in_subprocess(LIBRARY)
    assert not (home / "executed").exists()


# Prints whether all of four threads have the kernels once they have cast a net
THREADS = """
import threading
import gluon_amp as amp
import mxnet as mx
from gluon_amp import kernels

start, results = threading.Barrier(4), []


def work():
    net = mx.gluon.nn.Dense(1, in_units=1)
    net.initialize()
    start.wait()
    amp.cast(net, "float16")
    results.append(kernels.available())


threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(results)
"""


def test_processes_and_threads_at_first_use_share_one_build(home, monkeypatch):
    monkeypatch.setenv("CXX", str(compiler_of(home, LIBRARY, seconds=3)))
    monkeypatch.setenv("GLUON_AMP_NATIVE", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    command = [sys.executable, "-c", THREADS]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [one.communicate(timeout=250)[0] for one in running] == [f"{[True] * 4}\n"] * 2
    assert len((home / "builds").read_text()) == 1
    assert not list((home / ".cache" / "gluon_amp").glob("build-*"))
