"""Files of weights as PyTorch writes them, written without PyTorch."""

import io
import zipfile
from typing import Callable, Dict, Mapping, Optional, Sequence

import numpy as np

STORAGES = {"float32": "FloatStorage", "float16": "HalfStorage", "int64": "LongStorage"}


def text(value: str) -> bytes:
    """Return the opcode BINUNICODE."""
    encoded = value.encode()
    return b"X" + len(encoded).to_bytes(4, "little") + encoded


def number(value: int) -> bytes:
    """Return the opcode LONG1."""
    encoded = value.to_bytes(10, "little", signed=True)
    return b"\x8a" + bytes([len(encoded)]) + encoded


def several(*items: bytes) -> bytes:
    """Return the opcodes of a tuple."""
    return b"(" + b"".join(items) + b"t"


def storage(array: np.ndarray, key: str, view: bytes = b"") -> bytes:
    """Return the opcodes of a storage's persistent id."""
    kind = f"ctorch\n{STORAGES[array.dtype.name]}\n".encode()
    parts = (text("storage"), kind, text(key), text("cpu"), number(array.size))
    return several(*parts, *([view] if view else [])) + b"Q"


def tensor(
    array: np.ndarray,
    key: str,
    view: bytes = b"",
    offset: int = 0,
    shape: Optional[Sequence[int]] = None,
    strides: Optional[Sequence[int]] = None,
) -> bytes:
    """Return the opcodes that call ``_rebuild_tensor_v2``."""
    shape = array.shape if shape is None else shape
    strides = strides or [step // array.itemsize for step in array.strides]
    sizes, steps = (several(*map(number, values)) for values in (shape, strides))
    hooks = b"ccollections\nOrderedDict\n)R"
    arguments = (storage(array, key, view), number(offset), sizes, steps, b"\x89", hooks)
    return b"ctorch._utils\n_rebuild_tensor_v2\n" + several(*arguments) + b"R"


def state_dict(tensors: Mapping[str, bytes]) -> bytes:
    """Return the pickle of an OrderedDict, with the attribute `_metadata`."""
    items = b"".join(text(name) + value for name, value in tensors.items())
    metadata = b"}(" + text("_metadata") + b"}" + b"ub"
    return b"\x80\x02ccollections\nOrderedDict\n)R(" + items + b"u" + metadata + b"."


def archive(members: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return a ZIP archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name, content in members.items():
            file.writestr(f"weights/{name}", content)
    return buffer.getvalue()


def as_zip(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return a file of PyTorch 1.6 and later."""
    keys = {name: str(k) for k, name in enumerate(arrays)}
    members = {
        "data.pkl": state_dict({name: tensor(a, keys[name]) for name, a in arrays.items()}),
        "byteorder": b"little",
        **{f"data/{keys[name]}": array.tobytes() for name, array in arrays.items()},
        "version": b"3\n",
    }
    return archive(members)


def legacy_of(pickle: bytes, storages: Mapping[str, bytes]) -> bytes:
    """Return a file of PyTorch up to 1.5; `storages` begin with their sizes."""
    magic, version = number(0x1950A86A20F9469CFC6C), number(1001)
    system = b"}(" + text("little_endian") + b"\x88u"
    keys = b"](" + b"".join(map(text, storages)) + b"e"
    pickles = [b"\x80\x02" + content + b"." for content in (magic, version, system)]
    return b"".join([*pickles, pickle, b"\x80\x02" + keys + b".", *storages.values()])


def as_legacy(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return a file of PyTorch up to 1.5."""
    keys = {name: f"9{k}" for k, name in enumerate(arrays)}
    pickle = state_dict({name: tensor(a, keys[name], view=b"N") for name, a in arrays.items()})
    return legacy_of(pickle, {keys[name]: sized(array) for name, array in arrays.items()})


def sized(array: np.ndarray) -> bytes:
    """Return the bytes of a storage after their number."""
    return array.size.to_bytes(8, "little") + array.tobytes()


WRITERS: Dict[str, Callable[[Mapping[str, np.ndarray]], bytes]] = {
    "zip": as_zip,
    "legacy": as_legacy,
}
