"""ImageNet as folders: ``root/train/CLASS/*.jpg`` and ``root/val/CLASS/*.jpg``."""

import os
from pathlib import Path
from typing import List, Sequence, Tuple

from gluon_amp.training.data.class_names import check_same_classes
from gluon_amp.training.data.datasets import EncodedImages, imagenet_source
from gluon_amp.training.data.imagenet_transforms import GLUONCV, Preprocessing
from gluon_amp.training.data.source import DataError, Source, read_file

SUFFIXES = (".jpg", ".jpeg", ".png")


class FileImages(EncodedImages):
    """Image files with labels.

    Parameters
    ----------
    items : sequence of (str, int)
        Path and label of every image.
    """

    def __init__(self, items: Sequence[Tuple[str, int]]):
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def read(self, index: int) -> Tuple[bytes, int]:
        path, label = self._items[index]
        return read_file(path), label

    def name(self, index: int) -> str:
        return self._items[index][0]


class FolderImages(FileImages):
    """The images in ``folder/CLASS/``. A label is the rank of the class among the sorted names.

    Parameters
    ----------
    folder : Path
        Has a folder for each class, whose .jpg, .jpeg and .png files are its images.

    Attributes
    ----------
    classes : list of str
        Sorted names of the folders.
    """

    def __init__(self, folder: Path):
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        self.classes = [entry.name for entry in entries if entry.is_dir()]
        items: List[Tuple[str, int]] = []
        for label, name in enumerate(self.classes):
            for file in sorted(os.listdir(folder / name)):
                if file.lower().endswith(SUFFIXES):
                    items.append((f"{folder}/{name}/{file}", label))
        super().__init__(items)

    def empty_classes(self) -> List[str]:
        """Return the classes without images."""
        filled = {label for _, label in self._items}
        return [name for label, name in enumerate(self.classes) if label not in filled]


def _open(root: Path, part: str) -> FolderImages:
    folder = root / part
    images = FolderImages(folder) if folder.is_dir() else None
    if not images:
        raise DataError(
            f"{root} holds no classes to train on: expected images in {root}/train/CLASS/ and "
            f"{root}/val/CLASS/, found none in {folder}."
        )
    for name in images.empty_classes():
        raise DataError(f"{folder}/{name} counts as a class but has no images: remove it.")
    return images


def open_folders(root: Path, seed: int = 0, preprocessing: Preprocessing = GLUONCV) -> Source:
    """Return the images under `root` as a `Source`.

    Parameters
    ----------
    root : Path
        Has ``train`` and ``val``, each with the same folders, one for each class.
    seed : int
        Determines the augmentation.
    preprocessing : Preprocessing
        Size and normalisation of the images.

    Raises
    ------
    DataError
        There are no images, a class is empty, or ``train`` and ``val`` have different classes.
    """
    train, val = _open(root, "train"), _open(root, "val")
    check_same_classes(train.classes, val.classes, root / "train", root / "val")
    names = train.classes
    return imagenet_source(train, val, len(names), names, seed, preprocessing)
