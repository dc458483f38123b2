"""Folders of classes: their names, their images, and the division into training and validation."""

import hashlib
import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Collection, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from gluon_amp.training.data.source import DataError, read_file

SUFFIXES = (".jpg", ".jpeg", ".png")
CLASSES_FILE = "classes.json"  # beside packed images: the names of their classes, by label
PARTS = ("train", "val")  # folders of a data set that is divided already


class Image(NamedTuple):
    """An image file and its class."""

    name: str  # 'CLASS/FILE', relative to the folder that holds the classes
    label: int


@dataclass(frozen=True)
class Tree:
    """A folder of classes."""

    folder: Path  # has a folder for each class
    classes: Tuple[str, ...]  # sorted by their bytes; a label is the rank of a class
    images: Tuple[Image, ...]  # by label, then by the bytes of the name
    ignored: Tuple[str, ...]  # other files and folders in the folders of the classes

    def count(self) -> List[int]:
        """Return the number of images of each class."""
        counts = Counter(image.label for image in self.images)
        return [counts[label] for label in range(len(self.classes))]


def is_divided(root: Path) -> bool:
    """Return whether a folder holds ``train`` and ``val``."""
    return all((root / part).is_dir() for part in PARTS)


def read_tree(folder: Path, without: Collection[str] = ()) -> Tree:
    """List the .jpg, .jpeg and .png files in ``folder/CLASS``, `without` classes or ``CLASS/FILE``.

    Hidden files and folders are left out, and so are files beside the classes. Folders within a
    class are ignored.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: expected one with a folder for each class.")
    left_out = {name.rstrip("/") for name in without}
    matched: Set[str] = set()
    images: List[Image] = []
    ignored: List[str] = []
    classes: List[str] = []
    for entry in _sorted(folder):
        if not entry.is_dir():
            continue
        if entry.name in left_out:
            matched.add(entry.name)
            continue
        label = len(classes)
        try:  # whatever the locale is
            classes.append(os.fsencode(entry.name).decode("utf-8"))
        except UnicodeDecodeError:
            raise DataError(
                f"{folder} holds a class {entry.name!a}, not in UTF-8: rename it."
            ) from None
        for file in _sorted(entry):
            name = f"{entry.name}/{file.name}"
            if name in left_out:
                matched.add(name)
            elif file.is_file() and file.name.lower().endswith(SUFFIXES):
                images.append(Image(name, label))
            else:
                ignored.append(name)
    tree = Tree(folder, tuple(classes), tuple(images), tuple(ignored))
    for missing in sorted(left_out - matched):
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


def write_classes(folder: Path, names: Sequence[str]) -> None:
    """Write ``folder/classes.json``: a list of names, by label."""
    text = json.dumps(list(names), ensure_ascii=False, indent=0) + "\n"
    (folder / CLASSES_FILE).write_text(text, encoding="utf-8")


def read_classes(folder: Path) -> Tuple[str, ...]:
    """Return the names in ``folder/classes.json``, or an empty tuple if there is no such file."""
    path = folder / CLASSES_FILE
    if not path.exists():
        return ()
    try:
        names = json.loads(read_file(path))
    except (ValueError, OSError, RecursionError):
        names = None
    texts = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not names or not texts or len(set(names)) != len(names):
        raise DataError(f"{path} is not a list of different class names: pack the data again.")
    return tuple(names)


def check_same_classes(
    train: Collection[Any], val: Collection[Any], train_path: Path, val_path: Path
) -> None:
    """Raise `DataError` with an example if classes differ: one more would shift the labels."""
    for classes, others, path in ((train, val, train_path), (val, train, val_path)):
        missing = sorted(set(classes) - set(others))
        if missing:
            raise DataError(
                f"{train_path} has {len(train)} classes, {val_path} has {len(val)}, and class "
                f"{missing[0]} is only in {path.name}: they must be the same classes."
            )
    if train != val:
        raise DataError(
            f"{train_path} and {val_path} name the same classes in another order: pack both again."
        )


@dataclass(frozen=True)
class Split:
    """How many images are for training; the others are for validation. At most one number is set.

    The draw from a class depends on the seed and on the file names in the class alone. A larger
    number draws the same images and more. A total is divided in proportion to the classes: the
    exact share, rounded down, and one more from the classes with the largest remainders.
    """

    per_class: Optional[int] = None  # images of each class
    total: Optional[int] = None
    seed: int = 0

    def divide(self, tree: Tree) -> Dict[str, List[Image]]:
        """Return the images for ``'train'``, shuffled, and for ``'val'``, in the tree's order."""
        if self.per_class is not None:
            quotas = _equal_quotas(tree, self.per_class)
        else:
            quotas = _proportional_quotas(tree, self.total or 0)
        train, val = draw(tree, quotas, self.seed)
        return {"train": train, "val": val}


def draw(tree: Tree, quotas: Sequence[int], seed: int) -> Tuple[List[Image], List[Image]]:
    """Draw so many images of each class; return them, shuffled, and the others, in their order."""
    counts = [0] * len(quotas)
    drawn = []
    for image in shuffled(tree.images, seed):
        if counts[image.label] < quotas[image.label]:
            counts[image.label] += 1
            drawn.append(image)
    taken = set(drawn)
    return drawn, [image for image in tree.images if image not in taken]


def shuffled(images: Iterable[Image], seed: int) -> List[Image]:
    """Return images in a random order that does not depend on the version of Python or numpy."""

    def key(image: Image) -> bytes:
        return hashlib.sha256(b"%d %s" % (seed, os.fsencode(image.name))).digest()

    return sorted(images, key=key)


def _equal_quotas(tree: Tree, images: int) -> List[int]:
    least, name = min(zip(tree.count(), tree.classes))
    if images >= least:
        raise DataError(
            f"{tree.folder}/{name} has {least} images, so {images} of each class for training "
            f"would leave none for validation: choose at most {least - 1}."
        )
    return [images] * len(tree.classes)


def _proportional_quotas(tree: Tree, images: int) -> List[int]:
    counts, total = tree.count(), len(tree.images)
    shares = [divmod(images * count, total) for count in counts]
    quotas = [whole for whole, _ in shares]
    by_remainder = sorted(range(len(counts)), key=lambda label: -shares[label][1])
    for label in by_remainder[: images - sum(quotas)]:
        quotas[label] += 1
    for name, count, quota in zip(tree.classes, counts, quotas):
        if not 0 < quota < count:
            raise DataError(
                f"{images} of all {total} images for training would be {quota} of the {count} in "
                f"{tree.folder}/{name}: each class needs images for training and for validation."
            )
    return quotas
