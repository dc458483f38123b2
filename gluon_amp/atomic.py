"""Files and folders that are either the old one or the new one, whenever the power fails."""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Iterator, Tuple

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

    Gives an empty folder beside `path` to write to. It replaces `path` when the block ends, and is
    removed when the block raises; one that a killed writer has left is emptied and used again.

    Parameters
    ----------
    path : str or os.PathLike

    Raises
    ------
    InUseError
        Another process is writing this folder now.
    """
    path = os.path.abspath(os.fspath(path))
    unfinished, replaced = path + SUFFIX, path + ".replaced"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor = _locked_folder(unfinished)
    try:
        for entry in os.scandir(unfinished):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry)
            else:
                os.unlink(entry)
        yield Path(unfinished)
        shutil.rmtree(replaced, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, replaced)
        os.rename(unfinished, path)
        shutil.rmtree(replaced, ignore_errors=True)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    finally:
        os.close(descriptor)
    _sync_folder(os.path.dirname(path))


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


def _sync_folder(folder: str) -> None:
    """Make the new name itself durable, where the system can open folders."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
