"""Names of classes: read and written beside packed images, compared between two sets."""

import json
from pathlib import Path
from typing import Any, Collection, Sequence, Tuple

from gluon_amp.training.data.source import DataError, read_file

CLASSES_FILE = "classes.json"


def write_classes(folder: Path, names: Sequence[str]) -> Path:
    """Write ``folder/classes.json``: a list of names, by label."""
    path = folder / CLASSES_FILE
    path.write_text(json.dumps(list(names), ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    return path


def read_classes(folder: Path) -> Tuple[str, ...]:
    """Return the names in ``folder/classes.json``, or an empty tuple if there is no such file."""
    path = folder / CLASSES_FILE
    if not path.exists():
        return ()
    try:
        names = json.loads(read_file(path))
    except (ValueError, OSError, RecursionError):
        names = None
    if (
        not isinstance(names, list)
        or not names
        or not all(isinstance(name, str) for name in names)
        or len(set(names)) != len(names)
    ):
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
