"""Names of classes: kept beside packed images, and the same for training and validation."""

import json
from pathlib import Path
from typing import Any, Collection, Sequence, Tuple

from gluon_amp.data.source import DataError, read_file

CLASSES_FILE = "classes.json"


def write_classes(folder: Path, names: Sequence[str]) -> Path:
    """Write ``folder/classes.json``: a list of names, by label."""
    path = folder / CLASSES_FILE
    path.write_text(json.dumps(list(names), ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    return path


def read_classes(folder: Path) -> Tuple[str, ...]:
    """Return the names in ``folder/classes.json``, none if there is no such file.

    Raises
    ------
    DataError
        It is not a list of different names.
    """
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
    train: Collection[Any], val: Collection[Any], train_at: Path, val_at: Path
) -> None:
    """Raise `DataError` with an example if two sets do not have the same classes.

    A label is the rank of a class, so one class more or less would shift all that follow. Lists and
    tuples must have the same order, too.
    """
    for here, there, at in ((train, val, train_at), (val, train, val_at)):
        only = sorted(set(here) - set(there))
        if only:
            raise DataError(
                f"{train_at} has {len(train)} classes, {val_at} has {len(val)}, and class "
                f"{only[0]} is only in {at.name}: they must be the same classes."
            )
    if train != val:
        raise DataError(
            f"{train_at} and {val_at} name the same classes in another order: pack both again."
        )
