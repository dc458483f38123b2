"""The cache of the C++ library: only intact, tried code of the user is ever loaded."""

import grp
import os
import pwd
from pathlib import Path

import pytest

from gluon_amp.kernels import build, cache
from gluon_amp.kernels.build import BuildError

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can change the owner of a file"
)


# -------------------------------------------------------------------------------- a library's bytes


@pytest.fixture
def stored(tmp_path):
    """A library in a cache."""
    library = tmp_path / cache.file_name(b"code" * 1000)
    library.write_bytes(b"code" * 1000)
    library.chmod(0o600)
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


@pytest.mark.parametrize("damage", sorted(DAMAGE))
def test_damage_is_seen(stored, damage):
    assert cache.intact(stored)
    DAMAGE[damage](stored)
    assert not cache.intact(stored)


@needs_root
def test_another_users_file_is_intact_only_in_the_wheel(stored, monkeypatch):
    os.chown(stored, 12345, 12345)
    assert not cache.intact(stored)
    monkeypatch.setattr(cache, "PREBUILT", stored.parent)
    assert cache.intact(stored)
    flip_a_bit(stored)
    assert not cache.intact(stored)


@pytest.mark.parametrize(
    "part, other",
    [("FLAGS", []), ("MXNET_MACROS", {}), ("SOURCES", Path("/none"))],
)
def test_a_library_of_other_sources_is_not_used(stored, part, other, monkeypatch):
    assert [*cache.libraries(stored.parent)] == [stored]
    monkeypatch.setattr(build, part, other)
    monkeypatch.setattr(cache, "source_digest", build.source_digest.__wrapped__)
    assert not cache.intact(stored) and not [*cache.libraries(stored.parent)]


def test_a_library_is_tried_once_on_each_machine(stored, monkeypatch):
    here = cache.trial(stored.parent, stored)
    monkeypatch.setattr(cache.hardware, "cpu_flags", lambda: frozenset({"avx2"}))
    there = cache.trial(stored.parent, stored)
    assert here != there
    monkeypatch.undo()
    assert here == cache.trial(stored.parent, stored)


# --------------------------------------------------------------------------------------- the folder


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


@pytest.mark.parametrize("xdg", ["", "./x", "~/.cache", None])
def test_xdg_cache_home_counts_if_it_is_absolute(home, monkeypatch, xdg):
    monkeypatch.chdir(home)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "x" / "y") if xdg is None else xdg)
    expected = home / (".cache" if xdg is not None else "x/y") / "gluon_amp"
    assert cache.folder() == expected
    assert [path.name for path in home.iterdir()] == [expected.relative_to(home).parts[0]]


def test_without_a_home_the_password_database_has_it(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOME", raising=False)
    database = os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".cache", "gluon_amp")
    assert cache.folder() == Path(os.path.realpath(database))

    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for home in (None, "here"):
        if home is not None:
            monkeypatch.setenv("HOME", home)
        with pytest.raises(BuildError, match="no home folder is known.*set XDG_CACHE_HOME"):
            cache.folder()
    assert not list(tmp_path.iterdir())


# How deep a folder is above the cache, its mode, and why it is refused, if it is
MODES = [
    *((0, mode, "run 'chmod go-w ") for mode in (0o777, 0o702, 0o1777)),
    *((1, mode, "run 'chmod go-w ") for mode in (0o777, 0o757)),
    (0, 0o755, None),
    (1, 0o1777, None),  # sticky
]


@pytest.mark.parametrize("depth, mode, refused", MODES)
def test_what_others_may_write_or_rename_is_refused(home, depth, mode, refused):
    folder = cache.folder()
    folders = [folder, folder.parent]
    folders[depth].chmod(mode)
    if refused is None:
        assert cache.folder() == folder
    else:
        with pytest.raises(BuildError, match=refused) as caught:
            cache.folder()
        assert str(folders[depth]) in str(caught.value)


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("depth", [0, 1])
def test_what_a_group_writes_is_refused_unless_it_is_the_users_own(
    home, monkeypatch, depth, private
):
    class Group:
        gr_name = pwd.getpwuid(os.geteuid()).pw_name if private else "staff"

    folder = cache.folder()
    [folder, folder.parent][depth].chmod(0o775)
    monkeypatch.setattr(grp, "getgrgid", lambda gid: Group)
    if private:
        assert cache.folder() == folder
    else:
        with pytest.raises(BuildError, match="other users can write to the cache's folder"):
            cache.folder()


@needs_root
@pytest.mark.parametrize("depth", [0, 1])
def test_another_users_folder_is_refused(home, depth):
    folder = cache.folder()
    os.chown([folder, folder.parent][depth], 12345, 12345)
    with pytest.raises(BuildError, match="belongs to another user; set XDG_CACHE_HOME"):
        cache.folder()


def test_links_are_followed_once_and_what_is_no_folder_is_refused(home):
    (home / "disk").mkdir(mode=0o700)
    (home / ".cache").symlink_to(home / "disk")
    assert cache.folder() == home / "disk" / "gluon_amp"
    (home / "disk" / "gluon_amp").rmdir()
    (home / "disk" / "gluon_amp").write_text("")
    with pytest.raises(BuildError, match="cannot be used .*File exists"):
        cache.folder()
    (home / "disk" / "gluon_amp").unlink()
    (home / "disk" / "gluon_amp").symlink_to("gluon_amp")  # to itself
    with pytest.raises(BuildError, match="cannot be used"):
        cache.folder()
