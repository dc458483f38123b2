"""The cache of the C++ library: only intact, tried code of the user is ever loaded."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time

import pytest

from gluon_amp.kernels import build, cache, obtain
from gluon_amp.kernels.build import BuildError
from gluon_amp.kernels.cache import CachedLibrary
from tests import ROOT
from tests.marks import needs_library

pytestmark = needs_library

# The library of this process
LIBRARY = obtain.find()

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can change the owner of a file"
)


# -------------------------------------------------------------------------------- a library's bytes


@pytest.fixture
def stored(tmp_path):
    """A library in a cache, which was built and tried here."""
    built = tmp_path / "built.so"
    built.write_bytes(b"code" * 1000)
    library = CachedLibrary(tmp_path / "native-1-2.so")
    library.store(built)
    return library


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def replace_by_folder(path):
    path.unlink()
    path.mkdir()
    (path / "something").write_text("")


def replace_by_link(path):
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


def replace_by_pipe(path):
    path.unlink()
    os.mkfifo(path)


DAMAGE = {
    "truncated": lambda path: os.truncate(path, 10),
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "a bit flipped": flip_a_bit,
    "missing": lambda path: path.unlink(),
    "a folder": replace_by_folder,
    "a link": replace_by_link,
    "a pipe": replace_by_pipe,
    "writable by others": lambda path: path.chmod(0o602),
}


def test_a_stored_library_is_intact_and_worked_here(stored):
    assert stored.intact()
    assert stored.worked_here()
    assert stored.path.stat().st_mode & 0o777 == 0o600
    assert [path.suffix for path in sorted(stored.path.parent.iterdir())] == [".json", ".so"]


@pytest.mark.parametrize("part", ["path", "manifest"])
@pytest.mark.parametrize("damage", sorted(DAMAGE))
def test_damage_is_seen_and_replaced(stored, part, damage):
    DAMAGE[damage](getattr(stored, part))
    assert not stored.intact()
    built = stored.path.with_name("built.so")
    built.write_bytes(b"new code")
    stored.store(built)
    assert stored.intact()
    assert stored.path.read_bytes() == b"new code"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
@pytest.mark.parametrize("part", ["path", "manifest"])
def test_what_cannot_be_read_is_not_intact(stored, part):
    getattr(stored, part).chmod(0)
    assert not stored.intact()


@needs_root
@pytest.mark.parametrize("part", ["path", "manifest"])
def test_another_users_file_is_not_intact(stored, part):
    os.chown(getattr(stored, part), 12345, 12345)
    assert not stored.intact()


@pytest.mark.parametrize(
    "text",
    [
        *("", "null", "[]", "3", '"sha256"', "{", "[" * 100000, "\ud800"),
        *('{"sha256": null}', '{"sha256": 1}', '{"sha256": ["x"]}', '{"worked_on": 3}'),
    ],
)
def test_any_text_for_a_manifest(stored, text):
    stored.manifest.write_bytes(text.encode(errors="surrogatepass"))
    assert not stored.intact()
    assert not stored.worked_here()


def test_a_library_is_tried_once_on_each_machine(stored, monkeypatch):
    monkeypatch.setattr(cache.hardware, "cpu_flags", lambda: frozenset({"avx2"}))
    assert stored.intact()
    assert not stored.worked_here()
    stored.note_that_it_works_here()
    assert stored.worked_here()
    monkeypatch.undo()
    assert stored.worked_here()


# --------------------------------------------------------------------------------------- the folder


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return tmp_path


def test_the_folder_is_made_for_the_user_alone(home):
    old = os.umask(0)
    try:
        folder = cache.folder()
    finally:
        os.umask(old)
    assert folder == home / ".cache" / "gluon_amp"
    for created in (folder, folder.parent):
        assert created.stat().st_mode & 0o777 == 0o700
    assert cache.folder() == folder


def test_xdg_cache_home(home, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "x" / "y"))
    assert cache.folder() == home / "x" / "y" / "gluon_amp"


@pytest.mark.parametrize("relative", ["", "cache", ".", "./x", "~/.cache", "~"])
def test_a_relative_xdg_cache_home_is_ignored(home, monkeypatch, relative):
    monkeypatch.chdir(home)
    monkeypatch.setenv("XDG_CACHE_HOME", relative)
    assert cache.folder() == home / ".cache" / "gluon_amp"
    assert sorted(path.name for path in home.iterdir()) == [".cache"]


@pytest.mark.parametrize("value", [None, "", "~", "here"])
def test_without_a_home_the_password_database_has_it(tmp_path, monkeypatch, value):
    import pwd

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    if value is None:
        monkeypatch.delenv("HOME", raising=False)
    else:
        monkeypatch.setenv("HOME", value)
    expected = os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".cache")
    assert cache.home() == expected

    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(BuildError, match="no home folder is known.*set XDG_CACHE_HOME"):
        cache.folder()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o722, 0o702, 0o1777])
def test_a_folder_that_others_write_is_refused(home, mode):
    folder = cache.folder()
    folder.chmod(mode)
    with pytest.raises(BuildError, match=f"other users can write to the cache folder {folder}"):
        cache.folder()
    folder.chmod(0o755)
    assert cache.folder() == folder


@pytest.mark.parametrize("mode, refused", [(0o777, True), (0o757, True), (0o1777, False)])
def test_a_parent_that_others_write_is_refused_unless_it_is_sticky(home, mode, refused):
    folder = cache.folder()
    folder.parent.chmod(mode)
    if refused:
        with pytest.raises(BuildError, match=f"run 'chmod go-w {folder.parent}'"):
            cache.folder()
    else:
        assert cache.folder() == folder


@pytest.mark.parametrize("private", [True, False])
def test_a_parent_that_a_group_writes_is_refused_unless_it_is_the_users_own(
    home, monkeypatch, private
):
    import grp
    import pwd

    class Group:
        gr_name = pwd.getpwuid(os.geteuid()).pw_name if private else "staff"

    folder = cache.folder()
    folder.parent.chmod(0o775)
    monkeypatch.setattr(grp, "getgrgid", lambda gid: Group)
    if private:
        assert cache.folder() == folder
    else:
        with pytest.raises(BuildError, match="other users can write to the cache's parent folder"):
            cache.folder()


@needs_root
@pytest.mark.parametrize("depth", [0, 1])
def test_another_users_folder_is_refused(home, depth):
    folder = cache.folder()
    os.chown([folder, folder.parent][depth], 12345, 12345)
    with pytest.raises(BuildError, match="belongs to another user; set XDG_CACHE_HOME"):
        cache.folder()


@needs_root
def test_a_link_to_another_users_folder_is_refused(home, tmp_path_factory):
    theirs = tmp_path_factory.mktemp("theirs")
    os.chown(theirs, 12345, 12345)
    (home / ".cache").mkdir()
    (home / ".cache" / "gluon_amp").symlink_to(theirs)
    with pytest.raises(BuildError, match="belongs to another user"):
        cache.folder()


def test_a_link_is_followed_once(home):
    (home / "disk").mkdir(mode=0o700)
    (home / ".cache").symlink_to(home / "disk")
    assert cache.folder() == home / "disk" / "gluon_amp"


def test_what_is_no_folder_is_refused(home):
    (home / ".cache").mkdir()
    (home / ".cache" / "gluon_amp").write_text("")
    with pytest.raises(BuildError, match="is a file"):
        cache.folder()
    (home / ".cache" / "gluon_amp").unlink()
    (home / ".cache" / "gluon_amp").symlink_to("gluon_amp")  # to itself
    with pytest.raises(BuildError, match="cannot be used"):
        cache.folder()


def test_folders_of_killed_builds_are_removed(tmp_path):
    for name, age in (("build-old", 2 * cache.ABANDONED), ("build-new", 0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "library.o").write_text("")
        when = time.time() - age
        os.utime(tmp_path / name, (when, when))
    with cache.build_folder(tmp_path) as temporary:
        assert {path.name for path in tmp_path.iterdir()} == {"build-new", temporary.name}
    assert {path.name for path in tmp_path.iterdir()} == {"build-new"}


# --------------------------------------------------------------------------------------------- uses


@pytest.fixture
def use(home, monkeypatch, caplog):
    """Return a function that finds or builds a library in a cache for this test.

    The compiler is a script that copies the library of this process instead of linking one, and
    counts its calls: the tests cover everything but the compiler.
    """
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
          *) cp {LIBRARY} "$out"; echo >> {home}/builds ;;
        esac
        """)
    )
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))

    def run():
        caplog.clear()
        return obtain.find_or_build()

    def fill():
        shutil.copy(LIBRARY, home / "copy.so")
        library = CachedLibrary(cache.folder() / f"native-{build.source_digest()}.so")
        library.store(home / "copy.so")
        return library.path

    def builds():
        return len((home / "builds").read_text()) if (home / "builds").exists() else 0

    run.compiler, run.fill, run.builds = compiler, fill, builds
    return run


