"""Images in folders, one for each class: divided into ``train`` and ``val``, or divided here."""

from pathlib import Path
from typing import List, Sequence, Tuple

from gluon_amp.training.data import splitting
from gluon_amp.training.data.datasets import imagenet_source
from gluon_amp.training.data.imagenet_transforms import GLUONCV, Preprocessing
from gluon_amp.training.data.source import DataError, Source, read_file
from gluon_amp.training.data.splitting import Image, Tree

VALIDATION_SHARE = 5  # one image of five, at least one, as for the digits


class FileImages:
    """Image files, by path and label."""

    def __init__(self, items: Sequence[Tuple[str, int]]):
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def read(self, index: int) -> Tuple[bytes, int]:
        path, label = self._items[index]
        return read_file(Path(path)), label

    def name(self, index: int) -> str:
        return self._items[index][0]


def open_folders(root: Path, seed: int = 0, preprocessing: Preprocessing = GLUONCV) -> Source:
    """Return the images in ``root/train/CLASS`` and ``root/val/CLASS``, as a `Source`."""
    if not splitting.is_divided(root):
        raise DataError(
            f"{root} holds no classes to train on: expected images in {root}/train/CLASS/ and "
            f"{root}/val/CLASS/."
        )
    train, val = (splitting.read_tree(root / part) for part in splitting.PARTS)
    splitting.check_same_classes(train.classes, val.classes, train.folder, val.folder)
    return _source(train, _files(train, train.images), _files(val, val.images), seed, preprocessing)


def open_image_folder(root: Path, seed: int = 0, preprocessing: Preprocessing = GLUONCV) -> Source:
    """Return the images in ``root/CLASS`` as a `Source`; a fifth of each class is for validation.

    Which ones depends on the seed and on the names of the class and its files alone. A `root` with
    ``train`` and ``val`` is divided already.
    """
    if splitting.is_divided(root):
        return open_folders(root, seed, preprocessing)
    tree = splitting.read_tree(root)
    if len(tree.classes) < 2:
        raise DataError(
            f"{root} holds one class, {tree.classes[0]}: expected a folder for each of several "
            "classes, or train and val with such folders."
        )
    val, train = splitting.draw(tree, _validation_quotas(tree), seed)
    return _source(tree, _files(tree, train), _files(tree, val), seed, preprocessing)


def _validation_quotas(tree: Tree) -> List[int]:
    counts = tree.count()
    for name, count in zip(tree.classes, counts):
        if count < 2:
            raise DataError(
                f"{tree.folder}/{name} has one image: a class needs at least two, one of them for "
                "validation."
            )
    return [max(1, round(count / VALIDATION_SHARE)) for count in counts]


def _files(tree: Tree, images: Sequence[Image]) -> FileImages:
    return FileImages([(f"{tree.folder}/{image.name}", image.label) for image in images])


def _source(
    tree: Tree, train: FileImages, val: FileImages, seed: int, preprocessing: Preprocessing
) -> Source:
    return imagenet_source(train, val, len(tree.classes), tree.classes, seed, preprocessing)
