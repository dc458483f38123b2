"""The training loop: the same for every data set, dtype and number of devices and workers."""

import dataclasses
import itertools
import math
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Callable, Iterable, Iterator, List, Optional, Tuple, Union

from gluon_amp.trainer import StepReport
from gluon_amp.training.data import TrainingBatches, ValidationBatches, describe_unreadable
from gluon_amp.training.data.text import Chunks
from gluon_amp.training.runs import log
from gluon_amp.training.runs.engines.base import Batch, Engine
from gluon_amp.training.runs.history import Counts, EpochResult, Validation
from gluon_amp.training.runs.log import Records
from gluon_amp.training.runs.meters import Mean, TopK
from gluon_amp.training.runs.schedule import Schedule
from gluon_amp.training.runs.seeds import set_seed, step_seed
from gluon_amp.training.workers.group import Workers

import mxnet as mx

# If an epoch waits for images for more than this share of its time, the log gives advice.
WAITED_MUCH = 0.2


# Images, or the characters of a text
Batches = Union[TrainingBatches, Chunks]
ValBatches = Union[ValidationBatches, Chunks]


class TrainingError(RuntimeError):
    """Training cannot go on; the message is one sentence that names the cause."""


class DivergedError(TrainingError):
    """The loss or a parameter is no longer finite."""


