"""Images packed in RecordIO: a ``.rec`` file and the ``.idx`` that says where records start."""

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Set, Tuple

import numpy as np

from gluon_amp.data.augment import Augmented
from gluon_amp.data.imagenet_transforms import INPUT_SIZE, training_transform, validation_transform
from gluon_amp.data.source import DataError, Source

import mxnet as mx
from mxnet.gluon.data import Dataset
from mxnet.ndarray import NDArray

# A record: magic number, length; im2rec's header: number of labels (0 for one), label, two ids.
MAGIC = 0xCED7230A
RECORD_START = struct.Struct("<II")
IMAGE_HEADER = struct.Struct("<IfQQ")
LABELS_READ = 100_000


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


class RecordDataset(Dataset):
    """Items are ``(image, label)``: uint8 (H, W, 3) and int32.

    Unlike Gluon's `ImageRecordDataset` it takes the index file by name and gives integer labels.
    """

    def __init__(self, rec: Path, idx: Path):
        self._path = rec
        self._records = mx.recordio.MXIndexedRecordIO(str(idx), str(rec), "r")

    def __len__(self) -> int:
        return len(self._records.keys)

    def __getitem__(self, index: int) -> Tuple[NDArray, np.int32]:
        header, encoded = mx.recordio.unpack(self._records.read_idx(self._records.keys[index]))
        return mx.image.imdecode(encoded), np.int32(header.label)

    def labels(self) -> Iterator[int]:
        """Yield the labels, of at most `LABELS_READ` records, evenly spaced; no image is read.

        Raises
        ------
        DataError
            The index does not fit the file, or a label is not one whole number >= 0.
        """
        offsets = [self._records.idx[key] for key in self._records.keys]
        with open(self._path, "rb") as file:
            for offset in offsets[:: -(-len(offsets) // LABELS_READ)]:
                yield self._label_at(file.fileno(), offset)

    def _label_at(self, file: int, offset: int) -> int:
        size = RECORD_START.size + IMAGE_HEADER.size
        start = os.pread(file, size, offset)
        if len(start) < size or RECORD_START.unpack_from(start)[0] != MAGIC:
            raise DataError(
                f"{self._path} has no record at byte {offset}, where its index says there is one: "
                "write both again."
            )
        count, label, key, _ = IMAGE_HEADER.unpack_from(start, RECORD_START.size)
        if count or label < 0 or not label.is_integer():
            what = f"{count} labels" if count else f"the label {label:g}"
            raise DataError(
                f"record {key} of {self._path} has {what}, expected one whole number from 0 up."
            )
        return int(label)


def _open(rec: Path, idx: Path) -> Tuple[RecordDataset, Set[int]]:
    try:
        images = RecordDataset(rec, idx)
    except (ValueError, IndexError):
        raise DataError(
            f"{idx} is not an index: expected lines of a key, a tab, and an offset."
        ) from None
    if not len(images):
        raise DataError(f"{idx} lists no records, so {rec} holds no images to use.")
    return images, set(images.labels())


def open_records(files: RecordFiles, seed: int = 0, size: int = INPUT_SIZE) -> Source:
    """Return packed images as a `Source`.

    Parameters
    ----------
    files : RecordFiles
        Where they are.
    seed : int
        Decides the augmentation.
    size : int
        Height and width the network gets.

    Raises
    ------
    DataError
        A file is missing or damaged, or the classes differ between training and validation.
    """
    files.check()
    train, train_labels = _open(files.train, files.train_idx)
    val, val_labels = _open(files.val, files.val_idx)
    if train_labels != val_labels:
        label = min(train_labels ^ val_labels)
        only = files.train if label in train_labels else files.val
        raise DataError(
            f"{files.train} has {len(train_labels)} classes, {files.val} has {len(val_labels)}, "
            f"and class {label} is only in {only}: they must be the same classes."
        )
    return Source(
        name="imagenet",
        train=Augmented(train, training_transform(size), seed),
        val=val.transform_first(validation_transform(size)),
        classes=max(train_labels) + 1,
        image_shape=(3, size, size),
    )
