"""A training run from its first epoch to its last file: the same for images and for text."""

import contextlib
import math
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from gluon_amp.base import hardware
from gluon_amp.base.messages import UsageError, scale_text
from gluon_amp.inspection.doctor.advice import about_load
from gluon_amp.policy import Policy
from gluon_amp.trainer.ema import EMA
from gluon_amp.trainer.loss_scale import NoLossScale
from gluon_amp.training.data import TrainingBatches, describe_unreadable
from gluon_amp.training.data.text import Chunks
from gluon_amp.training.runs import log, report
from gluon_amp.training.runs.checkpoints import Checkpoints, Position
from gluon_amp.training.runs.devices import is_emulated, other_recommended
from gluon_amp.training.runs.engines.base import Engine
from gluon_amp.training.runs.engines.build import optimizer_options
from gluon_amp.training.runs.history import Counts, EpochResult, History, Validation
from gluon_amp.training.runs.interruption import Interruption
from gluon_amp.training.runs.keeper import Keeper
from gluon_amp.training.runs.loop import Loop
from gluon_amp.training.runs.outputs import Output, save_parameters, write_outputs
from gluon_amp.training.runs.schedule import Schedule
from gluon_amp.training.workers.group import Workers, average_statistics

import mxnet as mx

NOT_KEPT = "Without --save-dir DIR, this run saves neither its network nor checkpoints."


