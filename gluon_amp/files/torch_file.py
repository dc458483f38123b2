"""PyTorch's files of weights, read without PyTorch and without executing anything.

`torch.save` pickles a dict of tensors. The pickle names the storages of the tensors, whose bytes
follow it (up to PyTorch 1.5) or are members of a ZIP archive (from 1.6 on). The layouts are those
of ``torch/serialization.py``. See `gluon_amp.files.pickles` for how the pickle is read.
"""

import io
import math
import os
import struct
from typing import Any, BinaryIO, Callable, Dict, List, NamedTuple, Tuple, Union

import numpy as np

from gluon_amp.files.archive import MAX_DIMENSIONS, Arrays, stored_members
from gluon_amp.files.pickles import MAGIC, Global, Unpickler
from gluon_amp.files.schema import COUNT, brief, check

ZIP_MAGIC = b"PK\x03\x04"
LEGACY_MAGIC, LEGACY_VERSION = 0x1950A86A20F9469CFC6C, 1001

_CODES = {"Float": "<f4", "Half": "<f2", "Double": "<f8", "Long": "<i8", "Int": "<i4"}
STORAGES = {Global("torch", f"{k}Storage"): np.dtype(code) for k, code in _CODES.items()}
DICT = Global("collections", "OrderedDict")
TENSOR = Global("torch._utils", "_rebuild_tensor_v2")
NAMES = {*STORAGES, DICT, TENSOR}


def is_torch_file(path: Union[str, "os.PathLike[str]"]) -> bool:
    """Return whether a file begins as those of `torch.save` do; `OSError` if it cannot be read."""
    with open(path, "rb") as file:
        return file.read(len(ZIP_MAGIC)).startswith((MAGIC, ZIP_MAGIC))


def read(path: Union[str, "os.PathLike[str]"]) -> Arrays:
    """Return the tensors of a ``state_dict`` by name, as arrays that must not be written to.

    Uses at most twice the file's size of memory, for any sizes that the file claims. A file that is
    truncated or forged, or holds something else than tensors by name, is a `ValueError`.
    """
    with open(path, "rb") as file:
        data = file.read()
    try:
        return _read_zip(data) if data.startswith(ZIP_MAGIC) else _read_legacy(data)
    except Exception as error:
        # zipfile, struct, codecs and unpicklers raise a dozen kinds of errors for forged bytes.
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(
            f"{path} cannot be read as PyTorch's weights ({reason}): give a file that holds "
            "`torch.save(net.state_dict(), ...)`."
        ) from None


class Storage(NamedTuple):
    """The numbers that tensors refer to."""

    key: str  # its name in the file
    dtype: "np.dtype[Any]"
    numbers: int


class Tensor(NamedTuple):
    """A tensor whose storage has not been read yet. Offset and strides count numbers."""

    storage: Storage
    offset: int
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]


TENSOR_SCHEMA = (COUNT, [COUNT], [COUNT])  # offset, shape and strides


class _Unpickler(Unpickler):
    """Builds tensors and dicts."""

    def is_known(self, named: Global) -> bool:
        return named in NAMES

    def persistent_load(self, identifier: Any) -> Storage:
        """Return a storage: its kind, key, device and size; the legacy layout adds a view."""
        if not isinstance(identifier, tuple) or len(identifier) not in (5, 6):
            raise ValueError("the description of a storage is not a tuple of 5")
        word, kind, key, _, numbers, *view = identifier
        check(numbers, COUNT, "the size of a storage")
        if word != "storage" or not isinstance(kind, Global) or kind not in STORAGES:
            raise ValueError("a storage is of an unknown kind")
        if not isinstance(key, str) or view not in ([], [None]):
            raise ValueError("a storage has no name or is a part of another")
        return Storage(key, STORAGES[kind], numbers)

    def call(self, function: Global, arguments: Tuple[Any, ...]) -> Union[Dict[str, Any], Tensor]:
        if function == DICT and arguments == ():
            return {}
        if function != TENSOR or len(arguments) < 4 or not isinstance(arguments[0], Storage):
            raise ValueError(f"it calls {function} in an unknown way")
        storage, *numbers = arguments[:4]
        check(numbers, TENSOR_SCHEMA, "a tensor")
        offset, shape, strides = numbers
        _check_extent(storage, offset, shape, strides)
        return Tensor(storage, offset, tuple(shape), tuple(strides))

    def set_state(self, target: Any, state: Any) -> None:
        """Ignore the attributes of a dict: the versions of PyTorch's layers."""
        if not isinstance(target, dict):
            raise ValueError("it sets the state of an object that has none")


def _check_extent(storage: Storage, offset: int, shape: List[int], strides: List[int]) -> None:
    """Raise an error unless a tensor lies within its storage, and repeats no number of it."""
    if len(shape) != len(strides) or len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"a tensor has {len(shape)} dimensions and {len(strides)} strides")
    count = math.prod(shape)
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides))
    if count and (count > storage.numbers or last >= storage.numbers):
        raise ValueError(f"a tensor of {count} numbers lies outside its storage")


def _read_zip(data: bytes) -> Arrays:
    """Read a ZIP archive with the members NAME/data.pkl and NAME/data/KEY for each storage."""
    members = stored_members(data)
    pickled = next((name for name in members if name.endswith("/data.pkl")), None)
    if pickled is None:
        raise ValueError("it has no data.pkl")
    root = pickled[: -len("data.pkl")]
    if members.get(f"{root}byteorder", b"little") != b"little":
        raise ValueError("its numbers are big-endian")
    return _arrays(_Unpickler(members[pickled]).load(), lambda key: members[f"{root}data/{key}"])


def _read_legacy(data: bytes) -> Arrays:
    """Read five pickles, and then each storage: its size and its numbers."""
    stream = io.BytesIO(data)
    magic, version, system, content, keys = (_Unpickler(stream).load() for _ in range(5))
    if (magic, version) != (LEGACY_MAGIC, LEGACY_VERSION):
        raise ValueError("it does not begin with PyTorch's numbers")
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise ValueError("its numbers are big-endian")
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise ValueError("the names of its storages are not a list")
    dtypes = {tensor.storage.key: tensor.storage.dtype for tensor in _tensors(content).values()}
    storages = {key: _next_storage(stream, dtypes[key]) for key in keys}
    return _arrays(content, storages.__getitem__)


def _next_storage(stream: BinaryIO, dtype: "np.dtype[Any]") -> bytes:
    (numbers,) = struct.unpack("<q", stream.read(8))
    check(numbers, COUNT, "the size of a storage")
    return stream.read(numbers * dtype.itemsize)


def _tensors(content: Any) -> Dict[str, Tensor]:
    """Return a dict of tensors by name, after a check that it is one."""
    if not isinstance(content, dict):
        raise ValueError("it holds no dict of tensors")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise ValueError(f"its value {brief(name)} is not a tensor")
    return content


def _arrays(content: Any, storage: Callable[[str], bytes]) -> Arrays:
    arrays: Arrays = {}
    for name, tensor in _tensors(content).items():
        key, dtype, numbers = tensor.storage
        data = storage(key)
        if len(data) != numbers * dtype.itemsize:
            raise ValueError(f"the storage of {brief(name)} has {len(data)} bytes")
        if not math.prod(tensor.shape):  # its offset may lie at the storage's end
            arrays[name] = np.zeros(tensor.shape, dtype)
            continue
        strides = tuple(stride * dtype.itemsize for stride in tensor.strides)
        start = tensor.offset * dtype.itemsize
        arrays[name] = np.ndarray(tensor.shape, dtype, data, start, strides)
    return arrays
