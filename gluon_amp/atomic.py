"""Files that are either the old one or the new one, whenever the power fails."""

import contextlib
import fcntl
import os
import re
import tempfile
from typing import Tuple

SUFFIX = ".unfinished"
TEMPORARY = re.compile(r".+\.[a-z0-9_]{8}" + re.escape(SUFFIX))  # as tempfile.mkstemp names them


def write(path, data: bytes) -> None:
    """Write a file so that a crash at any moment leaves the previous content or all of the new.

    The bytes go to a temporary file in the same folder, to the disk, and only then to the name.
    Temporary files in that folder whose writers were killed are removed.

    Parameters
    ----------
    path : str or os.PathLike
    data : bytes
    """
    path = os.path.abspath(os.fspath(path))
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
