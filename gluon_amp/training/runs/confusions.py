"""Which classes a trained network confuses."""

from dataclasses import dataclass
from typing import Iterable, List, Sequence, Tuple

import numpy as np

from gluon_amp.training.runs.engines.base import Engine


@dataclass(frozen=True)
class Confusion:
    """How many of a class's images were classified as another class."""

    count: int
    images: int
    true: str
    taken_for: str

    def __str__(self) -> str:
        return f"{self.count} of {self.images} images of {self.true} taken for {self.taken_for}"


def confusion_matrix(engine: Engine, batches: Iterable, classes: int) -> np.ndarray:
    """Return how many images of each class (row) were classified as each class (column), int64."""
    matrix = np.zeros((classes, classes), np.int64)
    for batch in batches:
        for labels, outputs in engine.predict(batch):
            predicted = outputs.argmax(axis=1).asnumpy().astype(np.int64)
            np.add.at(matrix, (labels.asnumpy().astype(np.int64), predicted), 1)
    return matrix


def worst(matrix: np.ndarray, names: Sequence[str], number: int) -> List[Confusion]:
    """Return the pairs of classes that are confused most often, at most `number`."""
    wrong = matrix - np.diag(np.diag(matrix))
    order = np.argsort(-wrong, axis=None, kind="stable")[:number]
    pairs: List[Tuple[int, int]] = [divmod(int(index), len(matrix)) for index in order]
    names = list(names) or [f"class {label}" for label in range(len(matrix))]
    return [
        Confusion(int(wrong[i, j]), int(matrix[i].sum()), names[i], names[j])
        for i, j in pairs
        if wrong[i, j]
    ]
