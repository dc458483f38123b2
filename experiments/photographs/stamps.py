"""Photographs in categories: the stamps of Tux Paint, read where Debian puts them.

They are GPL-2, so no file of them is in this repository. The rule below selects photographs:
drawings have names of their own, mirror images would be near copies of a training image, and a
category needs enough images for five folds.
"""

import hashlib
from pathlib import Path
from typing import Iterable, Iterator, List, NamedTuple, Tuple

from sklearn.model_selection import StratifiedKFold

from gluon_amp.base.messages import UsageError

PACKAGE = "tuxpaint-stamps-default"
FOLDER = Path("/usr/share/tuxpaint/stamps")

CATEGORIES = (
    *("animals", "clothes", "food", "household", "plants"),
    *("seasonal", "space", "town", "vehicles"),
)
LEFT_OUT = ("cartoon", "_mirror", "_flip")  # in a path below the category
FOLDS = 5


class Photographs(NamedTuple):
    """Files and labels."""

    items: Tuple[Tuple[str, int], ...]
    digest: str  # of the files' names and contents

    @property
    def labels(self) -> List[int]:
        return [label for _, label in self.items]


class Fold(NamedTuple):
    """One division into training and validation images, as positions."""

    repeat: int
    number: int
    train: Tuple[int, ...]
    val: Tuple[int, ...]

    @property
    def seed(self) -> int:
        """The seed of the head's initial weights and of the order; each row has the same."""
        return self.repeat * FOLDS + self.number


def open_stamps(folder: Path) -> Photographs:
    """Return the selected photographs below a folder, in the order of their paths.

    A category with too few images is a `UsageError`.
    """
    items, digest = [], hashlib.sha256()
    for label, category in enumerate(CATEGORIES):
        paths = sorted((folder / category).glob("**/*.png"))
        names = [path.relative_to(folder).as_posix() for path in paths]
        chosen = [n for n in names if not any(word in n for word in LEFT_OUT)]
        if len(chosen) < FOLDS:
            raise UsageError(
                f"{folder} holds {len(chosen)} photographs of {category}: run `apt-get install "
                f"{PACKAGE}`, or give the folder of its stamps as --stamps."
            )
        for name in chosen:
            digest.update(name.encode() + b"\0" + (folder / name).read_bytes())
            items.append((str(folder / name), label))
    return Photographs(tuple(items), digest.hexdigest())


def folds(photographs: Photographs, repeats: Iterable[int]) -> Iterator[Fold]:
    """Yield the folds of repeated stratified cross-validation, each repeat with a split of its own.

    In a repeat, each image is in the validation part of exactly one fold.
    """
    labels = photographs.labels
    for repeat in repeats:
        splitter = StratifiedKFold(FOLDS, shuffle=True, random_state=repeat)
        for number, (train, val) in enumerate(splitter.split(labels, labels)):
            yield Fold(repeat, number, tuple(train.tolist()), tuple(val.tolist()))
