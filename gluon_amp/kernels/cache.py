"""Stores the built C++ library between processes, so that its bytes can be trusted.

The folder is `$XDG_CACHE_HOME/gluon_amp` or `~/.cache/gluon_amp`. Code is loaded from it, so only
the user and root may be able to change its contents. Each library has a manifest in JSON, written
last, with the SHA-256 digest of the library's bytes. A library that is truncated, damaged or does
not match its manifest would crash the process, so it is never loaded.
"""

import contextlib
import fcntl
import grp
import hashlib
import json
import logging
import os
import platform
import pwd
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import Iterator, List, Optional

from gluon_amp.base import hardware
from gluon_amp.base.locks import lock
from gluon_amp.kernels.build import BuildError, mxnet_library

logger = logging.getLogger("gluon_amp")

# Build folders that a killed process left are removed after this many seconds.
ABANDONED = 3600

_REMEDY = "set XDG_CACHE_HOME to a folder of your own"


# ------------------------------------------------------------------------------------- the folder


def folder(create: bool = True) -> Path:
    """Return the folder for libraries, in which no other user can change anything."""
    # Symbolic links are resolved once, since they could be redirected later.
    place = Path(os.path.realpath(os.path.join(home(), "gluon_amp")))
    try:
        for ancestor in reversed(place.parents):
            if create:
                _make(ancestor)
            _refuse_if_others_may_rename(ancestor)
        if create:
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


def home() -> str:
    """Return the folder for the user's caches, as the XDG Base Directory Specification has it."""
    variable = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(variable):  # the specification ignores a relative one
        return variable
    user = os.environ.get("HOME", "")
    if not os.path.isabs(user):
        try:
            user = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            raise BuildError(f"no home folder is known for the cache; {_REMEDY}") from None
    return os.path.join(user, ".cache")


def _make(place: Path) -> None:
    """Create a folder for this user alone, as the XDG specification says, if it does not exist."""
    if not place.exists():
        place.mkdir(0o700, exist_ok=True)


def _trusted(status: os.stat_result) -> bool:
    """Return whether a file belongs to this user or to root."""
    return status.st_uid in (os.geteuid(), 0, os.stat("/").st_uid)


def _refuse_if_others_may_rename(ancestor: Path) -> None:
    """Raise an error if other users could rename the folders inside a parent folder."""
    status = ancestor.stat()
    if not _trusted(status):
        raise BuildError(f"the cache's parent folder {ancestor} belongs to another user; {_REMEDY}")
    mode = status.st_mode
    if mode & stat.S_ISVTX:  # sticky, such as /tmp: only owners may rename
        return
    if mode & stat.S_IWOTH or (mode & stat.S_IWGRP and not _private_group(status.st_gid)):
        raise BuildError(
            f"other users can write to the cache's parent folder {ancestor}; "
            f"run 'chmod go-w {ancestor}', or {_REMEDY}"
        )


def _private_group(gid: int) -> bool:
    """Return whether a group is the user's private group, which Debian and Red Hat create.

    It is if it has the user's name: the rule of pam_umask's `usergroups`.
    """
    try:
        return grp.getgrgid(gid).gr_name == pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False


@contextlib.contextmanager
def locked(place: Path) -> Iterator[None]:
    """Lock the cache: one process at a time builds, the others wait and then find the result."""
    descriptor = os.open(place / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        # Some file systems have no locks. Two processes may build there, which only
        # costs time: each builds in its own folder and moves the whole library into place.
        if lock(descriptor) is False:
            logger.warning("Waiting for another process that builds gluon_amp's C++ kernels.")
            lock(descriptor, wait=True)
        yield
    finally:
        # Unlock explicitly, since a child that was forked in the meantime shares the descriptor.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


@contextlib.contextmanager
def build_folder(place: Path) -> Iterator[Path]:
    """Yield an empty folder on the cache's file system, and remove it afterwards."""
    for old in place.glob("build-*"):
        with contextlib.suppress(OSError):
            if time.time() - old.lstat().st_mtime > ABANDONED:
                shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=place, prefix="build-") as temporary:
        yield Path(temporary)


# -------------------------------------------------------------------------------------- a library


class CachedLibrary:
    """A library in the cache, which may not exist, and its manifest."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = path.with_suffix(".json")

    def intact(self) -> bool:
        """Return whether the library exists and has the bytes that were stored."""
        digest = self._read_manifest().get("sha256")
        return digest is not None and digest == _digest(self.path)

    def worked_here(self) -> bool:
        """Return whether the library passed its trial on this machine."""
        return machine() in self._worked_on()

    def store(self, built: Path) -> None:
        """Move a library that was built and passed its trial here into the cache."""
        os.chmod(built, 0o600)
        digest = _digest(built)
        _replace(built, self.path)
        self._write_manifest({"sha256": digest, "worked_on": [machine()]})

    def note_that_it_works_here(self) -> None:
        """Record that the library passed its trial on this machine."""
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
    """Return a digest of all that a library depends on besides its own bytes."""
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
    """Return the bytes of a regular file that no other user can write to, None otherwise."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
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
    """Move a file to a path, replacing a file or folder there."""
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    os.replace(source, target)
