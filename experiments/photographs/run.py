"""Trains the folds that have no result yet, each of which writes a file when it is finished."""

import datetime
import json
from pathlib import Path
from typing import List, Mapping, NamedTuple, Optional, Sequence

from experiments.photographs.fits import Row, fit
from experiments.photographs.stamps import Fold, Photographs, folds
from gluon_amp.base.messages import UsageError
from gluon_amp.files import atomic
from gluon_amp.training.tables.machine import describe_cpu, versions
from gluon_amp.training.tables.record import read_json


class Task(NamedTuple):
    """A fold of a row, and the file of its result."""

    row: Row
    photographs: Photographs
    fold: Fold
    file: Path


def plan(
    photographs: Photographs, folder: Path, repeats: Mapping[Row, range], most: Optional[int] = None
) -> List[Task]:
    """Return every fold of every row; rows alternate, so that a slow hour affects all alike.

    `repeats` are those of each row, of which the first `most` are trained.
    """
    chosen = {row: each[:most] for row, each in repeats.items()}
    return [
        Task(row, photographs, fold, folder / row.name / f"repeat-{fold.repeat}-{fold.number}.json")
        for fold in folds(photographs, sorted(set().union(*chosen.values())))
        for row, each in chosen.items()
        if fold.repeat in each
    ]


def finished(task: Task) -> bool:
    """Return whether a fold has a result; one of other settings is a `UsageError`."""
    if not task.file.exists():
        return False
    if read_json(task.file).get("settings") != task.row.settings(task.photographs):
        raise UsageError(
            f"{task.file} has a result of other settings or photographs: choose another --output, "
            "or remove it."
        )
    return True


def train(tasks: Sequence[Task]) -> None:
    """Train folds, one after the other."""
    for done, task in enumerate(tasks, 1):
        print(f"[{done}/{len(tasks)}] {work(task)}", flush=True)


def work(task: Task) -> str:
    """Train one fold and write its result; return it in words."""
    row, photographs, fold, file = task
    result = {
        **fit(row, photographs, fold),
        "hardware": describe_cpu(),
        "versions": versions(),
        "date": datetime.date.today().isoformat(),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    saved = {"settings": row.settings(photographs), "result": result}
    atomic.write(file, (json.dumps(saved, indent=1) + "\n").encode())
    return (
        f"{row.name}, repeat {fold.repeat}, fold {fold.number}: {result['accuracy']:.1f} %, "
        f"{result['seconds']:.0f} s"
    )
