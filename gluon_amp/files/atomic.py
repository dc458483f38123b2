"""Atomic writes of files and folders: after a crash there is the old one or the new one."""

import contextlib
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Iterator, Optional, Tuple, Union

from gluon_amp.base.locks import lock

SUFFIX = ".unfinished"
TEMPORARY = re.compile(r".+\.[a-z0-9_]{8}" + re.escape(SUFFIX))  # as tempfile.mkstemp names them


def write(path: Union[str, "os.PathLike[str]"], data: bytes) -> None:
    """Write a file so that a crash at any moment leaves the old content or all of the new.

    The bytes are written to a temporary file in the same folder and flushed to the disk, and only
    then the file is renamed. Temporary files of killed writers in the folder are removed. A device
    or a pipe is written directly: a file in the place of /dev/null would harm every other program.
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
            os.replace(temporary, path)  # before the lock is released
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync_folder(folder)


class InUseError(RuntimeError):
    """Another process is writing the same folder."""


@contextlib.contextmanager
def folder(path: Union[str, "os.PathLike[str]"]) -> Iterator[Path]:
    """Create a folder that gets its name only when all its files are written.

    Yields an empty folder beside `path`. When the block ends, the folder's files are flushed to the
    disk and it replaces `path`. When the block or the flush raises, the folder is removed. If a
    killed writer has left its folder, that one is emptied and used again.

    The replacement is two renames. A writer that is killed between them leaves the old folder as
    `path` + ``.replaced``, and the next writer restores it first. While another process is writing
    the folder, that is an `InUseError`.
    """
    path = os.path.abspath(os.fspath(path))
    unfinished, replaced, removed = path + SUFFIX, path + ".replaced", path + ".removed"
    parent = os.path.dirname(path)
    os.makedirs(parent, exist_ok=True)
    with contextlib.ExitStack() as locks:
        locks.callback(os.close, _locked_folder(unfinished))
        _restore(replaced, path)
        # A writer that is just finishing holds a lock on the folder that it has renamed to `path`.
        old = _lock_when_free(path)
        if old is not None:
            locks.callback(os.close, old)
        for leftover in (replaced, removed, *(entry.path for entry in os.scandir(unfinished))):
            _remove(leftover)
        try:
            yield Path(unfinished)
            os.sync()  # one flush for each of ten thousand images would take half a minute
            for file in filter(Path.is_file, Path(unfinished).rglob("*")):
                _sync(file)  # it is clean by now, but this reports the errors of its flush
            if os.path.lexists(path):
                os.rename(path, replaced)
            os.rename(unfinished, path)
        except BaseException:
            _restore(replaced, path)
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        _sync_folder(parent)
        if os.path.lexists(replaced):
            os.rename(replaced, removed)  # a folder that is partly removed must never be restored
            _remove(removed)


def _restore(aside: str, path: str) -> None:
    """Undo the first of the two renames of `folder`, if the second one is missing."""
    if os.path.lexists(aside) and not os.path.lexists(path):
        os.rename(aside, path)
        _sync_folder(os.path.dirname(path))


def _remove(path: str) -> None:
    """Remove a folder, a file or a link, if it exists."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _locked_folder(path: str) -> int:
    """Create a folder, or use an existing one that is not locked, and return a lock on it."""
    while True:
        # Not os.makedirs: it raises if another writer renames the folder between its two calls.
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # its writer has just finished
        if lock(descriptor) is False:
            os.close(descriptor)
            raise InUseError(f"another process is writing {path}")
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                return descriptor
        os.close(descriptor)  # its writer has just finished


def _lock_when_free(path: str) -> Optional[int]:
    """Wait until a writer that is just finishing releases a folder, and return a lock on it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:  # it does not exist, or is not readable
        return None
    lock(descriptor, wait=True)
    return descriptor


def remove_leftovers(folder: str) -> None:
    """Remove the temporary files of killed writers from a folder.

    A writer holds a lock on its file, which the system releases when the process ends in any way.
    """
    for entry in os.listdir(folder):
        if TEMPORARY.fullmatch(entry):
            path = os.path.join(folder, entry)
            with contextlib.suppress(OSError):  # removed already, or not permitted
                descriptor = os.open(path, os.O_RDWR)
                try:
                    if lock(descriptor):
                        os.unlink(path)
                finally:
                    os.close(descriptor)


def _locked_temporary(path: str) -> Tuple[int, str]:
    """Create a temporary file beside a file, and return its locked descriptor and its path."""
    while True:
        descriptor, temporary = tempfile.mkstemp(
            prefix=os.path.basename(path) + ".", suffix=SUFFIX, dir=os.path.dirname(path)
        )
        lock(descriptor, wait=True)  # where there are no locks, no process removes it either
        if os.fstat(descriptor).st_nlink:
            return descriptor, temporary
        os.close(descriptor)  # another process removed it as a leftover before it was locked


def _umask() -> int:
    # mkstemp creates private files, and the mask can only be read by setting it.
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync(path: Union[str, Path]) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: str) -> None:
    """Flush the names in a folder to the disk, if the system can open folders."""
    with contextlib.suppress(OSError):
        _sync(folder)