@dataclass
class Training:
    """A run that is ready to start.

    Images and text define `plan`, names and texts of what is going to happen, and `summary`, of a
    run that ended with a validation.
    """

    keeps_best = False  # besides the newest
    recommends = False  # a faster dtype, if there is one
    columns = log.COLUMNS  # what a terminal shows of each epoch; `cells` returns their values

    recipe: Any  # Recipe or LanguageRecipe
    data: Any  # Source, or TextSize
    observed: Dict[str, str]  # the dtypes that the network really uses
    devices: Sequence[mx.Context]
    workers: Workers
    loop: Loop
    batches: Union[TrainingBatches, Chunks]
    val_batches: Any
    started: float  # by `time.perf_counter`
    history: History = field(default_factory=History)  # results of the epochs so far
    average: Optional[EMA] = field(default=None, init=False)
    averaged: Optional[Validation] = field(default=None, init=False)  # the last one of the average

    def __post_init__(self) -> None:
        decay = self.recipe.ema_decay
        if decay is not None:
            try:
                self.average = EMA(self.engine.net, self.engine.trainer, decay)
            except ValueError as error:  # it is 0 or 1 in float32
                raise UsageError(f"--ema-decay {decay!r}: {error}") from None

    def outputs(self, summary: report.Summary) -> List[Output]:
        """Return the files to write at the end, the most important first."""
        path = self.recipe.summary_json
        return [Output(partial(summary.write, path))] if path else []

    def save_epoch(self, epoch: int) -> None:
        """Write what an epoch leaves besides its checkpoint, in the first worker."""

    def run(self) -> report.Summary:
        """Train, validate, log, and write the outputs."""
        first = self.workers.first
        with contextlib.ExitStack() as stack:
            stack.enter_context(log.to_stdout(self.recipe.logging_file, quiet=not first))
            interruption = Interruption(quiet=not first)
            stack.enter_context(interruption.noticing())
            if self.checkpoints and first and not self.recipe.eval_only:
                stack.enter_context(self.checkpoints.locked())
            keeper = Keeper(
                self.checkpoints,
                self.engine.net,
                self.engine.trainer,
                self.identity,
                self.progress,
                interruption,
                self.workers,
                self.engine.statistics,
                self.recipe.save_batches,
                self.loop.accumulate,
            )
            with keeper.naming_last_good():
                last = self._train_epochs(keeper)
            summary = self.summary(last)
            self.loop.records.close()
            log.logger.info("\n%s", summary)
            if first:
                write_outputs(self.outputs(summary))
                if not self.recipe.eval_only:
                    log.logger.info("\n%s", self.saved_in_words())
            interruption.leave_after("the run is over and everything was written")
            return summary

    def _train_epochs(self, keeper: Keeper) -> Validation:
        """Train the epochs that are left; return the validation of the final network."""
        position, counts = self.begin(keeper)  # first, as it may refuse to resume
        if self.recipe.notice:
            log.logger.info("%s\n", self.recipe.notice)
        log.logger.info("%s\n", report.table(self.plan()))
        busy = about_load(hardware.load_average(), hardware.count_all_cores())
        if busy:
            log.logger.info("%s\n", report.table([("WARNING", busy)]))
        recommended = other_recommended(Policy(self.recipe.policy), self.devices)
        if recommended and self.recommends:
            log.logger.info("%s\n", recommended)
        if not (self.recipe.save_dir or self.recipe.eval_only):
            log.logger.info("%s\n", NOT_KEPT)
        if self.recipe.eval_only:
            finished = position.epoch if position.samples else max(position.epoch - 1, 0)
            return self.validate(finished)
        log.for_terminal(log.epoch_head(self.shown))
        for epoch in range(position.epoch, self.recipe.num_epochs):
            start = position.first_batch(*self.samples) if epoch == position.epoch else 0
            self._train_epoch(keeper, epoch, start, counts if start else Counts())
        last = self.history.validated[-1]
        if last is None:  # the run was over already, and this epoch was not validated
            return self.validate(len(self.history.validated) - 1)
        return last

    def _train_epoch(self, keeper: Keeper, epoch: int, start: int, counts: Counts) -> None:
        history = self.history
        result = self.loop.train(
            self.batches,
            epoch,
            start,
            counts,
            lambda done, counts: keeper.after_update(done, self.position(epoch, done), counts),
        )
        if self.batches.unreadable:
            log.logger.info(log.UNREADABLE, epoch, describe_unreadable(self.batches.unreadable))
        history.trained.append(result)
        average_statistics(self.engine.statistics, self.workers)
        last = epoch + 1 == self.recipe.num_epochs
        validates = last or (epoch + 1) % self.recipe.eval_frequency == 0
        validation = self.validate(epoch) if validates else None
        history.validated.append(validation)
        if self.average:
            missing = len(history.validated) - 1 - len(history.averaged)
            history.averaged += [None] * missing + [self.averaged if validates else None]
        log.for_terminal(log.epoch_line(self.shown, self.cells(epoch, result, validation)))
        saves = last or (epoch + 1) % self.recipe.save_frequency == 0
        if saves and self.workers.first:
            self.save_epoch(epoch)
        best = self.keeps_best and history.best_epoch == epoch
        keeper.after_epoch(epoch, saves, last, best)

    @property
    def shown(self) -> List[log.Column]:
        """What a terminal shows of each epoch, with or without an average."""
        waited = log.COLUMNS[-1]
        return [log.EMA if self.average and one == waited else one for one in self.columns]

    def cells(
        self, epoch: int, result: EpochResult, validation: Optional[Validation]
    ) -> List[object]:
        """Return what a terminal shows of an epoch, in the order of `shown`."""
        scale, loop = self.engine.loss_scale, self.loop
        batches = min(len(self.batches), loop.max_batches or len(self.batches))
        waited = 100 * result.waited / result.seconds
        return [
            epoch,
            result.loss,
            None if validation is None else 100 * validation.top1,
            self.schedule(epoch, batches - 1),
            None if isinstance(scale, NoLossScale) else scale_text(scale.scale),
            result.skipped,
            f"{result.images_per_second:.0f} {loop.unit}/s",
            (validation and 100 * self.averaged.top1) if self.average else waited,
        ]

    def validate(self, epoch: int) -> Validation:
        """Validate the network as it is in this epoch, and beside it the average."""
        arguments = (self.val_batches, self.data.val_images, epoch)
        result = self.loop.validate(*arguments)
        if self.average:
            with self.average.applied():
                self.averaged = self.loop.validate(*arguments, averaged=True)
        return result

    def begin(self, keeper: Keeper) -> Tuple[Position, Counts]:
        """Return where the run begins: at the start, or where a checkpoint was written."""
        saved = None
        if self.recipe.resume is not None:
            saved, counts = keeper.resume(self.recipe.resume)
        elif self.checkpoints and self.workers.first and not self.recipe.eval_only:
            self.checkpoints.check_unused()
        if saved is None:
            return Position(0, 0), Counts()
        self.restore(saved.progress)
        finished = saved.position.epoch >= self.recipe.num_epochs and not self.recipe.eval_only
        hint = "\nThat run is finished: to train on, give more --num-epochs." if finished else ""
        line = "Going on from %s: epoch %d, %d samples done.%s\n"
        log.logger.info(line, saved.path, *saved.position, hint)
        return saved.position, counts

    def saved_in_words(self) -> str:
        """Return where the network is after the run, or how to keep that of the next run."""
        folder = self.recipe.save_dir
        return f"Checkpoints and the network are in {folder}." if folder else NOT_KEPT

    @property
    def checkpoints(self) -> Optional[Checkpoints]:
        """The checkpoints of the run; None if it saves nothing."""
        folder = self.recipe.save_dir
        return None if folder is None else Checkpoints(folder, self.recipe.keep)

    @property
    def identity(self) -> Dict[str, Any]:
        """What a checkpoint must agree with (see `gluon_amp.training.runs.checkpoints.SAME`)."""
        return {
            "model": self.recipe.model,
            "data": self.data.name,
            "classes": self.data.classes,
            "train_images": self.data.train_images,
            "dtype": self.recipe.policy,
            "total_batch": self.total,
            "seed": self.recipe.seed,
            "workers": self.workers.count,
        }

    def progress(self, position: Position) -> Dict[str, Any]:
        """Return what the run restores besides its network and trainer."""
        self.history.steps, self.history.skipped = self.loop.steps, self.loop.skipped
        return {"history": self.history.state()}

    def restore(self, progress: Dict[str, Any]) -> None:
        """Restore what `progress` returned."""
        self.history = History.restored(progress["history"])
        self.loop.steps, self.loop.skipped = self.history.steps, self.history.skipped
        if self.average and len(self.history.averaged) == len(self.history.validated):
            self.averaged = next(reversed(self.history.averaged), None)

    @property
    def emulated(self) -> bool:
        """Whether the policy's dtype is emulated on a CPU."""
        return is_emulated(Policy(self.recipe.policy), self.devices)

    @property
    def engine(self) -> Engine:
        """What trains on a batch."""
        return self.loop.engine

    @property
    def schedule(self) -> Schedule:
        """The learning rate of every batch."""
        return self.loop.schedule

    @property
    def total(self) -> int:
        """Images in one update: of all devices, workers, and accumulated batches."""
        batch = self.recipe.batch_size * len(self.devices)
        return batch * self.workers.count * self.loop.accumulate

    @property
    def samples(self) -> Tuple[int, int]:
        """Samples in a batch and in an epoch, of all workers together."""
        count = self.workers.count
        return self.batches.batch_size * count, self.batches.images * count

    def position(self, epoch: int, done: int) -> Position:
        """Return where the run is after `done` batches of an epoch."""
        batch, whole = self.samples
        return Position(epoch, min(done * batch, whole))

    def optimizer_in_words(self) -> str:
        """Describe the optimizer and its loss scale for the plan."""
        options = [f"{k} {v:g}" for k, v in optimizer_options(self.recipe).items()]
        scale = self.engine.loss_scale
        scales = "none" if isinstance(scale, NoLossScale) else f"{scale.scale:g} to begin with"
        return ", ".join([self.recipe.optimizer, *options, f"loss scale {scales}"])

    def average_in_words(self) -> str:
        """Describe the average of the weights for the plan; empty without one."""
        return f"average with decay {self.average.decay!r}" if self.average else ""

    def results(self, last: Validation) -> Dict[str, Any]:
        """Return the results of images and of text, by their names in ``--summary-json``."""
        trained, scale = self.history.trained, self.engine.loss_scale
        validated = self.history.validated or [last]  # --eval-only with an untrained network
        seconds = sum(result.seconds for result in trained)
        samples = sum(result.images for result in trained)
        return {
            "model": self.recipe.model,
            "data": self.data.name,
            "dtype": self.recipe.policy,  # the requested one
            "observed_dtypes": self.observed,
            "emulated": self.emulated,
            "devices": ", ".join(map(str, self.devices)),
            "batch_size": self.recipe.batch_size,
            "total_batch": self.total,
            "epochs": len(self.history.validated),  # that the network was trained
            "lr": self.schedule.rate,
            "seed": self.recipe.seed,
            "top1": 100 * last.top1,  # percent of the validation images that can be read
            "top5": 100 * last.top5,
            "top1_by_epoch": [None if v is None else 100 * v.top1 for v in validated],
            "cross_entropy": _finite(last.cross_entropy),  # nats
            "cross_entropy_by_epoch": [v and _finite(v.cross_entropy) for v in validated],
            "validated": last.images,
            "val_images": self.data.val_images,
            "train_images": self.data.train_images,
            "train_loss": _finite(trained[-1].loss) if trained else None,
            "loss_scale": None if isinstance(scale, NoLossScale) else scale.scale,
            "skipped_steps": self.loop.skipped,
            "steps": self.loop.steps,
            "images_per_second": samples / seconds if seconds else None,  # without validation
            "peak_mebibytes": hardware.peak_mebibytes(),
            "train_seconds": seconds,
            "seconds": time.perf_counter() - self.started,
            **self._averaged_results(),
        }

    def _averaged_results(self) -> Dict[str, Any]:
        """Return what ``--ema-decay`` adds to the results: those of the averaged weights."""
        last = self.averaged
        if last is None:
            return {}
        return {
            "ema_decay": self.recipe.ema_decay,
            "ema_top1": 100 * last.top1,
            "ema_top5": 100 * last.top5,
            "ema_top1_by_epoch": [
                None if v is None else 100 * v.top1 for v in self.history.averaged or [last]
            ],
            "ema_cross_entropy": _finite(last.cross_entropy),
        }

    def parameter_outputs(self, path: Path) -> List[Output]:
        """Return the files of the trained parameters, and of their average as ``NAME-ema``."""
        outputs = [Output(partial(save_parameters, self.engine.net, path))]
        if self.average:
            averages = path.with_name(f"{path.stem}-ema{path.suffix}")
            outputs.append(Output(partial(self._save_average, averages)))
        return outputs

    def _save_average(self, path: Path) -> None:
        with self.average.applied():
            save_parameters(self.engine.net, path)


def _finite(value: float) -> Optional[float]:
    """Return the value, or None if it is infinite or NaN, which JSON does not have."""
    return value if math.isfinite(value) else None