def test_first_use_says_once_what_it_builds_and_where_that_is_kept(use, home, caplog):
    path = use()
    (line,) = caplog.messages
    folder = home / ".cache" / "gluon_amp"
    assert line.startswith(
        f"Building gluon_amp's C++ kernels with {use.compiler}: this takes a minute"
    )
    assert line.endswith(f"they are kept in {folder}. `gluon-amp build` does it beforehand.")
    assert (
        caplog.records[0].levelname == "WARNING"
    )  # printed unless the user has configured logging
    assert use() == path
    assert not caplog.messages
    assert use.builds() == 1
    kept = {file.name for file in folder.iterdir()}
    assert kept == {"lock", path.name, path.with_suffix(".json").name}


def test_an_intact_library_that_worked_here_is_neither_tried_nor_built(use, monkeypatch):
    path = use.fill()
    monkeypatch.setattr(obtain, "try_in_subprocess", lambda path: pytest.fail("tried"))
    assert use() == path
    assert use.builds() == 0


def test_an_import_finds_a_library_without_starting_a_program(use, monkeypatch):
    monkeypatch.setattr(build, "run_all", lambda *_, **__: pytest.fail("a program was started"))
    path = use.fill()
    assert obtain.find() == path
    manifest = path.with_suffix(".json")
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "worked_on": []}))
    assert obtain.find() is None  # it was not tried on this machine


