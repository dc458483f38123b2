"""After training: which classes are confused, and files for stock MXNet."""

import contextlib
import os
from pathlib import Path
from typing import Iterable, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np

from gluon_amp.casting.cast import cast
from gluon_amp.recipes.checkpoints import SavingError
from gluon_amp.recipes.engine import Engine

import mxnet as mx
from mxnet.gluon import HybridBlock


class Confusion(NamedTuple):
    """So many images of one class were taken for another."""

    count: int
    images: int
    true: str
    taken_for: str

    def __str__(self) -> str:
        return f"{self.count} of {self.images} images of {self.true} taken for {self.taken_for}"


def confusion_matrix(engine: Engine, batches: Iterable, classes: int) -> np.ndarray:
    """Return how many images of each class (row) were taken for each class (column), int64."""
    matrix = np.zeros((classes, classes), np.int64)
    for batch in batches:
        for labels, outputs in engine.predict(batch):
            taken = outputs.argmax(axis=1).asnumpy().astype(np.int64)
            np.add.at(matrix, (labels.asnumpy().astype(np.int64), taken), 1)
    return matrix


def worst(matrix: np.ndarray, names: Sequence[str], number: int) -> List[Confusion]:
    """Return the pairs of classes that are confused most, at most `number`.

    Parameters
    ----------
    matrix : ndarray
        As `confusion_matrix` returns it.
    names : sequence of str
        Of the classes; where there are none, they have their numbers.
    number : int
    """
    wrong = matrix - np.diag(np.diag(matrix))
    order = np.argsort(-wrong, axis=None, kind="stable")[:number]
    pairs: List[Tuple[int, int]] = [divmod(int(at), len(matrix)) for at in order]
    called = list(names) or [f"class {label}" for label in range(len(matrix))]
    return [
        Confusion(int(wrong[i, j]), int(matrix[i].sum()), called[i], called[j])
        for i, j in pairs
        if wrong[i, j]
    ]


@contextlib.contextmanager
def saving(what: str) -> Iterator[None]:
    """Turn errors of the system and of MXNet, while something is written, into a `SavingError`."""
    try:
        yield
    except (OSError, mx.MXNetError) as error:
        reason = getattr(error, "strerror", None) or "no room on the disk?"
        raise SavingError(f"{what} cannot be written: {reason}.") from None


def save_parameters(net: HybridBlock, path: Path) -> None:
    """Write a network's float32 parameters, in one piece or not at all.

    Raises
    ------
    SavingError
        There is no room on the disk, for example.
    """
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with saving(str(path)):
            net.save_parameters(str(unfinished))
            mx.nd.load(str(unfinished))  # MXNet does not notice a full disk
            os.replace(unfinished, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            unfinished.unlink()


def export(
    net: HybridBlock, policy: str, folder: Path, name: str, shape: Tuple[int, ...]
) -> List[Path]:
    """Write ``NAME-POLICY`` and ``NAME-float32``, each a symbol and its parameters.

    Stock MXNet loads both by `SymbolBlock.imports`. The network is in float32 afterwards, with
    every bit of its masters.

    Parameters
    ----------
    net : HybridBlock
        Trained.
    policy : str
        That it was cast by.
    folder : Path
        Is made where it is missing.
    name : str
    shape : tuple of int
        Of an image: (channels, height, width).

    Raises
    ------
    SavingError
        The files cannot be written.
    """
    written = []
    context = next(iter(net.collect_params().values())).list_ctx()[0]
    for dtype in dict.fromkeys((policy, "float32")):
        cast(net, dtype)
        net.hybridize()
        net(mx.nd.zeros((1, *shape), ctx=context)).wait_to_read()
        prefix = folder / f"{name}-{dtype}"
        with saving(f"--export {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            net.export(str(prefix), remove_amp_cast=False)  # the casts are the policy
            mx.nd.load(f"{prefix}-0000.params")  # MXNet does not notice a full disk
        written += [Path(f"{prefix}-symbol.json"), Path(f"{prefix}-0000.params")]
    return written
