"""Divide a folder of classes into images to train on and images to validate with."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Collection, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from gluon_amp.data.folders import SUFFIXES
from gluon_amp.data.source import DataError


class Image(NamedTuple):
    """An image file and its class."""

    name: str  # 'CLASS/FILE', relative to the folder that holds the classes
    label: int


@dataclass(frozen=True)
class Tree:
    """A folder of classes.

    Attributes
    ----------
    folder : Path
        Holds one folder for each class.
    classes : tuple of str
        Sorted by their bytes; a label is a rank among them.
    images : tuple of Image
        By label, then by the bytes of the name.
    ignored : tuple of str
        What lies in the classes and is no image there: other files, and folders.
    """

    folder: Path
    classes: Tuple[str, ...]
    images: Tuple[Image, ...]
    ignored: Tuple[str, ...]

    def count(self) -> List[int]:
        """Return the number of images of each class."""
        counts = [0] * len(self.classes)
        for image in self.images:
            counts[image.label] += 1
        return counts


def ignored_in_words(names: Sequence[str], shown: int = 5) -> str:
    """Return the sentence that tells what is ignored, the first few by name."""
    more = len(names) - shown
    listed = ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")
    return f"Ignored, as these are no images: {listed}."


def read_tree(folder: Path, without: Collection[str] = ()) -> Tree:
    """List ``folder/CLASS/*``, every .jpg, .jpeg and .png of it.

    Hidden files and folders are left out, as are files beside the classes. What lies deeper than
    the classes is ignored.

    Parameters
    ----------
    folder : Path
        Holds one folder for each class.
    without : collection of str
        Classes to leave out, or images by their name ``CLASS/FILE``.

    Raises
    ------
    DataError
        No images, a class without images, one whose name is not UTF-8, or a name in `without` that
        is not there.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: expected one with a folder for each class.")
    left_out = {name.rstrip("/") for name in without}
    found, images, ignored, classes = set(), [], [], []
    for entry in _sorted(folder):
        if not entry.is_dir():
            continue
        if entry.name in left_out:
            found.add(entry.name)
            continue
        if any("\ud800" <= letter <= "\udfff" for letter in entry.name):
            raise DataError(f"{folder} holds a class {entry.name!a}, not in UTF-8: rename it.")
        label = len(classes)
        classes.append(entry.name)
        for file in _sorted(entry):
            name = f"{entry.name}/{file.name}"
            if name in left_out:
                found.add(name)
            elif file.is_file() and file.name.lower().endswith(SUFFIXES):
                images.append(Image(name, label))
            else:
                ignored.append(name)
    tree = Tree(folder, tuple(classes), tuple(images), tuple(ignored))
    for missing in sorted(left_out - found):
        raise DataError(f"{folder} holds no {missing}, so it cannot be left out.")
    if not classes:
        raise DataError(f"{folder} holds no folders: expected one for each class.")
    for name, images_of_class in zip(tree.classes, tree.count()):
        if not images_of_class:
            raise DataError(f"{folder}/{name} counts as a class but has no images: remove it.")
    return tree


def _sorted(folder: "os.PathLike[str]") -> List["os.DirEntry[str]"]:
    visible = (entry for entry in os.scandir(folder) if not entry.name.startswith("."))
    return sorted(visible, key=lambda entry: os.fsencode(entry.name))


# ----------------------------------------------------------------------------------------- splits


@dataclass(frozen=True)
class Split:
    """How many images to train on; the others validate. At most one of the numbers is given.

    Attributes
    ----------
    per_class : int or None
        Images of each class. The draw of a class depends on the seed and its file names alone, so
        it is the same whichever other classes there are, and a smaller number draws a part of what
        a larger one does.
    total : int or None
        Images in all, from each class in proportion: its exact share, rounded down, and one more
        from the classes with the largest rests.
    seed : int
        Decides which.
    """

    per_class: Optional[int] = None
    total: Optional[int] = None
    seed: int = 0

    def divide(self, tree: Tree) -> Dict[str, List[Image]]:
        """Return ``'train'``, in an order of chance, and ``'val'``, in the tree's order.

        Raises
        ------
        DataError
            A class would have nothing to train on or nothing left to validate with.
        """
        if self.total is None:
            return _divide(tree, _equal_quotas(tree, self.per_class), self.seed)
        return _divide(tree, _proportional_quotas(tree, self.total), self.seed)


def _equal_quotas(tree: Tree, images: int) -> List[int]:
    least, name = min(zip(tree.count(), tree.classes))
    if images >= least:
        raise DataError(
            f"{tree.folder}/{name} has {least} images, so {images} of each class to train on would "
            f"leave none to validate with: choose at most {least - 1}."
        )
    return [images] * len(tree.classes)


def _proportional_quotas(tree: Tree, images: int) -> List[int]:
    counts, total = tree.count(), len(tree.images)
    shares = [divmod(images * count, total) for count in counts]
    quotas = [whole for whole, _ in shares]
    by_rest = sorted(range(len(counts)), key=lambda label: -shares[label][1])
    for label in by_rest[: images - sum(quotas)]:
        quotas[label] += 1
    for name, count, quota in zip(tree.classes, counts, quotas):
        if not 0 < quota < count:
            raise DataError(
                f"{images} of all {total} images to train on would be {quota} of the {count} in "
                f"{tree.folder}/{name}: each class needs images to train on and to validate with."
            )
    return quotas


def _divide(tree: Tree, quotas: Sequence[int], seed: int) -> Dict[str, List[Image]]:
    taken = [0] * len(quotas)
    train = []
    for image in shuffled(tree.images, seed):
        if taken[image.label] < quotas[image.label]:
            taken[image.label] += 1
            train.append(image)
    drawn = set(train)
    return {"train": train, "val": [image for image in tree.images if image not in drawn]}


def shuffled(images: Iterable[Image], seed: int) -> List[Image]:
    """Return them in an order of chance that no version of Python or numpy can change."""

    def key(image: Image) -> bytes:
        return hashlib.sha256(b"%d %s" % (seed, os.fsencode(image.name))).digest()

    return sorted(images, key=key)
