"""ImageNet as folders: ``root/train/CLASS/*.jpg`` and ``root/val/CLASS/*.jpg``."""

import warnings
from pathlib import Path
from typing import List

from gluon_amp.data.augment import Augmented
from gluon_amp.data.imagenet_transforms import INPUT_SIZE, training_transform, validation_transform
from gluon_amp.data.source import DataError, Source

from mxnet.gluon.data.vision import ImageFolderDataset


def _open(root: Path, part: str) -> ImageFolderDataset:
    folder = root / part
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one warning for each file that is not an image
        images = ImageFolderDataset(str(folder)) if folder.is_dir() else None
    if images is None or not images.items:
        raise DataError(
            f"{root} holds no classes to train on: expected images in {root}/train/CLASS/ and "
            f"{root}/val/CLASS/, found none in {folder}."
        )
    return images


def _check_classes(root: Path, train: ImageFolderDataset, val: ImageFolderDataset) -> None:
    """Labels are the rank of a folder's name, so one folder more or less shifts all that follow."""
    filled = {label for _, label in train.items}
    empty = [name for label, name in enumerate(train.synsets) if label not in filled]
    if empty:
        raise DataError(f"{root}/train/{empty[0]} counts as a class but has no images: remove it.")
    if train.synsets != val.synsets:
        raise DataError(
            f"{root}/train has {len(train.synsets)} classes, {root}/val has {len(val.synsets)}, "
            f"and {_example(train.synsets, val.synsets)}: they must be the same folders."
        )


def _example(train: List[str], val: List[str]) -> str:
    only_train = sorted(set(train) - set(val))
    if only_train:
        return f"{only_train[0]} is only in train"
    return f"{sorted(set(val) - set(train))[0]} is only in val"


def open_folders(root: Path, seed: int = 0, size: int = INPUT_SIZE) -> Source:
    """Return the images under `root` as a `Source`.

    Parameters
    ----------
    root : Path
        Holds ``train`` and ``val``, each with the same folders, one for each class.
    seed : int
        Decides the augmentation.
    size : int
        Height and width the network gets.

    Raises
    ------
    DataError
        No images, an empty class, or classes that differ between ``train`` and ``val``.
    """
    train, val = _open(root, "train"), _open(root, "val")
    _check_classes(root, train, val)
    return Source(
        name="imagenet",
        train=Augmented(train, training_transform(size), seed),
        val=val.transform_first(validation_transform(size)),
        classes=len(train.synsets),
        image_shape=(3, size, size),
    )
