"""When a run saves, resumes and ends: the same for images and text, one worker or several."""

import base64
import contextlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from gluon_amp.base.messages import UsageError
from gluon_amp.casting.statistics import arrays_of
from gluon_amp.optimizer.arrays import all_finite
from gluon_amp.training.runs import log
from gluon_amp.training.runs.checkpoints import Checkpoints, Position, Saved
from gluon_amp.training.runs.history import Counts, History
from gluon_amp.training.runs.interruption import Interruption, RunInterruptedError
from gluon_amp.training.runs.loop import DivergedError, Loop

from mxnet import gluon, nd

# After this many batches, several workers exchange whether one of them received a signal.
EXCHANGE_EVERY = 10


@dataclass
class Keeper:
    """Writes checkpoints when they are due, and ends the run after a signal, in all workers."""

    loop: Loop
    identity: Dict[str, Any]  # what a checkpoint must agree with: see `checkpoints.SAME`
    about: Dict[str, Any]  # what whoever uses the network elsewhere has to know
    checkpoints: Optional[Checkpoints] = None  # None to save nothing
    every: Optional[int] = None  # save after so many batches of an epoch
    history: History = field(default_factory=History)  # results of the epochs so far

    def __post_init__(self) -> None:
        self.engine, self.workers = self.loop.engine, self.loop.workers
        self.interruption = Interruption(quiet=not self.workers.first)

    @property
    def own(self) -> Optional[Checkpoints]:
        """The checkpoints that this worker writes; None if it writes none."""
        return self.checkpoints if self.workers.first else None

    def resume(self, name: str) -> Tuple[Optional[Saved], Counts]:
        """Restore and return the checkpoint that ``--resume`` names, if any, and its counts."""
        saved = self._find(name) if self.workers.first else None
        with self._shared(saved) as saved:
            return saved, self.begin(saved) if saved else Counts()

    def _find(self, name: str) -> Optional[Saved]:
        if name == "auto" and self.checkpoints is not None:
            newest, folder = self.checkpoints.newest(), self.checkpoints.folder
            if newest is None:
                log.logger.info("No checkpoint in %s yet: training from the start.\n", folder)
            return newest
        saved = Saved.read(Path(name))
        if self.checkpoints is not None:
            self.checkpoints.check_last(saved)
        return saved

    @contextlib.contextmanager
    def _shared(self, saved: Optional[Saved]) -> Iterator[Optional[Saved]]:
        """Yield the first worker's checkpoint in all workers, which may not share its disk."""
        if self.workers.count == 1:
            yield saved
            return
        data = self.workers.from_first(saved.path.read_bytes() if saved else b"")
        if self.workers.first or not data:
            yield saved
            return
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "first.ckpt"
            copy.write_bytes(data)
            yield Saved.read(copy)

    def begin(self, saved: Saved) -> Counts:
        """Restore network and trainer from a checkpoint; return the epoch's counts so far."""
        saved.check(self.identity)
        saved.load(self.engine.net, self.engine.trainer)
        own = saved.progress["workers"][self.workers.rank if saved.position.samples else 0]
        if own["statistics"]:
            write_statistics(self.engine.statistics, own["statistics"])
        self.history = History.restored(saved.progress["history"])
        self.loop.steps, self.loop.skipped = self.history.steps, self.history.skipped
        if "state" in saved.progress:
            self.engine.restore(saved.progress["state"])
        return Counts.restored(own["counts"])

    def after_update(self, done: int, position: Position, counts: Counts) -> None:
        """Save if a checkpoint is due after `done` batches or a signal came, which ends the run."""
        number = self._signal(exchange=done % EXCHANGE_EVERY < self.loop.accumulate)
        if number or (self.every and done % self.every < self.loop.accumulate):
            self._save(position, counts)
        if number:
            self._leave(number)

    def after_epoch(self, epoch: int, due: bool, last: bool, best: bool) -> None:
        """Save after an epoch if a checkpoint is due, end the run if a signal came."""
        number = self._signal(exchange=True)
        position = Position(epoch + 1, 0)
        if due or last or number:
            self._save(position, Counts())
        if best:
            self._save(position, Counts(), best)
        if number and not last:
            self._leave(number)

    @contextlib.contextmanager
    def naming_last_good(self) -> Iterator[None]:
        """Add the last checkpoint to the message of a `DivergedError`."""
        try:
            yield
        except DivergedError as error:
            existing = self.checkpoints.existing() if self.checkpoints else []
            if not existing:
                raise
            raise DivergedError(
                f"{error} The last good checkpoint is {existing[-1][1]}: continue from it with "
                "--resume auto."
            ) from None

    def _signal(self, exchange: bool) -> int:
        """Return the signal that any worker received; 0 where several do not `exchange` theirs."""
        own = self.interruption.number or 0
        if self.workers.count == 1:
            return own
        return int(self.workers.every([own]).max()) if exchange else 0

    def _save(self, position: Position, counts: Counts, best: bool = False) -> None:
        if self.checkpoints is None:
            return
        if self.workers.count > 1 and position.samples:
            states = self._states_of_workers(counts)
        else:  # between two epochs all workers have the same statistics, and no counts
            states = [{"counts": counts.state(), "statistics": ""}]
        if not self.workers.first:
            return
        self._check_finite(counts)
        net, trainer, state = self.engine.net, self.engine.trainer, self.engine.state()
        self.history.steps, self.history.skipped = self.loop.steps, self.loop.skipped
        progress: Dict[str, Any] = {"history": self.history.state()}
        if state is not None:
            progress["state"] = state if position.samples else []  # an epoch begins with zeros
        progress.update(about=self.about, rate=trainer.learning_rate, workers=states)
        path = self.checkpoints.save(net, trainer, position, self.identity, progress, best)
        if not best:
            log.logger.info("Saved %s", path)

    def _states_of_workers(self, counts: Counts) -> List[Dict[str, Any]]:
        """Return the counts and statistics of each worker, in which they differ."""
        fields = counts.state()
        arrays = [array.asnumpy().ravel() for array in arrays_of(self.engine.statistics)]
        rows = self.workers.every(np.concatenate([list(fields.values()), *arrays]))
        return [
            {
                "counts": {
                    name: type(value)(number) for (name, value), number in zip(fields.items(), row)
                },
                "statistics": _encode(row[len(fields) :]),
            }
            for row in rows
        ]

    def _check_finite(self, counts: Counts) -> None:
        if counts.loss.images and not np.isfinite(counts.loss.sum):
            raise DivergedError(f"the loss became {counts.loss.sum}, so nothing was saved.")
        for name, value in self.engine.trainer.master_params().items():
            if not all_finite([value]):
                raise DivergedError(f"{name} is not finite any more, so nothing was saved.")

    def _leave(self, number: int) -> None:
        result = "nothing was saved, as there is no --save-dir"
        if self.checkpoints is not None:
            result = f"saved in {self.checkpoints.folder}; continue with --resume auto"
        raise RunInterruptedError(number, result)


def write_statistics(parameters: Sequence[gluon.Parameter], text: str) -> None:
    """Write statistics, as a checkpoint encodes them, into the arrays of these parameters."""
    arrays, start = arrays_of(parameters), 0
    try:
        values = np.frombuffer(base64.b64decode(text, validate=True), np.float32)
    except ValueError:
        values = np.empty(0, np.float32)
    if values.size != sum(array.size for array in arrays):
        raise UsageError("the checkpoint's statistics of this worker are not those of its network.")
    for array in arrays:
        part = values[start : start + array.size].reshape(array.shape)
        array[:] = nd.array(part, ctx=array.context, dtype=array.dtype)
        start += array.size


def _encode(values: np.ndarray) -> str:
    return base64.b64encode(values.astype(np.float32).tobytes()).decode()
