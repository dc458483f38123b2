"""A training and a validation set of images, with their classes and their shape."""

import errno
import os
import stat
from dataclasses import dataclass
from typing import BinaryIO, Iterable, Tuple

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
    """Images that are written directly into a batch.

    A subclass sets `shape` and defines ``__len__`` and `write`.

    Attributes
    ----------
    shape : tuple of int
        (channels, height, width) of every image.
    """

    shape: Tuple[int, ...]

    def write(self, position: int, out: np.ndarray) -> int:
        """Write the image at `position` and return its label.

        Parameters
        ----------
        position : int
            ``epoch * len(self) + index``. The epoch determines random augmentation. In epoch 0,
            and if nothing is random, the position is the index.
        out : ndarray
            float32, `shape`, contiguous.

        Raises
        ------
        UnreadableImageError
            The image cannot be decoded.
        """
        raise NotImplementedError

    def __getitem__(self, position: int) -> Tuple[NDArray, int]:
        image = np.empty(self.shape, np.float32)
        label = self.write(position, image)
        return mx.nd.array(image), label


@dataclass(frozen=True)
class Source:
    """A training and a validation set that share their classes.

    Attributes
    ----------
    name : str
        For logs and file names.
    train, val : Dataset
        Items are ``(image, label)``: a normalised float32 image of `image_shape`, channels first.
        `train` is indexed by position (see `Images.write`), `val` by item.
    train_images, val_images : int
        Number of images in each.
    classes : int
        Labels are 0 ... classes - 1.
    image_shape : tuple of int
        (channels, height, width).
    class_names : tuple of str
        Name of every class, by label; empty if the data has no names.
    """

    name: str
    train: Dataset
    val: Dataset
    classes: int
    image_shape: Tuple[int, int, int]
    class_names: Tuple[str, ...] = ()

    @property
    def train_images(self) -> int:
        return len(self.train)

    @property
    def val_images(self) -> int:
        return len(self.val)


def open_file(path: "os.PathLike[str]") -> BinaryIO:
    """Open a regular file for reading.

    Raises
    ------
    OSError
        The file cannot be read, or it is not a regular file. A FIFO, for example, may never end.
    """
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
