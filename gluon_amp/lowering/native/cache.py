"""Where the built C++ library is kept between processes, and why its bytes can be trusted.

The folder is `$XDG_CACHE_HOME/gluon_amp` or `~/.cache/gluon_amp`. Code is loaded from it, so nobody
but the user (or root) may be able to change what is in it. Beside each library is a manifest in
JSON with the SHA-256 digest of the library's bytes, which is written last. A library that is
truncated, damaged or does not match its manifest is never loaded, as it would end the process.
"""

import contextlib
import hashlib
import json
import logging
import os
import platform
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import Iterator, List, Optional

from gluon_amp import hardware
from gluon_amp.lowering.native.build import BuildError, mxnet_library

logger = logging.getLogger("gluon_amp")

# Folders of builds that were killed are removed after this many seconds.
ABANDONED = 3600

_REMEDY = "set XDG_CACHE_HOME to a folder of your own"


# ------------------------------------------------------------------------------------- the folder


def folder() -> Path:
    """Return the folder for libraries, created if necessary, and safe to load code from.

    Raises
    ------
    BuildError
        Another user could change what is in it, or it cannot be created.
    """
    # from here on without symbolic links, which could be pointed elsewhere later
    place = Path(os.path.realpath(os.path.join(_cache_home(), "gluon_amp")))
    try:
        for ancestor in reversed(place.parents):
            _make(ancestor)
            _refuse_if_others_may_rename(ancestor)
        _make(place)
        status = place.stat()
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}"
        raise BuildError(f"the cache folder {place} cannot be used ({reason})") from None
    if not stat.S_ISDIR(status.st_mode):
        raise BuildError(f"the cache folder {place} is a file; remove it")
    if not _trusted(status):
        raise BuildError(f"the cache folder {place} belongs to another user; {_REMEDY}")
    if status.st_mode & 0o022:
        raise BuildError(f"other users can write to the cache folder {place}; delete it")
    return place


def _cache_home() -> str:
    # A relative $XDG_CACHE_HOME is to be ignored (XDG Base Directory Specification).
    named = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):
        return named
    home = os.environ.get("HOME", "")
    if not os.path.isabs(home):
        import pwd  # not on Windows, as grp and fcntl below

        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            raise BuildError(f"no home folder is known for the cache; {_REMEDY}") from None
    return os.path.join(home, ".cache")


def _make(place: Path) -> None:
    """Create a folder for this user alone, as in the XDG specification, if it does not exist."""
    if not place.exists():
        place.mkdir(0o700, exist_ok=True)


def _trusted(status: os.stat_result) -> bool:
    """Return whether a file belongs to this user, or to root."""
    return status.st_uid in (os.geteuid(), 0, os.stat("/").st_uid)


def _refuse_if_others_may_rename(ancestor: Path) -> None:
    """Refuse a parent folder in which other users could replace the next folder of the path."""
    status = ancestor.stat()
    if not _trusted(status):
        raise BuildError(f"the cache's parent folder {ancestor} belongs to another user; {_REMEDY}")
    mode = status.st_mode
    if mode & stat.S_ISVTX:  # as /tmp: only owners rename
        return
    if mode & stat.S_IWOTH or (mode & stat.S_IWGRP and not _private_group(status.st_gid)):
        raise BuildError(
            f"other users can write to the cache's parent folder {ancestor}; "
            f"run 'chmod go-w {ancestor}', or {_REMEDY}"
        )


def _private_group(gid: int) -> bool:
    """Return whether a group has this user alone, as Debian and Red Hat give each user one.

    The rule is that of pam_umask's `usergroups`: a group of the user's name.
    """
    import grp
    import pwd

    try:
        return grp.getgrgid(gid).gr_name == pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False


@contextlib.contextmanager
def locked(place: Path) -> Iterator[None]:
    """Build in one process at a time; the others wait, and then find the result."""
    import fcntl

    descriptor = os.open(place / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        # File systems without locks raise an OSError. There two may build, which costs time only:
        # each builds in a folder of its own and moves the whole library into place.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.warning("Waiting for another process that builds gluon_amp's C++ kernels.")
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            pass
        yield
    finally:
        # explicitly, since a child that was forked meanwhile has the descriptor, too
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


@contextlib.contextmanager
def build_folder(place: Path) -> Iterator[Path]:
    """Yield an empty folder on the file system of the cache, removed afterwards."""
    for old in place.glob("build-*"):
        with contextlib.suppress(OSError):
            if time.time() - old.lstat().st_mtime > ABANDONED:
                shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=place, prefix="build-") as temporary:
        yield Path(temporary)


# -------------------------------------------------------------------------------------- a library


class CachedLibrary:
    """A library in the cache and its manifest.

    Parameters
    ----------
    path : Path
        Of the library, whether or not it is there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = path.with_suffix(".json")

    def intact(self) -> bool:
        """Return whether the library is there, with the bytes that were stored."""
        digest = self._read_manifest().get("sha256")
        return digest is not None and digest == _digest(self.path)

    def worked_here(self) -> bool:
        """Return whether the trial of these bytes passed on this machine."""
        return machine() in self._worked_on()

    def store(self, built: Path) -> None:
        """Move a library that was built and tried here into the cache."""
        os.chmod(built, 0o600)
        digest = _digest(built)
        _replace(built, self.path)
        self._write_manifest({"sha256": digest, "worked_on": [machine()]})

    def note_that_it_works_here(self) -> None:
        """Add this machine to those on which the trial passed."""
        manifest = self._read_manifest()
        self._write_manifest({**manifest, "worked_on": [*self._worked_on(), machine()]})

    def _worked_on(self) -> List[str]:
        machines = self._read_manifest().get("worked_on")
        return machines if isinstance(machines, list) else []

    def _read_manifest(self) -> dict:
        content = _read(self.manifest)
        try:
            manifest = json.loads(content or b"{}")
        except (ValueError, RecursionError):  # ValueError: not JSON, or not text
            return {}
        return manifest if isinstance(manifest, dict) else {}

    def _write_manifest(self, manifest: dict) -> None:
        with tempfile.TemporaryDirectory(dir=self.path.parent, prefix="build-") as temporary:
            written = Path(temporary) / self.manifest.name
            written.write_text(json.dumps(manifest))
            os.chmod(written, 0o600)
            _replace(written, self.manifest)


def machine() -> str:
    """Return a name for what a library depends on apart from its own bytes."""
    mxnet = os.stat(mxnet_library())
    parts = [
        *sorted(hardware.cpu_flags()),
        platform.release(),
        *platform.libc_ver(),
        str(mxnet.st_size),
        str(mxnet.st_mtime_ns),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _read(path: Path) -> Optional[bytes]:
    """Return the bytes of a plain file that nobody else can write to; None for anything else."""
    try:
        # O_NONBLOCK: a pipe would wait for a writer
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not _trusted(status) or status.st_mode & 0o022:
            return None
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _digest(path: Path) -> Optional[str]:
    content = _read(path)
    return None if content is None else hashlib.sha256(content).hexdigest()


def _replace(source: Path, target: Path) -> None:
    """Move a file over whatever is there, which may be a folder."""
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    os.replace(source, target)