def test_an_import_creates_no_cache(home):
    assert obtain.find() is None
    assert not list(home.iterdir())


def test_a_truncated_library_is_built_anew(use):
    path = use.fill()
    os.truncate(path, path.stat().st_size // 2)
    assert use() == path
    assert path.read_bytes() == LIBRARY.read_bytes()
    assert use.builds() == 1


def make_it_crash(path):
    """Make a library that crashes the process that loads it, with a matching manifest."""
    content = path.read_bytes()
    content = content[:4096].ljust(len(content), b"\0")
    path.write_bytes(content)
    manifest = {"sha256": hashlib.sha256(content).hexdigest(), "worked_on": []}
    path.with_suffix(".json").write_text(json.dumps(manifest))


def test_a_library_from_elsewhere_that_does_not_work_is_built_anew(use):
    path = use.fill()
    make_it_crash(path)
    assert use() == path
    assert use.builds() == 1


def test_one_that_does_not_work_when_built_anew_is_given_up(use, home):
    path = use.fill()
    make_it_crash(path)
    shutil.copy(path, home / "broken.so")
    script = use.compiler.read_text()
    use.compiler.write_text(script.replace(str(LIBRARY), str(home / "broken.so")))
    with pytest.raises(BuildError, match=r"^the trial of the built kernels failed \(.+\)$"):
        use()
    assert use.builds() == 1
    assert not list(path.parent.glob("build-*"))


def test_without_a_compiler_a_library_that_was_brought_is_tried(use, monkeypatch):
    path = use.fill()
    manifest = path.with_suffix(".json")
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "worked_on": []}))
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", "")
    assert use() == path
    make_it_crash(path)
    with pytest.raises(BuildError, match="the trial of the built kernels failed"):
        use()
    flip_a_bit(path)
    with pytest.raises(BuildError, match="no C[+][+] compiler"):
        use()


