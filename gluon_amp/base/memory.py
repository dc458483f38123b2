"""Reads MXNet's objects from memory, where no function of its C API returns what they contain.

The places are those of one build, so whoever reads checks them first with objects of its own. That
is done by a file: there, a wrong address is an `OSError` and not the end of the process.
"""

import contextlib
import ctypes
from typing import Callable, Iterator

Reader = Callable[[int], int]  # returns the 8 bytes at an address as a number

# What a wrong place leads to
NO_SUCH_PLACE = (KeyError, OSError, OverflowError, ValueError)


def word(address: int) -> int:
    """Return the 8 bytes at an address, which has to be right."""
    return ctypes.c_uint64.from_address(address).value


@contextlib.contextmanager
def by_file() -> Iterator[Reader]:
    """Yield what reads as `word` does, and raises an `OSError` for a wrong address."""
    with open("/proc/self/mem", "rb", buffering=0) as memory:

        def read(address: int) -> int:
            memory.seek(address)
            return int.from_bytes(memory.read(8), "little")

        yield read
