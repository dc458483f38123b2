"""Names of classes: read and written beside packed images, compared between two sets."""

import json
from pathlib import Path
from typing import Any, Collection, Sequence, Tuple

from gluon_amp.training.data.source import DataError, read_file

CLASSES_FILE = "classes.json"


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
