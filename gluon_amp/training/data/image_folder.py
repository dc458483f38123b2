"""Anybody's images: a folder for each class, split here into training and validation."""

from pathlib import Path
from typing import Dict, List

from gluon_amp.training.data.datasets import imagenet_source
from gluon_amp.training.data.folders import FileImages, open_folders
from gluon_amp.training.data.imagenet_transforms import GLUONCV, Preprocessing
from gluon_amp.training.data.prepare.splitting import Image, Tree, read_tree, shuffled
from gluon_amp.training.data.source import DataError, Source

VALIDATION_SHARE = 5  # one image of five, at least one, as for the digits


def open_image_folder(root: Path, seed: int = 0, preprocessing: Preprocessing = GLUONCV) -> Source:
    """Return the images in ``root/CLASS`` as a `Source`.

    A fifth of each class, at least one image, is for validation. Which ones depends on the seed and
    on the names of the class and its files alone. If `root` holds ``train`` and ``val``, it is
    split already, and `open_folders` reads it.

    Parameters
    ----------
    root : Path
        Has a folder for each class, whose .jpg, .jpeg and .png files are its images.
    seed : int
        Determines the split and the augmentation.
    preprocessing : Preprocessing
        Size and normalisation of the images.

    Raises
    ------
    DataError
        There are fewer than two classes, or a class has fewer than two images.
    """
    if all((root / part).is_dir() for part in ("train", "val")):
        return open_folders(root, seed, preprocessing)
    tree = read_tree(root)
    if len(tree.classes) < 2:
        raise DataError(
            f"{root} holds one class, {tree.classes[0]}: expected a folder for each of several "
            "classes, or train and val with such folders."
        )
    train, val = (_files(tree, images) for images in split(tree, seed).values())
    return imagenet_source(train, val, len(tree.classes), tree.classes, seed, preprocessing)


def split(tree: Tree, seed: int) -> Dict[str, List[Image]]:
    """Return the images for ``'train'`` and for ``'val'``, each in the tree's order.

    Raises
    ------
    DataError
        A class has a single image.
    """
    of_class: List[List[Image]] = [[] for _ in tree.classes]
    for image in shuffled(tree.images, seed):
        of_class[image.label].append(image)
    validation = set()
    for name, images in zip(tree.classes, of_class):
        if len(images) < 2:
            raise DataError(
                f"{tree.folder}/{name} has one image: a class needs at least two, one of them for "
                "validation."
            )
        validation.update(images[: max(1, round(len(images) / VALIDATION_SHARE))])
    return {
        "train": [image for image in tree.images if image not in validation],
        "val": [image for image in tree.images if image in validation],
    }


def _files(tree: Tree, images: List[Image]) -> FileImages:
    return FileImages([(f"{tree.folder}/{image.name}", image.label) for image in images])
