"""Files of numbers: a JSON header and numpy arrays, with a digest of all bytes.

A file is an ordinary .npz archive, which `numpy.load` reads. The header is its first member, and
the SHA-256 of all other bytes is its last 64 bytes. It contains no code, and reading it executes
nothing. The digest detects damage. It is not a signature, so every part is checked as if an
attacker had written it.
"""

import hashlib
import io
import json
import math
import os
import re
import sys
import zipfile
from typing import Any, Callable, Dict, List, Literal, NamedTuple, Tuple, Union

import numpy as np

from gluon_amp.files.schema import brief

from mxnet import nd

DIGEST_LENGTH = 64
# A ZIP archive begins with 30 bytes of its first member's header, followed by the member's name.
MEMBER_HEADER = 30
# Of nested lists, tuples and dicts. Python's own limit is about 1000 calls.
MAX_DEPTH = 64

_write_array: Callable[..., None] = np.lib.format.write_array  # which numpy has without types

Header = Dict[str, Any]
Arrays = Dict[str, "np.ndarray[Any, Any]"]


class Kind(NamedTuple):
    """A kind of file: two fields of the header, and how the kind is recognized."""

    format: str
    version: int
    header: str  # its name in the archive, by which files of this kind are recognized
    foreign: str  # the end of the error message for a file of another kind


def encode(kind: Kind, header: Header, arrays: Arrays) -> memoryview:
    """Return the bytes of a file; the same content gives the same bytes.

    The header has values that `json` can write; the arrays hold numbers, booleans and strings.
    """
    header = {"format": kind.format, "version": kind.version, **header}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo(kind.header), json.dumps(header, indent=1))
        for key, array in arrays.items():
            with archive.open(zipfile.ZipInfo(key + ".npy"), "w", force_zip64=True) as member:
                _write_array(member, array, allow_pickle=False)
        archive.comment = b" " * DIGEST_LENGTH  # the archive's last bytes
    data = buffer.getbuffer()
    data[-DIGEST_LENGTH:] = _digest(data)
    return data


def read(kind: Kind, path: Union[str, "os.PathLike[str]"]) -> Tuple[Header, Arrays]:
    """Return the header, without format and version, and the arrays of a file of `encode`.

    Uses at most twice the file's size of memory, for any sizes that the file claims. A file that is
    foreign, truncated, damaged or forged is a `ValueError`.
    """
    with open(path, "rb") as file:
        data = file.read(MEMBER_HEADER + len(kind.header))
        if data[MEMBER_HEADER:] != kind.header.encode():
            raise ValueError(f"{path} {kind.foreign}.")
        try:
            data += file.read()
        except MemoryError:
            raise ValueError(f"{path} is larger than the free memory: load another file.") from None
    return decode(kind, data, path)


def decode(kind: Kind, data: bytes, source: object) -> Tuple[Header, Arrays]:
    """Return the header and the arrays of a file's bytes: see `read`."""
    if data[-DIGEST_LENGTH:] != _digest(data):
        raise ValueError(
            f"{source} is truncated or damaged, as its checksum does not fit: load an earlier one."
        )
    try:
        members = stored_members(data)
        header = _json(members.pop(kind.header))
    except Exception as error:
        # zipfile, struct, codecs and json raise a dozen kinds of errors for forged bytes.
        raise malformed(source, error) from None
    version = header.pop("version", None)
    if (header.pop("format", None), version) != (kind.format, kind.version):
        raise ValueError(
            f"{source} has version {brief(version)} of the format, this gluon_amp reads "
            f"{kind.version}: load it with the gluon_amp that saved it."
        )
    try:
        return header, {_key(name): _array(content) for name, content in members.items()}
    except Exception as error:
        raise malformed(source, error) from None


def malformed(source: object, error: object) -> ValueError:
    """Return the error for a file with a correct digest that gluon_amp did not write."""
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return ValueError(
        f"{source} has a correct checksum and content that gluon_amp does not write ({reason}): "
        "load a file from a source that you trust."
    )


def _digest(data: Union[bytes, memoryview]) -> bytes:
    return hashlib.sha256(memoryview(data)[:-DIGEST_LENGTH]).hexdigest().encode()


# ------------------------------------------------------------------------------------ the members


def stored_members(data: bytes) -> Dict[str, bytes]:
    """Return the names and contents of a ZIP archive, uncompressed and under different names.

    Any other archive is an error; forged bytes raise errors of a dozen kinds.
    """
    contents, total = {}, 0
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            # The members of a forged archive can overlap, or expand to many times its size.
            total += info.file_size
            stored = info.compress_type == zipfile.ZIP_STORED
            if not stored or info.file_size != info.compress_size or total > len(data):
                raise ValueError(f"{brief(info.filename)} is compressed or larger than the file")
            if info.filename in contents:
                raise ValueError(f"the name {brief(info.filename)} occurs twice")
            contents[info.filename] = archive.read(info)
    return contents


def _json(content: bytes) -> Header:
    header = json.loads(content.decode("ascii"), object_pairs_hook=_distinct)
    if not isinstance(header, dict):
        raise ValueError("the header is not a JSON object")
    return header


