"""When a run saves and when it ends: the same for images and text, one worker or several."""

import base64
import contextlib
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import numpy as np

from gluon_amp.casting.statistics import arrays_of
from gluon_amp.command_line import UsageError
from gluon_amp.distributed.workers import Workers
from gluon_amp.recipes import log
from gluon_amp.recipes.checkpoints import Checkpoints, Position, Saved
from gluon_amp.recipes.history import Counts
from gluon_amp.recipes.interruption import Interruption, RunInterruptedError
from gluon_amp.recipes.loop import DivergedError
from gluon_amp.trainer import Trainer
from gluon_amp.trainer.arrays import all_finite

from mxnet import gluon, nd

# Several workers exchange only after so many updates whether one of them got a signal.
ASK_EVERY = 10


class Keeper:
    """Writes checkpoints when they are due, and ends the run when a signal has asked for it.

    All workers of a run call its methods alike; the first one writes.

    Parameters
    ----------
    checkpoints : Checkpoints or None
        None saves nothing.
    net, trainer
        What a checkpoint holds.
    identity : dict
        See `gluon_amp.recipes.checkpoints.SAME`.
    progress : callable
        Called with the position; returns what else the run restores, as `Checkpoints.save` expects.
    interruption : Interruption
    workers : Workers
    statistics : sequence of Parameter
        BatchNorm's, of which each worker has its own until the end of an epoch.
    every : int, optional
        Save after every so many batches of an epoch.
    accumulate : int
        Batches for each update.
    """

    def __init__(
        self,
        checkpoints: Optional[Checkpoints],
        net: gluon.Block,
        trainer: Trainer,
        identity: Dict[str, Any],
        progress: Callable[[Position], Dict[str, Any]],
        interruption: Interruption,
        workers: Optional[Workers] = None,
        statistics: Sequence[gluon.Parameter] = (),
        every: Optional[int] = None,
        accumulate: int = 1,
    ):
        self._checkpoints = checkpoints
        self._net, self._trainer = net, trainer
        self._identity = identity
        self._progress = progress
        self._interruption = interruption
        self._workers = workers or Workers()
        self._statistics = statistics
        self._every = every
        self._accumulate = accumulate

    def begin(self, saved: Saved) -> Counts:
        """Restore network and trainer from a checkpoint; return the epoch's counts so far.

        Raises
        ------
        UsageError
            The checkpoint is of another run.
        """
        saved.check(self._identity)
        saved.load(self._net, self._trainer)
        own = saved.progress["workers"][self._workers.rank if saved.position.samples else 0]
        if own["statistics"]:
            write_statistics(self._statistics, own["statistics"])
        return Counts.restored(own["counts"])

    def after_update(self, done: int, position: Position, counts: Counts) -> None:
        """Save and leave if a signal asked for it, or save if it is time.

        Parameters
        ----------
        done : int
            Batches of the epoch, as one worker counts them.
        position, counts
            After these batches.
        """
        asked = self._asked(done % ASK_EVERY < self._accumulate)
        if asked or (self._every and done % self._every < self._accumulate):
            self._save(position, counts)
        if asked:
            self._leave(asked)

    def after_epoch(self, epoch: int, due: bool, last: bool, best: bool) -> None:
        """Save after an epoch, and leave if a signal asked for it.

        Parameters
        ----------
        epoch : int
            The one that is over.
        due, last, best : bool
            Whether it is time for a checkpoint, the run is over, no epoch was better.
        """
        asked = self._asked(True)
        position = Position(epoch + 1, 0)
        if due or last or asked:
            self._save(position, Counts())
        if best and self._checkpoints and self._workers.first:
            self._check_finite(Counts())
            self._checkpoints.save_best(*self._state(position, [Counts()]))
        if asked and not last:
            self._leave(asked)

    @contextlib.contextmanager
    def naming_last_good(self) -> Iterator[None]:
        """Add to a `DivergedError` which checkpoint was written before it."""
        try:
            yield
        except DivergedError as error:
            found = self._checkpoints.found() if self._checkpoints else []
            if not found:
                raise
            raise DivergedError(
                f"{error} The last good checkpoint is {found[-1][1]}: --resume auto goes on from "
                "it."
            ) from None

    def _asked(self, now: bool) -> int:
        """Return the signal that any worker got, or 0; several workers exchange it if `now`."""
        own = self._interruption.number or 0
        if self._workers.count == 1:
            return own
        return int(self._workers.every([own]).max()) if now else 0

    def _save(self, position: Position, counts: Counts) -> None:
        if self._checkpoints is None:
            return
        # between two epochs all workers have the same statistics, and no counts
        differ = self._workers.count > 1 and position.samples
        workers = self._of_all_workers(counts) if differ else [counts]
        if self._workers.first:
            self._check_finite(counts)
            path = self._checkpoints.save(*self._state(position, workers))
            log.logger.info("Saved %s", path)

    def _state(self, position: Position, workers: list) -> tuple:
        progress = {
            **self._progress(position),
            "rate": self._trainer.learning_rate,
            "workers": [
                one if isinstance(one, dict) else {"counts": one.state(), "statistics": ""}
                for one in workers
            ],
        }
        return self._net, self._trainer, position, self._identity, progress

    def _of_all_workers(self, counts: Counts) -> List[Dict[str, Any]]:
        """Return what the workers do not have in common."""
        fields = counts.state()
        arrays = [array.asnumpy().ravel() for array in arrays_of(self._statistics)]
        rows = self._workers.every(np.concatenate([list(fields.values()), *arrays]))
        return [
            {
                "counts": {
                    name: type(value)(number) for (name, value), number in zip(fields.items(), row)
                },
                "statistics": _text(row[len(fields) :]),
            }
            for row in rows
        ]

    def _check_finite(self, counts: Counts) -> None:
        if counts.loss.images and not np.isfinite(counts.loss.sum):
            raise DivergedError(f"the loss became {counts.loss.sum}, so nothing was saved.")
        for name, value in self._trainer.master_params().items():
            if not all_finite([value]):
                raise DivergedError(f"{name} is not finite any more, so nothing was saved.")

    def _leave(self, number: int) -> None:
        kept = "nothing was saved, as there is no --save-dir"
        if self._checkpoints is not None:
            kept = "saved; go on with --resume auto"
        raise RunInterruptedError(number, f"interrupted by signal {number}: {kept}.")


def write_statistics(parameters: Sequence[gluon.Parameter], text: str) -> None:
    """Write the text that `_text` returned for these parameters back into their arrays.

    Raises
    ------
    UsageError
        They are of another network.
    """
    arrays, start = arrays_of(parameters), 0
    try:
        values = np.frombuffer(base64.b64decode(text, validate=True), np.float32)
    except ValueError:
        values = np.empty(0)
    if values.size != sum(array.size for array in arrays):
        raise UsageError("the checkpoint's statistics of this worker are not those of its network.")
    for array in arrays:
        part = values[start : start + array.size].reshape(array.shape)
        array[:] = nd.array(part, ctx=array.context, dtype=array.dtype)
        start += array.size


def _text(values: np.ndarray) -> str:
    return base64.b64encode(values.astype(np.float32).tobytes()).decode()
