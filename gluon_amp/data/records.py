"""Images packed in RecordIO: a ``.rec`` file and the ``.idx`` that says where records start."""

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, Set, Tuple

import numpy as np

from gluon_amp.data.augment import DecodedImages, EncodedImages
from gluon_amp.data.classes import CLASSES_FILE, check_same_classes, read_classes
from gluon_amp.data.decode import DecodeError
from gluon_amp.data.imagenet_transforms import GLUONCV, Look, TrainingTransform, ValidationTransform
from gluon_amp.data.source import DataError, Source

# A record (dmlc-core, recordio.h): magic number, then 3 bits that say which part of a record this
# is and 29 bits of length, then the data, padded to 4 bytes. Data that holds the magic number
# itself is cut there into parts. im2rec's header: number of labels (0 for one), label, two ids.
MAGIC = 0xCED7230A
MAGIC_BYTES = struct.pack("<I", MAGIC)
START = struct.Struct("<II")
WHOLE, FIRST, MIDDLE, LAST = range(4)
IMAGE_HEADER = struct.Struct("<IfQQ")
RECORDS_CHECKED = 100_000
MOST_CLASSES = 2**24  # a label is a float32, which cannot count further


@dataclass(frozen=True)
class RecordFiles:
    """The four files of a packed data set."""

    train: Path
    train_idx: Path
    val: Path
    val_idx: Path

    def check(self) -> None:
        """Raise `DataError` for the first file that is not there."""
        for path in (self.train, self.train_idx, self.val, self.val_idx):
            if not path.is_file():
                hint = ": every .rec needs its .idx" if path.suffix == ".idx" else ""
                raise DataError(f"{path} was not found{hint}.")


def read_index(path: Path) -> np.ndarray:
    """Return the keys and offsets of an index, int64 (N, 2).

    Raises
    ------
    DataError
        It is not an index.
    """
    try:
        return np.array(path.read_text().split(), dtype=np.int64).reshape(-1, 2)
    except (ValueError, OverflowError):
        raise DataError(
            f"{path} is not an index: expected lines of a key, a tab, and an offset."
        ) from None


def record_data(record: bytes) -> bytes:
    """Return what is in a record.

    Raises
    ------
    DecodeError
        It is cut short, or no record.
    """
    parts, at, kind = [], 0, FIRST
    while kind in (FIRST, MIDDLE):
        magic, coded = START.unpack_from(record, at) if at + START.size <= len(record) else (0, 0)
        kind, length = coded >> 29, coded & (2**29 - 1)
        at += START.size
        if magic != MAGIC or at + length > len(record):
            raise DecodeError("the record is damaged")
        parts.append(record[at : at + length])
        at += -(-length // 4) * 4
    return parts[0] if len(parts) == 1 else MAGIC_BYTES.join(parts)


class RecordImages(EncodedImages):
    """The images of a ``.rec`` file, in the order of its index.

    Parameters
    ----------
    rec, idx : Path
        The two files, as im2rec or `mxnet.recordio.MXIndexedRecordIO` writes them.

    Raises
    ------
    DataError
        The index is none, lists no records, or lists one outside the file.
    """

    def __init__(self, rec: Path, idx: Path):
        self._path, self._idx = rec, idx
        self._file = open(rec, "rb")  # noqa: SIM115 (read as long as this lives)
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
        """Return the labels of at most `RECORDS_CHECKED` records, evenly spaced; decode no image.

        Raises
        ------
        DataError
            The index does not fit the file, or a label is not one whole number >= 0.
        """
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
        if count or not 0 <= label < MOST_CLASSES or not label.is_integer():
            what = f"{count} labels" if count else f"the label {label:g}"
            raise DataError(
                f"{self.name(index)} has {what}, expected one whole number from 0 to "
                f"{MOST_CLASSES - 1:,}."
            )
        return int(label)


def _check_labels(rec: Path, labels: Iterable[int], names: Tuple[str, ...]) -> None:
    if names and max(labels) >= len(names):
        raise DataError(
            f"{rec} has the label {max(labels)}, but {CLASSES_FILE} beside it names {len(names)} "
            f"classes, 0 to {len(names) - 1}: pack the data again."
        )


def open_records(files: RecordFiles, seed: int = 0, look: Look = GLUONCV) -> Source:
    """Return packed images as a `Source`.

    Parameters
    ----------
    files : RecordFiles
        Where they are. A ``classes.json`` beside them names the classes.
    seed : int
        Decides the augmentation.
    look : Look
        What the network gets to see.

    Raises
    ------
    DataError
        A file is missing or damaged, or the classes differ between training and validation.
    """
    files.check()
    train, val = RecordImages(files.train, files.train_idx), RecordImages(files.val, files.val_idx)
    train_labels, val_labels = train.check(), val.check()
    train_names, val_names = read_classes(files.train.parent), read_classes(files.val.parent)
    _check_labels(files.train, train_labels, train_names)
    _check_labels(files.val, val_labels, val_names)
    if train_names and val_names:
        check_same_classes(train_names, val_names, files.train.parent, files.val.parent)
    check_same_classes(train_labels, val_labels, files.train, files.val)
    classes = len(train_names) or max(train_labels) + 1
    return Source(
        name="imagenet",
        train=DecodedImages(train, TrainingTransform(look), classes, seed),
        val=DecodedImages(val, ValidationTransform(look), classes),
        classes=classes,
        image_shape=(3, look.size, look.size),
        class_names=train_names,
    )
