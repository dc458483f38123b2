"""Files that are either the old one or the new one, whenever the power fails."""

import contextlib
import os
import tempfile


def write(path, data: bytes) -> None:
    """Write a file so that a crash at any moment leaves the previous content or all of the new.

    The bytes go to a temporary file in the same folder, to the disk, and only then to the name.

    Parameters
    ----------
    path : str or os.PathLike
    data : bytes
    """
    path = os.path.abspath(os.fspath(path))
    folder = os.path.dirname(path)
    descriptor, temporary = tempfile.mkstemp(prefix=os.path.basename(path) + ".", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync_folder(folder)


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
