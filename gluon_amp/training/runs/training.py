"""Trains from where a run begins to its last epoch: the same for images and for text."""

from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, Optional, Tuple

from gluon_amp.base.messages import UsageError
from gluon_amp.trainer.ema import EMA
from gluon_amp.training.data import describe_unreadable
from gluon_amp.training.runs import log
from gluon_amp.training.runs.checkpoints import Checkpoints, Position
from gluon_amp.training.runs.history import Counts, EpochResult, History, Validation
from gluon_amp.training.runs.keeper import Keeper
from gluon_amp.training.runs.loop import Batches, Loop, ValBatches
from gluon_amp.training.runs.options import Options
from gluon_amp.training.workers.group import average_statistics

Epoch = Tuple[int, EpochResult, Optional[Validation]]  # its number, and None without a validation


@dataclass
class Training:
    """A run that is ready to start. `Reporter` tells of it."""

    recipe: Options
    data: Any  # Source, or TextSize
    loop: Loop
    batches: Batches
    val_batches: ValBatches
    total_batch: Any  # what is in one update: of all devices, workers, and accumulated batches
    about: Dict[str, Any]  # what whoever uses the network elsewhere has to know
    keeps_best: bool = False  # besides the newest
    start: Optional[Position] = None  # where it begins, if not at a checkpoint
    average: Optional[EMA] = field(default=None, init=False)
    averaged: Optional[Validation] = field(default=None, init=False)  # the last one of the average

    def __post_init__(self) -> None:
        recipe, data, engine = self.recipe, self.data, self.loop.engine
        identity = {
            "model": recipe.model,
            "data": data.name,
            "classes": data.classes,
            "train_images": data.train_images,
            "dtype": recipe.arithmetic,
            "total_batch": self.total_batch,
            "seed": recipe.seed,
            "workers": self.loop.workers.count,
        }
        kept = Checkpoints(recipe.save_dir, recipe.keep) if recipe.save_dir else None
        self.keeper = Keeper(self.loop, identity, self.about, kept, recipe.save_batches)
        decay = recipe.ema_decay
        if decay is not None:
            try:
                self.average = EMA(engine.net, engine.trainer, decay)
            except ValueError as error:  # it is 0 or 1 in float32
                raise UsageError(f"--ema-decay {decay!r}: {error}") from None

    @property
    def history(self) -> History:
        """The results of the epochs so far."""
        return self.keeper.history

    @property
    def samples(self) -> Tuple[int, int]:
        """Samples in a batch and in an epoch, of all workers together."""
        count = self.loop.workers.count
        return self.batches.batch_size * count, self.batches.images * count

    def begin(self) -> Tuple[Position, Counts]:
        """Return where the run begins, after a checkpoint is restored, if there is one."""
        recipe, keeper = self.recipe, self.keeper
        if self.start is not None:
            return self.start, Counts()
        saved, counts = None, Counts()
        if recipe.resume is not None:
            saved, counts = keeper.resume(recipe.resume)
        elif keeper.own and not recipe.eval_only:
            keeper.own.check_unused()
        if saved is None:
            return Position(0, 0), counts
        if self.average and len(self.history.averaged) == len(self.history.validated):
            self.averaged = next(reversed(self.history.averaged), None)
        finished = saved.position.epoch >= recipe.num_epochs and not recipe.eval_only
        hint = "\nThat run is finished: to train on, give more --num-epochs." if finished else ""
        epoch, samples = saved.position
        line = "Resuming from %s: epoch %d/%d, %d samples done.%s\n"
        log.logger.info(line, saved.path, epoch + 1, recipe.num_epochs, samples, hint)
        return saved.position, counts

    def epochs(self, position: Position, counts: Counts) -> Iterator[Epoch]:
        """Train the epochs that are left; yield each, after which its checkpoint is saved."""
        recipe, engine = self.recipe, self.loop.engine
        for epoch in range(position.epoch, recipe.num_epochs):
            start = position.first_batch(*self.samples) if epoch == position.epoch else 0
            result = self._train(epoch, start, counts if start else Counts())
            last = epoch + 1 == recipe.num_epochs
            validates = last or (epoch + 1) % recipe.eval_frequency == 0
            validation = self.validate(epoch) if validates else None
            self._remember(result, validation)
            yield epoch, result, validation
            saves = last or (epoch + 1) % recipe.save_frequency == 0
            if saves and self.keeper.own:
                engine.save_epoch(recipe.save_dir, recipe.model, epoch + 1)
            best = self.keeps_best and self.history.best_epoch == epoch
            self.keeper.after_epoch(epoch, saves, last, best)

    def _train(self, epoch: int, start: int, counts: Counts) -> EpochResult:
        batch, whole = self.samples

        def after_update(done: int, counts: Counts) -> None:
            self.keeper.after_update(done, Position(epoch, min(done * batch, whole)), counts)

        result = self.loop.train(self.batches, epoch, start, counts, after_update)
        if self.batches.unreadable:
            where = log.place(epoch, self.recipe.num_epochs)
            log.logger.info("%s  %s", where, describe_unreadable(self.batches.unreadable))
        average_statistics(self.loop.engine.statistics, self.loop.workers)
        return result

    def _remember(self, result: EpochResult, validation: Optional[Validation]) -> None:
        history = self.history
        history.trained.append(result)
        history.validated.append(validation)
        if self.average:  # of epochs that were trained without it, there is none
            missing = len(history.validated) - 1 - len(history.averaged)
            history.averaged += [None] * missing + [validation and self.averaged]

    def validate(self, epoch: int) -> Validation:
        """Validate the network as it is in this epoch, and beside it the average."""
        arguments = (self.val_batches, self.data.val_images, epoch)
        result = self.loop.validate(*arguments)
        if self.average:
            with self.average.applied():
                self.averaged = self.loop.validate(*arguments, averaged=True)
        return result