@dataclass
class Loop:
    """An engine, ready to train and validate epoch by epoch; results are over all workers."""

    engine: Engine
    schedule: Schedule
    workers: Workers = field(default_factory=Workers)
    records: Records = field(default_factory=Records)
    accumulate: int = 1  # batches in each update
    log_interval: int = 50  # log a line after so many batches; 0 for never
    max_batches: Optional[int] = None  # of an epoch
    unit: str = "img"  # what the log and the progress bar count; each has one label
    input_bound: str = log.INPUT_BOUND  # advice to log, once, if training often waits for data
    seed: int = 0  # of the random numbers that a step draws
    steps: int = 0
    skipped: int = 0  # of these steps, because of an overflow
    advised: bool = field(default=False, init=False)

    def train(
        self,
        batches: Batches,
        epoch: int,
        start: int = 0,
        counts: Optional[Counts] = None,
        after_update: Callable[[int, Counts], None] = lambda done, counts: None,
    ) -> EpochResult:
        """Train one epoch from batch `start` on, before which the counts are `counts`."""
        counts = counts or Counts()
        since, rate, before = 0, math.nan, counts.seconds
        started = lap = time.perf_counter()
        accuracy = counts.accuracy
        with log.bar(
            self.images(batches), epoch, self.schedule.epochs, accuracy.images, self.unit
        ) as bar:
            timed = measured(self._batches(batches, epoch, start), self.engine.wait, counts)
            for number, group in _groups(timed, self.accumulate, start):
                rate = self.schedule(epoch, number)
                self.engine.trainer.set_learning_rate(rate)
                size = sum(batch[1].size for batch in group)
                set_seed(step_seed(self.seed, self.workers.rank, epoch, number))
                with self.workers.step():
                    report = self.engine.step(group, epoch, number, counts)
                self._count(epoch, number, report, counts)
                done = number + len(group)
                since += size
                bar.update(size)
                every = self.log_interval
                if every and done // every > number // every:
                    share, now = accuracy.share, time.perf_counter()  # reading the share waits
                    self._check_loss(counts, f"epoch {epoch + 1}, by batch {done}")
                    speed = since / (now - lap) * self.workers.count
                    self._log_batch(batches, epoch, done, counts, rate, speed)
                    self.records.write(
                        "batch",
                        self.steps,
                        epoch=epoch,
                        batch=done - 1,
                        images_per_second=speed,
                        accuracy=share,
                        lr=rate,
                        loss_scale=report.next_loss_scale,
                        skipped=self.skipped,
                    )
                    since, lap = 0, now
                counts.seconds = before + time.perf_counter() - started
                after_update(done, counts)
            mx.nd.waitall()
        counts.seconds = before + time.perf_counter() - started
        result = self._over_workers(counts)
        self._log(epoch, result, rate)
        self._check_loss(counts, f"epoch {epoch + 1}")
        return result

    def _log_batch(
        self, batches: Batches, epoch: int, done: int, counts: Counts, rate: float, speed: float
    ) -> None:
        whole = self.images(batches) * self.workers.count
        left = whole * (self.schedule.epochs - epoch) - counts.accuracy.images * self.workers.count
        values = {
            "loss": f"{counts.loss.value:.4g}",
            "top_1": log.percent(counts.accuracy.share),
            "lr": f"{rate:.4g}",
            "_speed": f"{speed:,.0f} {self.unit}/s",
            "ETA": log.duration(left / speed),
        }
        where = log.place(epoch, self.schedule.epochs, done - 1, self.count(batches))
        log.details("%s", log.line(where, values, math.inf))

    def count(self, batches: Batches) -> int:
        """Return how many batches an epoch trains on."""
        return min(len(batches), self.max_batches or len(batches))

    def _check_loss(self, counts: Counts, where: str) -> None:
        """Raise `DivergedError` if the mean loss is not finite; waits for the loss."""
        if counts.loss.images and not math.isfinite(counts.loss.sum):
            raise DivergedError(
                f"the loss became {counts.loss.value} in {where}, at a learning rate of up to "
                f"{self.schedule.rate:g}: lower it with --lr, or look for bad data."
            )

    def _batches(self, batches: Batches, epoch: int, start: int) -> Iterator[Batch]:
        # A last batch smaller than the number of devices would leave some without a gradient.
        least = len(self.engine.devices)
        large = (batch for batch in batches.epoch(epoch, start) if len(batch[0]) >= least)
        left = None if self.max_batches is None else max(0, self.max_batches - start)
        return itertools.islice(large, left)

    def images(self, batches: Batches) -> int:
        """Return how many images an epoch trains on, in this worker."""
        if self.max_batches is None:
            return batches.images
        return min(batches.images, self.max_batches * batches.batch_size)

    def _count(self, epoch: int, number: int, report: StepReport, counts: Counts) -> None:
        self.steps += 1
        if not report.applied:
            self.skipped += 1
            counts.skipped += 1
            first, *others = report.overflow
            more = f" and {len(others)} more" if others else ""
            scales = (report.loss_scale, report.next_loss_scale)
            where = log.place(epoch, self.schedule.epochs, number, self.schedule.batches)
            log.details("%s  " + log.SKIPPED, where, *scales, first, more)

    def _over_workers(self, counts: Counts) -> EpochResult:
        own = counts.result()
        if self.workers.count == 1:
            return own
        right, images, loss, loss_images, waited = self.workers.total(
            [counts.accuracy.right, own.images, counts.loss.sum, counts.loss.images, own.waited]
        )
        return EpochResult(
            accuracy=right / images if images else math.nan,
            loss=loss / loss_images if loss_images else math.nan,
            images=int(images),
            seconds=own.seconds,
            waited=waited / self.workers.count,
            skipped=own.skipped,
        )

    def _log(self, epoch: int, result: EpochResult, rate: float) -> None:
        share = result.waited / result.seconds
        if share > WAITED_MUCH and self.input_bound and not self.advised:
            log.logger.info(self.input_bound)
            self.advised = True
        self.records.write(
            "epoch",
            self.steps,
            epoch=epoch,
            accuracy=result.accuracy,
            loss=result.loss,
            images=result.images,
            images_per_second=result.images_per_second,
            seconds=result.seconds,
            waited_share=share,
            loss_scale=self.engine.loss_scale.scale,
            skipped=self.skipped,
            lr=rate,
        )

    def validate(
        self, batches: ValBatches, expected: int, epoch: int, averaged: bool = False
    ) -> Validation:
        """Count right answers over this worker's share of `expected` images, each exactly once.

        `averaged` says that the network has its averaged weights, for the record.
        """
        top1, top5, cross_entropy = TopK(1), TopK(5), Mean()
        for batch in batches:
            for label, output in self.engine.predict(batch):
                top1.update(label, output)
                top5.update(label, output)
                cross_entropy.update(self.engine.cross_entropy(label, output))
        if batches.unreadable:
            unread = describe_unreadable(batches.unreadable)
            where = log.place(epoch, self.schedule.epochs)
            log.logger.info("%s  not validated: %s", where, unread)
        right1, right5, nats, images, unreadable = self.workers.total(
            [top1.right, top5.right, cross_entropy.sum, top1.images, len(batches.unreadable)]
        )
        if images + unreadable != expected:
            raise TrainingError(
                f"validated {images:.0f} images, but there are {expected}, {unreadable:.0f} of "
                "them unreadable."
            )
        shares = (right1 / images, right5 / images)
        result = Validation(*shares, nats / images, int(images), int(unreadable))
        kind = "averaged_validation" if averaged else "validation"
        self.records.write(kind, self.steps, epoch=epoch, **dataclasses.asdict(result))
        return result


def _groups(batches: Iterable[Batch], size: int, start: int) -> Iterator[Tuple[int, List[Batch]]]:
    """Yield the number of the first batch of each group, and the group; the last may be smaller."""
    batches = iter(batches)
    for first in itertools.count(start, size):
        group = list(itertools.islice(batches, size))
        if not group:
            return
        yield first, group


def measured(
    batches: Iterable[Batch],
    wait: Callable[[], None],
    counts: Counts,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Batch]:
    """Yield batches, and add the seconds in which the devices waited for them to ``counts.waited``.

    A wait begins at the end of the last step, or at the request for the batch if that comes later,
    and ends when the batch arrives. Another thread waits for the devices.
    """

    def finished() -> float:
        wait()
        return clock()

    step: Optional[Future] = None  # its result is when the devices finished the last step
    batches = iter(batches)
    with ThreadPoolExecutor(1, "gluon_amp_devices") as watcher:
        while True:
            requested = clock()
            batch = next(batches, None)
            arrived = clock()
            if batch is None:
                return
            if step is None:
                counts.waited += arrived - requested
            elif step.done():
                counts.waited += arrived - max(requested, step.result())
            yield batch
            step = watcher.submit(finished)
