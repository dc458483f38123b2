"""The training loop: the same for every data set, dtype and number of devices."""

import itertools
import math
import time
from dataclasses import dataclass
from typing import Callable, Iterable, List, Optional, Sequence

from gluon_amp.data import TrainingBatches
from gluon_amp.trainer import StepReport, Trainer
from gluon_amp.training import log
from gluon_amp.training.meters import Mean, TopK
from gluon_amp.training.schedule import Schedule

import mxnet as mx
from mxnet import autograd
from mxnet.gluon import Block
from mxnet.gluon.utils import split_and_load
from mxnet.ndarray import NDArray


class TrainingError(RuntimeError):
    """Training cannot go on; the message is one sentence that names the cause."""


@dataclass(frozen=True)
class EpochResult:
    """What one epoch of training came to. `seconds` counts until the devices had finished."""

    accuracy: float
    loss: float
    images: int
    seconds: float
    skipped: int

    @property
    def images_per_second(self) -> float:
        return self.images / self.seconds


@dataclass(frozen=True)
class Validation:
    """Shares of right answers, 0 to 1, and how many images they were taken over."""

    top1: float
    top5: float
    images: int


def split(arrays: Sequence[NDArray], devices: Sequence[mx.Context]) -> List[List[NDArray]]:
    """Copy a batch to the devices, in nearly equal parts; fewer parts than devices if it is tiny.

    Returns
    -------
    list of list of NDArray
        For each array its parts, one for each device used.
    """
    used = devices[: len(arrays[0])]
    return [split_and_load(array, used, even_split=False) for array in arrays]


class Loop:
    """A network, its trainer and its devices, ready to train and validate epoch by epoch.

    Parameters
    ----------
    net : Block
        Initialized on `devices`; float32 output.
    trainer : gluon_amp.Trainer
        Over the parameters of `net`.
    loss_fn : callable
        ``loss_fn(outputs, labels)`` gives one loss for each image.
    devices : sequence of Context
        Every batch is split over them.
    schedule : Schedule
        Learning rate of every batch.
    log_interval : int
        Log a line after every so many batches; 0 for never.
    max_batches : int, optional
        Train on no more batches of an epoch than this.
    """

    def __init__(
        self,
        net: Block,
        trainer: Trainer,
        loss_fn: Callable[[NDArray, NDArray], NDArray],
        devices: Sequence[mx.Context],
        schedule: Schedule,
        log_interval: int = 50,
        max_batches: Optional[int] = None,
    ):
        self.net = net
        self.trainer = trainer
        self.loss_fn = loss_fn
        self.devices = devices
        self.schedule = schedule
        self.log_interval = log_interval
        self.max_batches = max_batches
        self.steps = self.skipped = 0

    def train(self, batches: TrainingBatches, epoch: int) -> EpochResult:
        """Train one epoch and log it.

        Raises
        ------
        TrainingError
            The loss is not a number any more.
        """
        accuracy, loss = TopK(1), Mean()
        skipped = since = 0
        started = lap = time.perf_counter()
        # A last batch smaller than the number of devices would leave some without a gradient.
        whole = (batch for batch in batches.epoch(epoch) if len(batch[0]) >= len(self.devices))
        taken = itertools.islice(whole, self.max_batches)
        with log.bar(self.images(batches), epoch, self.schedule.epochs) as bar:
            for number, batch in enumerate(taken):
                rate = self.schedule(epoch, number)
                self.trainer.set_learning_rate(rate)
                report = self.step(batch, accuracy, loss)
                if not report.applied:
                    skipped += 1
                    self._log_skip(epoch, number, report)
                since += len(batch[0])
                bar.update(len(batch[0]))
                if self.log_interval and (number + 1) % self.log_interval == 0:
                    share, now = accuracy.share, time.perf_counter()  # reading the share waits
                    speed = since / (now - lap)
                    log.logger.info(log.BATCH, epoch, number, speed, "accuracy", share, rate)
                    since, lap = 0, now
            mx.nd.waitall()
        seconds = time.perf_counter() - started
        result = EpochResult(accuracy.share, loss.value, accuracy.images, seconds, skipped)
        self._log(epoch, result)
        if loss.images and not math.isfinite(result.loss):
            raise TrainingError(
                f"the loss became {result.loss} in epoch {epoch}, at a learning rate of up to "
                f"{self.schedule.rate:g}: lower it with --lr, or look for bad images."
            )
        return result

    def images(self, batches: TrainingBatches) -> int:
        """How many images an epoch trains on."""
        if self.max_batches is None:
            return batches.images
        return min(batches.images, self.max_batches * batches.batch_size)

    def step(self, batch: Sequence[NDArray], accuracy: TopK, loss: Mean) -> StepReport:
        """Train on one batch ``[images, labels]``, or skip it where gradients overflowed."""
        images, labels = split(batch, self.devices)
        with autograd.record():
            outputs = [self.net(part) for part in images]
            losses = [self.loss_fn(*pair) for pair in zip(outputs, labels)]
        self.trainer.backward(losses)
        report = self.trainer.step(len(batch[0]))
        self.steps += 1
        self.skipped = report.skipped_total
        for part, output in zip(labels, outputs):
            accuracy.update(part, output)
        if report.applied:
            for part in losses:
                loss.update(part)
        return report

    def _log_skip(self, epoch: int, number: int, report: StepReport) -> None:
        more = len(report.overflow) - 1
        log.logger.info(
            log.SKIPPED,
            epoch,
            number,
            report.loss_scale,
            report.next_loss_scale,
            report.overflow[0],
            f" and {more} more" if more else "",
        )

    def _log(self, epoch: int, result: EpochResult) -> None:
        scale = self.trainer.loss_scale.scale
        log.logger.info(log.TRAINING, epoch, "accuracy", result.accuracy)
        log.logger.info(log.SPEED, epoch, result.images_per_second, result.seconds)
        log.logger.info(log.LOSS_SCALE, epoch, result.loss, scale, result.skipped, self.skipped)

    def validate(
        self, batches: Iterable[Sequence[NDArray]], expected: int, epoch: int
    ) -> Validation:
        """Count right answers over every image exactly once, and log them.

        Raises
        ------
        TrainingError
            The batches held more or fewer than `expected` images.
        """
        top1, top5 = TopK(1), TopK(5)
        for batch in batches:
            for part, label in zip(*split(batch, self.devices)):
                output = self.net(part)
                top1.update(label, output)
                top5.update(label, output)
        if top1.images != expected:
            raise TrainingError(f"validated {top1.images} images, but there are {expected}.")
        log.logger.info(log.VALIDATION, epoch, 1 - top1.share, 1 - top5.share)
        log.logger.info(log.VALIDATED, epoch, top1.images, expected)
        return Validation(top1.share, top5.share, top1.images)
