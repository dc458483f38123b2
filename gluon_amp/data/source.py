"""What a training run needs to know of its data: two sets of images, their classes, their shape."""

from dataclasses import dataclass
from typing import Tuple

from mxnet.gluon.data import Dataset


class DataError(ValueError):
    """The data given cannot be trained on; the message is one sentence for the user."""


@dataclass(frozen=True)
class Source:
    """A training and a validation set that share their classes.

    Attributes
    ----------
    name : str
        Short name for logs and file names.
    train, val : Dataset
        Items are ``(image, label)``: a normalised float32 image of `image_shape`, channels first.
        `train` is indexed by position (see `gluon_amp.data.augment.Augmented`), `val` by item.
    train_images, val_images : int
        How many images each holds.
    classes : int
        Labels are 0 ... classes - 1.
    image_shape : tuple of int
        (channels, height, width).
    """

    name: str
    train: Dataset
    val: Dataset
    classes: int
    image_shape: Tuple[int, int, int]

    @property
    def train_images(self) -> int:
        return len(self.train)

    @property
    def val_images(self) -> int:
        return len(self.val)
