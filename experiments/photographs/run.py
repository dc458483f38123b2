"""Trains the folds that have no result yet, each of which writes a file when it is finished."""

import json
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

from experiments.photographs.fits import ROWS, Row, fit
from experiments.photographs.stamps import Fold, Photographs, folds
from experiments.results.record import read_json
from gluon_amp.command_line import UsageError
from gluon_amp.files import atomic

Task = Tuple[Row, Photographs, Fold, Path]


def plan(photographs: Photographs, folder: Path, most: Optional[int]) -> List[Task]:
    """Return every fold of every row; rows alternate, so that a slow hour affects all alike."""
    repeats = {row: min(row.training.repeats, most or row.training.repeats) for row in ROWS}
    return [
        (row, photographs, fold, folder / row.name / f"repeat-{fold.repeat}-{fold.number}.json")
        for fold in folds(photographs, max(repeats.values()))
        for row in ROWS
        if fold.repeat < repeats[row]
    ]


def finished(task: Task) -> bool:
    """Return whether a fold has a result; one of other settings is a `UsageError`."""
    row, photographs, _, file = task
    if not file.exists():
        return False
    if read_json(file).get("settings") != row.settings(photographs):
        raise UsageError(
            f"{file} has a result of other settings or photographs: choose another --output, or "
            "remove it."
        )
    return True


def train(tasks: Sequence[Task]) -> None:
    """Train folds, one after the other."""
    for done, task in enumerate(tasks, 1):
        print(f"[{done}/{len(tasks)}] {work(task)}", flush=True)


def work(task: Task) -> str:
    """Train one fold and write its result; return it in words."""
    row, photographs, fold, file = task
    result = fit(row, photographs, fold)
    file.parent.mkdir(parents=True, exist_ok=True)
    saved = {"settings": row.settings(photographs), "result": result}
    atomic.write(file, (json.dumps(saved, indent=1) + "\n").encode())
    return (
        f"{row.name}, repeat {fold.repeat}, fold {fold.number}: {result['accuracy']:.1f} %, "
        f"{result['seconds']:.0f} s"
    )
