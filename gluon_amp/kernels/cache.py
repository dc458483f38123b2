"""Stores the C++ library between processes, so that its bytes can be trusted.

The folder is `$XDG_CACHE_HOME/gluon_amp` or `~/.cache/gluon_amp`. Code is loaded from it, so only
the user and root may be able to change its contents. A library's name contains the digest of its
sources and the SHA-256 digest of its bytes. One that is truncated or damaged would crash the
process, so it is never loaded. An empty file says that a library passed its trial on a machine.
"""

import contextlib
import fcntl
import grp
import hashlib
import logging
import os
import platform
import pwd
import stat
from pathlib import Path
from typing import Iterator

from gluon_amp.base import hardware
from gluon_amp.base.locks import lock
from gluon_amp.kernels.build import BuildError, source_digest

import mxnet as mx

logger = logging.getLogger("gluon_amp")

# The library that a wheel for manylinux contains. It stays there, and the cache has its trials.
PREBUILT = Path(__file__).with_name("prebuilt")

_REMEDY = "set XDG_CACHE_HOME to a folder of your own"


# ------------------------------------------------------------------------------------- the folder


def folder(create: bool = True) -> Path:
    """Return the folder for libraries, in which no other user can change anything."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):  # the XDG Base Directory Specification ignores a relative one
        home = os.path.expanduser("~/.cache")
    if not os.path.isabs(home):
        raise BuildError(f"no home folder is known for the cache; {_REMEDY}")
    # Symbolic links are resolved once, since they could be redirected later.
    place = Path(os.path.realpath(os.path.join(home, "gluon_amp")))
    try:
        for each in [*reversed(place.parents), place]:
            if create:  # for this user alone, as the XDG specification says
                each.mkdir(0o700, exist_ok=True)
            _refuse_if_others_can_change(each, sticky=each != place)
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}"
        raise BuildError(f"the cache folder {place} cannot be used ({reason})") from None
    if create and not os.access(place, os.W_OK):
        raise BuildError(f"the cache folder {place} cannot be written; {_REMEDY}")
    return place


def _refuse_if_others_can_change(place: Path, sticky: bool) -> None:
    """Raise an error if other users could change or rename what is in a folder."""
    status = place.stat()
    if not _trusted(status):
        raise BuildError(f"the cache's folder {place} belongs to another user; {_REMEDY}")
    mode = status.st_mode
    if sticky and mode & stat.S_ISVTX:  # such as /tmp: only owners may rename
        return
    if mode & stat.S_IWOTH or (mode & stat.S_IWGRP and not _private_group(status.st_gid)):
        raise BuildError(
            f"other users can write to the cache's folder {place}; "
            f"run 'chmod go-w {place}', or {_REMEDY}"
        )


def _trusted(status: os.stat_result) -> bool:
    """Return whether a file belongs to this user or to root."""
    return status.st_uid in (os.geteuid(), 0, os.stat("/").st_uid)


def _private_group(gid: int) -> bool:
    """Return whether a group is the user's own, by its name: the rule of pam_umask's usergroups."""
    try:
        return grp.getgrgid(gid).gr_name == pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False


@contextlib.contextmanager
def locked(place: Path) -> Iterator[None]:
    """Lock the cache: one process at a time builds, the others wait and then find the result."""
    with open(place / "lock", "w") as file:
        # Some file systems have no locks. Two processes may build there, which only costs time:
        # each builds in its own folder and moves the whole library into place.
        if lock(file) is False:
            logger.warning("Waiting for another process that builds gluon_amp's C++ kernels.")
            lock(file, wait=True)
        try:
            yield
        finally:  # a child that was forked in the meantime shares the open file
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)


# ------------------------------------------------------------------------------------ the libraries


def file_name(content: bytes) -> str:
    """Return the name of a library with these bytes, compiled from the present sources."""
    return f"native-{source_digest()}-{hashlib.sha256(content).hexdigest()[:32]}.so"


def libraries(place: Path) -> Iterator[Path]:
    """Yield the libraries in the cache, then the one of the wheel; they may be damaged."""
    yield from sorted(place.glob(f"native-{source_digest()}-*.so"))
    yield from PREBUILT.glob("*.so")


def intact(path: Path) -> bool:
    """Return whether a library has the bytes that its name says, which no other user can change.

    The file of a wheel may belong to anybody: the Python code beside it does, too.
    """
    of_wheel = path.parent == PREBUILT
    try:
        status = os.stat(path, follow_symlinks=of_wheel)
        private = _trusted(status) and not status.st_mode & 0o022
        regular = stat.S_ISREG(status.st_mode)
        return regular and (private or of_wheel) and file_name(path.read_bytes()) == path.name
    except OSError:
        return False


def trial(place: Path, path: Path) -> Path:
    """Return the empty file that exists if a library passed its trial on this machine."""
    return place / f"{path.stem}.{machine()}"


def machine() -> str:
    """Return a digest of all that a library depends on besides its own bytes."""
    mxnet = os.stat(mx.libinfo.find_lib_path()[0])
    system = [sorted(hardware.cpu_flags()), platform.release(), platform.libc_ver()]
    parts = [*system, mxnet.st_size, mxnet.st_mtime_ns]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