def _distinct(pairs: List[Tuple[str, Any]]) -> Header:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a dict has a key twice")
    return fields


def _key(name: str) -> str:
    if not name.endswith(".npy"):
        raise ValueError(f"{brief(name)} is not an array")
    return name[: -len(".npy")]


# The header that `numpy.lib.format` (version 1.0) writes for arrays of numbers and strings.
_NPY = re.compile(
    rb"\x93NUMPY\x01\x00.."
    rb"\{'descr': '([<>|=][biufcSU][1-9]\d{0,8})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,18}(?:, \d{1,18})*)?),?\), \} *\n",
    re.DOTALL,
)
MAX_DIMENSIONS = 32
# Not every byte pattern is a valid boolean or character.
LARGEST = {"b": ("u1", 1), "U": ("u4", sys.maxunicode)}


def _array(content: bytes) -> "np.ndarray[Any, Any]":
    """Return the array of a .npy file, after a check that its size is that of its header."""
    match = _NPY.match(content)
    if match is None or int.from_bytes(content[8:10], "little") != match.end() - 10:
        raise ValueError("an array has an unknown header")
    dtype = np.dtype(match[1].decode())
    shape = tuple(map(int, match[3].split(b", "))) if match[3] else ()
    size = len(content) - match.end()
    if len(shape) > MAX_DIMENSIONS or math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"an array of {size} bytes has the shape {brief(str(shape))}")
    if size and dtype.kind in LARGEST:
        unit, largest = LARGEST[dtype.kind]
        numbers = np.frombuffer(content, dtype.str[0] + unit, offset=match.end())
        if numbers.max() > largest:
            raise ValueError(f"an array of {dtype} holds other values")
    order: Literal["F", "C"] = "F" if match[2] == b"True" else "C"
    return np.ndarray(shape, dtype, content, match.end(), order=order).copy(order="K")


# --------------------------------------------------------------------------------- values as JSON


def pack(value: Any, arrays: Arrays, where: str, depth: int = 0) -> Any:
    """Return a value as JSON can represent it, with its numpy arrays moved to `arrays`.

    It is made of numbers, strings, None, numpy arrays and scalars, lists, tuples and dicts; any
    other is a `TypeError`. Containers more than `MAX_DEPTH` deep in each other are a `ValueError`.
    `where` names the value in the keys of arrays and in error messages.
    """
    name, inner = where.split("[")[0], depth + 1
    if depth > MAX_DEPTH:
        raise ValueError(
            f"{name} holds lists or dicts more than {MAX_DEPTH} deep in each other: "
            "save flatter ones."
        )
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufcSU":
        key = f"{name}/{len(arrays)}"
        arrays[key] = np.asarray(value)
        return {"array" if isinstance(value, np.ndarray) else "scalar": key}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [pack(item, arrays, f"{where}[{k}]", inner) for k, item in enumerate(value)]
    if isinstance(value, tuple):
        return {"tuple": pack(list(value), arrays, where, depth)}
    if isinstance(value, dict):
        items = ((k, pack(v, arrays, f"{where}[{k!r}]", inner)) for k, v in value.items())
        return {"dict": [[pack(k, arrays, where, inner), v] for k, v in items]}
    hint = ", call .asnumpy() on it" if isinstance(value, nd.NDArray) else ""
    raise TypeError(
        f"{where} is a {type(value).__module__}.{type(value).__name__}, which a checkpoint cannot "
        f"hold{hint}: pass numbers, strings, numpy arrays, and lists, tuples and dicts of them."
    )


def unpack(value: Any, arrays: Arrays, depth: int = 0) -> Any:
    """Return the value that was passed to `pack`; one that it does not return is a `ValueError`."""
    if depth > MAX_DEPTH:
        raise ValueError(f"lists or dicts are more than {MAX_DEPTH} deep in each other")
    inner = depth + 1
    if isinstance(value, list):
        return [unpack(item, arrays, inner) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise ValueError(f"an object has {len(value)} fields and not 1")
    ((kind, content),) = value.items()
    if kind == "tuple" and isinstance(content, list):
        return tuple(unpack(content, arrays, depth))
    if kind == "dict" and isinstance(content, list):
        return _unpack_dict(content, arrays, inner)
    array = arrays.get(content) if isinstance(content, str) else None
    if kind == "array" and array is not None:
        return array
    if kind == "scalar" and array is not None and array.shape == ():
        return array[()]
    raise ValueError(f"an object is of the unknown kind {brief(kind)} or refers to nothing")


def _unpack_dict(pairs: List[Any], arrays: Arrays, depth: int) -> Dict[Any, Any]:
    result: Dict[Any, Any] = {}
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError("a dict has an item that is not a pair")
        key = unpack(pair[0], arrays, depth)
        try:
            known = key in result
        except TypeError:
            raise ValueError(f"a dict has {brief(key)} as a key") from None
        if known:
            raise ValueError("a dict has a key twice")
        result[key] = unpack(pair[1], arrays, depth)
    return result
