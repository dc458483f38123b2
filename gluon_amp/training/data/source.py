"""A training and a validation set of images, with their classes and their shape."""

import errno
import os
import stat
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Iterable, Mapping, Tuple

import numpy as np

from gluon_amp.base.messages import UsageError, first_few

import mxnet as mx
from mxnet.gluon.data import Dataset
from mxnet.ndarray import NDArray


class DataError(UsageError):
    """The data cannot be used for training; the message is one sentence for the user."""


class UnreadableImageError(ValueError):
    """One image cannot be decoded; the message is its name: a path, or a record and its file."""


class Images(Dataset):
    """Images that are written directly into a batch."""

    shape: Tuple[int, ...]  # (channels, height, width) of every image

    def write(self, position: int, out: np.ndarray) -> int:
        """Write the image at a position to `out`, contiguous float32, and return its label.

        The position is ``epoch * len(self) + index``. The epoch determines random augmentation.
        """
        raise NotImplementedError

    def __getitem__(self, position: int) -> Tuple[NDArray, int]:
        image = np.empty(self.shape, np.float32)
        label = self.write(position, image)
        return mx.nd.array(image), label


class StoredImages(Images):
    """Images in memory, the same in every epoch; there may be fewer of them than of labels."""

    def __init__(self, images: np.ndarray, labels: np.ndarray):
        self.shape = images.shape[1:]
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return len(self._labels)

    def write(self, position: int, out: np.ndarray) -> int:
        index = position % len(self)
        out[...] = self._images[index % len(self._images)]
        return int(self._labels[index])


@dataclass(frozen=True)
class Source:
    """A training and a validation set that share their classes; `train` is indexed by position."""

    name: str  # for logs and file names
    train: Images
    val: Images
    classes: int  # labels are 0 ... classes - 1
    image_shape: Tuple[int, int, int]  # (channels, height, width)
    class_names: Tuple[str, ...] = ()  # by label; empty if the data has no names
    # How an image becomes an input in validation, for who uses the network elsewhere
    preprocessing: Mapping[str, Any] = field(default_factory=dict)

    @property
    def train_images(self) -> int:
        return len(self.train)

    @property
    def val_images(self) -> int:
        return len(self.val)


def open_file(path: "os.PathLike[str]") -> BinaryIO:
    """Open a regular file for reading. A FIFO may never end, so it is an `OSError`."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(path, "rb")


def read_file(path: "os.PathLike[str]") -> bytes:
    """Return the content of a regular file; raise `OSError` as `open_file` does."""
    with open_file(path) as file:
        return file.read()


def describe_unreadable(names: Iterable[str]) -> str:
    """Return a message with the number of unreadable images and the names of some."""
    names = sorted(names)
    return f"{len(names)} unreadable {'image' if len(names) == 1 else 'images'}: {first_few(names)}"
