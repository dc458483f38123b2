"""Reads idx files, the format of MNIST and its successors, plain or compressed by gzip.

The format (LeCun, Cortes and Burges, "The MNIST database of handwritten digits"): two zero bytes,
the code of a dtype, the number of dimensions, each dimension as a big-endian int32, the values.
"""

import gzip
import struct
import zlib
from pathlib import Path
from typing import IO, Any, Tuple

import numpy as np

from gluon_amp.training.data.source import DataError, open_file

UNSIGNED_BYTE = 0x08  # code of the dtype
GZIP_MAGIC = b"\x1f\x8b"
MAX_ITEMS = 1_000_000  # a forged header, or a file that expands a thousandfold, fills no memory


def read_idx(path: Path, item: Tuple[int, ...]) -> np.ndarray:
    """Return the items of an idx file of unsigned bytes, each of shape `item`: () for labels."""
    try:
        with open_file(path) as file:
            compressed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            file.seek(0)
            values: Any = gzip.GzipFile(fileobj=file) if compressed else file
            return _read(values, path, item)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise _malformed(path, "its compressed data are damaged or cut short") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None


def _read(file: IO[bytes], path: Path, item: Tuple[int, ...]) -> np.ndarray:
    dimensions = 1 + len(item)
    header = struct.Struct(f">HBB{dimensions}I")
    start = file.read(header.size)
    if len(start) < header.size:
        raise _malformed(path, f"it has {len(start)} bytes, fewer than its header")
    zeros, dtype, rank, *sizes = header.unpack(start)
    items, shape = sizes[0], tuple(sizes[1:])
    if zeros or dtype != UNSIGNED_BYTE or rank != dimensions:
        magic = struct.pack(">HBB", 0, UNSIGNED_BYTE, dimensions)
        raise _malformed(path, f"it begins with {start[:4].hex()}, expected {magic.hex()}")
    if shape != item:
        sides = "×".join(map(str, item))
        raise _malformed(path, f"its items have {'×'.join(map(str, shape))} values, not {sides}")
    if not 1 <= items <= MAX_ITEMS:
        raise _malformed(path, f"its header says {items} items, expected 1 to {MAX_ITEMS}")
    expected = items * int(np.prod(item))
    values = file.read(expected + 1)  # one more, to see whether the file ends
    if len(values) != expected:
        found = f"only {len(values)}" if len(values) < expected else "more"
        raise _malformed(path, f"its header says {expected} values, but it has {found}")
    return np.frombuffer(values, np.uint8).reshape(items, *item)


def _malformed(path: Path, reason: str) -> DataError:
    return DataError(f"{path} is not the expected idx file: {reason}; get the file again.")
