"""The cache of the C++ library: only intact, tried code of the user is ever loaded."""

import os
import time

import pytest

from gluon_amp.kernels import cache
from gluon_amp.kernels.build import BuildError
from gluon_amp.kernels.cache import CachedLibrary

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


def replace(path, make):
    path.rename(path.with_suffix(".elsewhere"))
    make(path)


DAMAGE = {
    "truncated": lambda path: os.truncate(path, 10),
    "empty": lambda path: os.truncate(path, 0),
    "a bit flipped": flip_a_bit,
    "missing": lambda path: path.unlink(),
    "a folder": lambda path: replace(path, lambda p: (p / "something").mkdir(parents=True)),
    "a link": lambda path: replace(path, lambda p: p.symlink_to(p.with_suffix(".elsewhere"))),
    "a pipe": lambda path: replace(path, os.mkfifo),
    "writable by others": lambda path: path.chmod(0o602),
}


def test_a_stored_library_is_intact_and_worked_here(stored):
    assert stored.intact()
    assert stored.worked_here()
    assert stored.path.stat().st_mode & 0o777 == 0o600
    assert [path.suffix for path in sorted(stored.path.parent.iterdir())] == [".json", ".so"]


@pytest.mark.parametrize("damage", sorted(DAMAGE))
@pytest.mark.parametrize("part", ["path", "manifest"])
def test_damage_is_seen_and_replaced(stored, part, damage):
    DAMAGE[damage](getattr(stored, part))
    assert not stored.intact()
    built = stored.path.with_name("built.so")
    built.write_bytes(b"new code")
    stored.store(built)
    assert stored.intact()
    assert stored.path.read_bytes() == b"new code"


@needs_root
@pytest.mark.parametrize("part", ["path", "manifest"])
def test_another_users_file_is_not_intact(stored, part):
    os.chown(getattr(stored, part), 12345, 12345)
    assert not stored.intact()


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", '"sha256"', "{", "[" * 100000, "\ud800"),
        *('{"sha256": null}', '{"sha256": ["x"]}', '{"worked_on": 3}'),
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


@pytest.mark.parametrize("relative", ["", "./x", "~/.cache"])
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


@pytest.mark.parametrize("mode", [0o775, 0o702, 0o1777])
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
