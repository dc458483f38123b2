"""Locks of files, which the system releases when their process ends in any way."""

import fcntl
from typing import IO, Any, Optional, Union


def lock(file: Union[int, IO[Any]], wait: bool = False) -> Optional[bool]:
    """Lock an open file or folder, by its file object or its descriptor.

    Children of this process inherit the lock with the descriptor. The result is False if another
    process holds the lock and `wait` is False, and None if the file system has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
