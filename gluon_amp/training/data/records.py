"""Images packed in RecordIO: a ``.rec`` file and its index, an ``.idx`` file."""

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Set, Tuple

import numpy as np

from gluon_amp.training.data.datasets import imagenet_source
from gluon_amp.training.data.decode import DecodeError
from gluon_amp.training.data.imagenet_transforms import GLUONCV, Preprocessing
from gluon_amp.training.data.source import DataError, Source
from gluon_amp.training.data.splitting import CLASSES_FILE, check_same_classes, read_classes

# A record (dmlc-core, recordio.h): a magic number, 3 bits for the kind of part, 29 bits of length,
# the data, padding to 4 bytes. Data that contains the magic number itself is divided there into
# parts. The header of im2rec: number of labels (0 for one label), label, two ids.
MAGIC = 0xCED7230A
MAGIC_BYTES = struct.pack("<I", MAGIC)
START = struct.Struct("<II")
WHOLE, FIRST, MIDDLE, LAST = range(4)
IMAGE_HEADER = struct.Struct("<IfQQ")
RECORDS_CHECKED = 100_000
MAX_CLASSES = 2**24  # labels are float32, which has no larger consecutive whole numbers


@dataclass(frozen=True)
class RecordFiles:
    """The four files of a packed data set."""

    train: Path
    train_idx: Path
    val: Path
    val_idx: Path

    def check(self) -> None:
        """Raise `DataError` for the first file that does not exist."""
        for path in (self.train, self.train_idx, self.val, self.val_idx):
            if not path.is_file():
                hint = ": every .rec needs its .idx" if path.suffix == ".idx" else ""
                raise DataError(f"{path} was not found{hint}.")


def read_index(path: Path) -> np.ndarray:
    """Return the keys and offsets of an index, int64 (N, 2)."""
    try:
        return np.array(path.read_text().split(), dtype=np.int64).reshape(-1, 2)
    except (ValueError, OverflowError):
        raise DataError(
            f"{path} is not an index: expected lines of a key, a tab, and an offset."
        ) from None


def record_data(record: bytes) -> bytes:
    """Return the data of a whole record."""
    parts, offset, kind = [], 0, FIRST
    while kind in (FIRST, MIDDLE):
        complete = offset + START.size <= len(record)
        magic, coded = START.unpack_from(record, offset) if complete else (0, 0)
        kind, length = coded >> 29, coded & (2**29 - 1)
        offset += START.size
        if magic != MAGIC or offset + length > len(record):
            raise DecodeError("the record is damaged")
        parts.append(record[offset : offset + length])
        offset += -(-length // 4) * 4
    return parts[0] if len(parts) == 1 else MAGIC_BYTES.join(parts)


class RecordImages:
    """The images of a ``.rec`` file, as im2rec or MXNet writes it, in the order of its index."""

    def __init__(self, rec: Path, idx: Path):
        self._path, self._idx = rec, idx
        self._file = open(rec, "rb")  # noqa: SIM115 (open as long as this object)
        self._keys, self._starts = read_index(idx).T
        if not len(self):
            raise DataError(f"{idx} lists no records, so {rec} holds no images to use.")
        bounds = np.append(np.sort(self._starts), os.fstat(self._file.fileno()).st_size)
        for start in bounds[[0, -2]]:
            if not 0 <= start < bounds[-1]:
                raise self._misfit(f"there is no record at byte {start}")
        self._ends = bounds[np.searchsorted(bounds, self._starts, side="right")]

    def __len__(self) -> int:
        return len(self._keys)

    def name(self, index: int) -> str:
        return f"record {self._keys[index]} of {self._path}"

    def read(self, index: int) -> Tuple[bytes, int]:
        start, end = int(self._starts[index]), int(self._ends[index])
        data = record_data(os.pread(self._file.fileno(), end - start, start))
        if len(data) < IMAGE_HEADER.size:
            raise DecodeError("the record has no image header")
        return data[IMAGE_HEADER.size :], self._label(index, data)

    def check(self) -> Set[int]:
        """Return the labels of at most `RECORDS_CHECKED` records, evenly spaced."""
        step = -(-len(self) // RECORDS_CHECKED)
        return {self._check(index) for index in [*range(0, len(self), step), len(self) - 1]}

    def _check(self, index: int) -> int:
        start, end = int(self._starts[index]), int(self._ends[index])
        size = START.size + IMAGE_HEADER.size
        head = os.pread(self._file.fileno(), size, start)
        if len(head) < size or not head.startswith(MAGIC_BYTES):
            raise self._misfit(f"there is no record at byte {start}")
        coded = START.unpack_from(head)[1]
        after = start + START.size + -(-(coded & (2**29 - 1)) // 4) * 4
        if after > end:
            raise self._misfit(f"the record at byte {start} should end at byte {end}")
        if coded >> 29 == WHOLE and after < end:
            raise self._misfit(f"the record at byte {after} is not listed")
        return self._label(index, head[START.size :])

    def _misfit(self, why: str) -> DataError:
        return DataError(f"{self._idx} does not fit {self._path}: {why}, so write both again.")

    def _label(self, index: int, data: bytes) -> int:
        count, label, _, _ = IMAGE_HEADER.unpack_from(data)
        if count or not 0 <= label < MAX_CLASSES or not label.is_integer():
            what = f"{count} labels" if count else f"the label {label:g}"
            raise DataError(
                f"{self.name(index)} has {what}, expected one whole number from 0 to "
                f"{MAX_CLASSES - 1:,}."
            )
        return int(label)


def _open(rec: Path, idx: Path) -> Tuple[RecordImages, Set[int], Tuple[str, ...]]:
    """Return the images of a part, their labels, and the names of the classes."""
    images = RecordImages(rec, idx)
    labels, names = images.check(), read_classes(rec.parent)
    if names and max(labels) >= len(names):
        raise DataError(
            f"{rec} has the label {max(labels)}, but {CLASSES_FILE} beside it names {len(names)} "
            f"classes, 0 to {len(names) - 1}: pack the data again."
        )
    return images, labels, names


def open_records(
    files: RecordFiles, seed: int = 0, preprocessing: Preprocessing = GLUONCV
) -> Source:
    """Return packed images as a `Source`; ``classes.json`` in the same folder names the classes."""
    files.check()
    train, train_labels, train_names = _open(files.train, files.train_idx)
    val, val_labels, val_names = _open(files.val, files.val_idx)
    if train_names and val_names:
        check_same_classes(train_names, val_names, files.train.parent, files.val.parent)
    check_same_classes(train_labels, val_labels, files.train, files.val)
    classes = len(train_names) or max(train_labels) + 1
    return imagenet_source(train, val, classes, train_names, seed, preprocessing)