def test_the_trial_runs_nothing_of_the_current_directory(home, monkeypatch):
    for name in ("json", "runpy", "numpy", "mxnet", "requests", "sitecustomize", "ctypes"):
        (home / f"{name}.py").write_text(
            f"open({str(home / 'executed')!r}, 'a').write({name!r})\nraise SystemExit(1)"
        )
    monkeypatch.chdir(home)
    for relative in ("", "."):
        monkeypatch.setattr(sys, "path", [relative, *sys.path])
    obtain.try_in_subprocess(LIBRARY)
    assert not (home / "executed").exists()


THREADS = """
import threading
import numpy as np
import gluon_amp as amp
import mxnet as mx
from gluon_amp.lowering import bfloat16, native

start, results = threading.Barrier(8), []
policies = ["float16", "bfloat16"] if bfloat16.is_native() else ["float16"]


def work(number):
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Conv2D(8, 3, in_channels=3), mx.gluon.nn.BatchNorm(in_channels=8))
    net.initialize()
    start.wait()
    amp.cast(net, policies[number % len(policies)])
    net.hybridize(static_alloc=True)
    with mx.autograd.record():
        loss = net(mx.nd.ones((2, 3, 8, 8))).sum()
    loss.backward()
    results.append((kernels.available(), bool(np.isfinite(loss.asscalar()))))


threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(results == [(True, True)] * 8)
"""


def test_eight_threads_at_first_use_all_get_the_kernels(use, tmp_path):
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "GLUON_AMP_NATIVE": "",
    }
    done = subprocess.run(
        [sys.executable, "-c", THREADS],
        env=environment,
        cwd=str(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("Building gluon_amp's C++ kernels")
    assert use.builds() == 1


# ------------------------------------------------------------------------------------- its failures


def fails(code):
    with pytest.raises(BuildError) as caught:
        build.run([sys.executable, "-c", code], what="g++")
    return str(caught.value)


@pytest.mark.parametrize(
    "output, reason",
    [
        ("In file included from a.h:\nb.cc:1:2: error: no name\nc.cc: error: late", "b.cc:1:2: er"),
        ("/usr/bin/ld: cannot find -lomp\nclang: error: linker command failed", "/usr/bin/ld: can"),
        ("a.o: undefined reference to `f'\ncollect2: error: ld returned 1", "a.o: undefined ref"),
        (
            "/usr/bin/ld: warning: old\n/usr/bin/ld: failed to set\ncollect2: error",
            "/usr/bin/ld: f",
        ),
        ("nothing to see", "exit status 3"),
        ("", "exit status 3"),
    ],
)
def test_a_failure_names_the_first_error(output, reason):
    assert fails(f"print({output!r}); raise SystemExit(3)").startswith(f"g++ failed ({reason}")


def test_a_failure_of_python_names_the_error_below_the_traceback():
    assert fails("import none_such") == (
        "g++ failed (ModuleNotFoundError: No module named 'none_such')"
    )


def test_a_crash_and_a_hang_are_named():
    assert fails("import os; os.kill(os.getpid(), 11)") == "g++ failed (killed by SIGSEGV)"
    with pytest.raises(BuildError, match="^sleep took more than 0.1 seconds$"):
        build.run(["sleep", "60"], timeout=0.1)


@pytest.mark.parametrize("command", ["'", "/none/such", "\\", "\n"])
def test_any_text_for_a_compiler(command, monkeypatch):
    monkeypatch.setenv("CXX", command)
    compiler = build.compiler()
    if command.strip() and compiler is not None:
        with pytest.raises(BuildError, match="cannot be run"):
            build.run([*compiler, "--version"])
