"""Files and folders that are either the old one or the new one, whenever the power fails."""

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Iterator, Optional, Tuple

SUFFIX = ".unfinished"
TEMPORARY = re.compile(r".+\.[a-z0-9_]{8}" + re.escape(SUFFIX))  # as tempfile.mkstemp names them


def write(path, data: bytes) -> None:
    """Write a file so that a crash at any moment leaves the previous content or all of the new.

    The bytes go to a temporary file in the same folder, to the disk, and only then to the name.
    Temporary files in that folder whose writers were killed are removed. A device or a pipe is
    written to as it is: a file in the place of /dev/null would harm every other program.

    Parameters
    ----------
    path : str or os.PathLike
    data : bytes
    """
    path = os.path.abspath(os.fspath(path))
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        with open(path, "wb") as stream:
            stream.write(data)
        return
    folder = os.path.dirname(path)
    remove_leftovers(folder)
    descriptor, temporary = _locked_temporary(path)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)  # before the lock is let go
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync_folder(folder)


class InUseError(RuntimeError):
    """Another process is writing the same folder."""


@contextlib.contextmanager
def folder(path) -> Iterator[Path]:
    """Make a folder that gets its name only when all that is in it is written.

    Yields an empty folder beside `path` to write to. When the block ends, its files are flushed to
    the disk and it replaces `path`. When the block raises, the folder is removed. A folder left by
    a writer that was killed is emptied and used again.

    The replacement is one system call where the file system can exchange two names (Linux's
    `renameat2` with `RENAME_EXCHANGE`). Elsewhere it is two renames: a writer that is killed
    between them leaves the old folder as `path` + ``.replaced``, and the next writer puts it back
    before it does anything else.

    Parameters
    ----------
    path : str or os.PathLike

    Raises
    ------
    InUseError
        Another process is writing this folder now.
    """
    path = os.path.abspath(os.fspath(path))
    unfinished, replaced, removed = path + SUFFIX, path + ".replaced", path + ".removed"
    parent = os.path.dirname(path)
    os.makedirs(parent, exist_ok=True)
    with contextlib.ExitStack() as locks:
        locks.callback(os.close, _locked_folder(unfinished))
        _put_back(replaced, path)
        # The old folder gets the name `unfinished` in an exchange. Its lock keeps other writers
        # from taking it for a leftover, until this one has given it a name that nobody uses.
        old = _lock_when_free(path)
        if old is not None:
            locks.callback(os.close, old)
        for leftover in (replaced, removed, *(entry.path for entry in os.scandir(unfinished))):
            _remove(leftover)
        try:
            yield Path(unfinished)
            _sync_tree(unfinished)
            outdated = _replace(path, unfinished, replaced)
        except BaseException:
            _put_back(replaced, path)
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        _sync_folder(parent)
        if outdated is not None:
            # Rename it first: a folder that is partly removed must never be put back.
            os.rename(outdated, removed)
            _remove(removed)


def _replace(path: str, new: str, aside: str) -> Optional[str]:
    """Give a new folder its name, and return where the old one is now, if there was one."""
    try:
        _exchange(new, path)
        return new
    except FileNotFoundError:
        os.rename(new, path)
        return None
    except OSError as error:
        if error.errno not in NO_EXCHANGE:
            raise
    os.rename(path, aside)
    os.rename(new, path)
    return aside


def _put_back(aside: str, path: str) -> None:
    """Undo the first of the two renames of `_replace`, if the second one was not made."""
    if os.path.lexists(aside) and not os.path.lexists(path):
        os.rename(aside, path)
        _sync_folder(os.path.dirname(path))


# Linux's <linux/fs.h> and <fcntl.h>
RENAME_EXCHANGE, AT_FDCWD = 2, -100
# Errors of renameat2 where the kernel, the file system or the container has no exchange.
NO_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM}


def _exchange(one: str, other: str) -> None:
    """Exchange two names in one system call.

    Raises
    ------
    FileNotFoundError
        One of them does not exist.
    OSError
        With an `errno` in `NO_EXCHANGE` where names cannot be exchanged.
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # glibc 2.28
    if renameat2 is None:
        if not os.path.lexists(other):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), other)
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), one, None, other)
    names = os.fsencode(one), os.fsencode(other)
    if renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), one, None, other)


def _remove(path: str) -> None:
    """Remove a folder, a file or a link, if it is there."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _locked_folder(path: str) -> int:
    """Make a folder or take over one that nobody holds, and lock it for as long as it is open."""
    while True:
        os.makedirs(path, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue  # its writer has just finished
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise InUseError(f"another process is writing {path}") from None
        except OSError:  # no locks here
            return descriptor
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                return descriptor
        os.close(descriptor)  # its writer has just finished


def _lock_when_free(path: str) -> Optional[int]:
    """Lock a folder, after the writer that has just finished it has released it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:  # there is none, or it is not for us to read
        return None
    with contextlib.suppress(OSError):  # no locks here
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def remove_leftovers(folder: str) -> None:
    """Remove the temporary files of killed writers.

    A writer keeps its file locked, and the system unlocks it when the writer ends, however it does.
    """
    for entry in os.listdir(folder):
        if TEMPORARY.fullmatch(entry):
            path = os.path.join(folder, entry)
            with contextlib.suppress(OSError):  # in use, gone already, or not ours to remove
                descriptor = os.open(path, os.O_RDWR)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(path)
                finally:
                    os.close(descriptor)


def _locked_temporary(path: str) -> Tuple[int, str]:
    """Make a temporary file beside a file, and lock it for as long as it is open."""
    while True:
        descriptor, temporary = tempfile.mkstemp(
            prefix=os.path.basename(path) + ".", suffix=SUFFIX, dir=os.path.dirname(path)
        )
        with contextlib.suppress(OSError):  # no locks here, so nobody can remove it either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, temporary
        os.close(descriptor)  # another process took it for a leftover before it was locked


def _umask() -> int:
    # mkstemp makes private files, and there is no way to read the mask but to set it.
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_tree(folder: str) -> None:
    """Flush a folder to the disk, with all files and folders in it.

    Linux's `syncfs` does that in one call, and reports errors since Linux 5.8. A flush of the disk
    for each of ten thousand images would take half a minute.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if _syncfs(descriptor):
            return
    finally:
        os.close(descriptor)
    for root, _, files in os.walk(folder):
        for name in files:
            path = os.path.join(root, name)
            if os.path.isfile(path) and not os.path.islink(path):
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        _sync_folder(root)


def _syncfs(descriptor: int) -> bool:
    """Flush a whole file system to the disk; return False where there is no such call."""
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        return False
    if syncfs(descriptor):
        number = ctypes.get_errno()
        if number == errno.ENOSYS:
            return False
        raise OSError(number, os.strerror(number))
    return True


def _sync_folder(folder: str) -> None:
    """Make the new name itself durable, where the system can open folders."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
