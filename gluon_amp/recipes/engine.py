"""Training on one batch: what Gluon and Module do differently, behind one interface."""

from typing import Callable, Iterator, List, Optional, Protocol, Sequence, Tuple

import numpy as np

from gluon_amp.casting.statistics import is_statistic
from gluon_amp.recipes.history import Counts
from gluon_amp.recipes.objective import Objective
from gluon_amp.trainer import StepReport, Trainer
from gluon_amp.trainer.loss_scale import LossScale

import mxnet as mx
from mxnet import autograd
from mxnet.gluon import Block, Parameter
from mxnet.gluon.utils import split_and_load
from mxnet.ndarray import NDArray

Batch = Sequence[NDArray]


def step_seed(seed: int, rank: int, epoch: int, number: int) -> int:
    """Return the seed of MXNet's generator for one step of one worker.

    The generator's state cannot be saved, but a resumed run can seed it as the first run did. Each
    worker draws its own dropout masks.

    Parameters
    ----------
    seed : int
        Of the run.
    rank : int
        Of the worker.
    epoch, number : int
        The step's epoch, and the number of its first batch.

    Returns
    -------
    int
        From 0 to 2**31 - 1.
    """
    generator = np.random.default_rng((seed, epoch, number, 2))
    return int(generator.integers(2**31, size=rank + 1)[rank])


class Engine(Protocol):
    """A network that can be trained, on its devices."""

    devices: Sequence[mx.Context]
    trainer: Trainer

    @property
    def block(self) -> Block:
        """What holds the parameters, for checkpoints."""

    @property
    def statistics(self) -> List[Parameter]:
        """BatchNorm's running statistics."""

    @property
    def scale(self) -> float:
        """The loss scale; 1 without one."""

    def set_learning_rate(self, rate: float) -> None:
        """Use this rate from the next step on."""

    def step(self, batches: List[Batch], epoch: int, number: int, counts: Counts) -> StepReport:
        """Update once on batches ``[images, labels]``, `number` being the first one's."""

    def predict(self, batch: Batch) -> Iterator[Tuple[NDArray, NDArray]]:
        """Yield labels (N,) and outputs (N, classes) for each device."""

    def wait(self) -> None:
        """Return when the last step is done."""


def split(arrays: Sequence[NDArray], devices: Sequence[mx.Context]) -> List[List[NDArray]]:
    """Copy a batch to the devices, in nearly equal parts; fewer parts than devices if it is tiny.

    Returns
    -------
    list of list of NDArray
        For each array its parts, one for each device used.
    """
    used = devices[: len(arrays[0])]
    return [split_and_load(array, used, even_split=False) for array in arrays]


class GluonEngine:
    """A network and its trainer.

    Parameters
    ----------
    net : Block
        Initialized on `devices`; float32 output. With more than one batch for an update, its
        parameters' ``grad_req`` is 'add'.
    trainer : gluon_amp.Trainer
        Over the parameters of `net`.
    objective : Objective
    devices : sequence of Context
        Every batch is split over them.
    workers : int
        How many such engines train together.
    clip : float, optional
        The longest that the gradient of the mean loss may be.
    before_step : callable
        Takes epoch and batch number; for random numbers that a resumed run draws again.
    """

    def __init__(
        self,
        net: Block,
        trainer: Trainer,
        objective: Objective,
        devices: Sequence[mx.Context],
        workers: int = 1,
        clip: Optional[float] = None,
        before_step: Callable[[int, int], None] = lambda epoch, number: None,
    ):
        self.net = net
        self.trainer = trainer
        self.objective = objective
        self.devices = devices
        self.workers = workers
        self.clip = clip
        self.before_step = before_step
        self._params = [p for p in net.collect_params().values() if p.grad_req != "null"]
        self._adds = any(p.grad_req == "add" for p in self._params)

    @property
    def block(self) -> Block:
        return self.net

    @property
    def statistics(self) -> List[Parameter]:
        return [p for p in self.net.collect_params().values() if is_statistic(p)]

    @property
    def loss_scale(self) -> LossScale:
        return self.trainer.loss_scale

    @property
    def scale(self) -> float:
        return self.trainer.loss_scale.scale

    def set_learning_rate(self, rate: float) -> None:
        self.trainer.set_learning_rate(rate)

    def step(self, batches: List[Batch], epoch: int, number: int, counts: Counts) -> StepReport:
        """Update on batches, or skip where gradients overflowed; count answers and losses."""
        self.before_step(epoch, number)
        seen = []
        for offset, batch in enumerate(batches):
            seen.append(self._gradients(batch, self.objective.weight(epoch, number + offset)))
        size = self.workers * sum(len(batch[0]) for batch in batches)
        if self.clip is not None:
            self.trainer.clip_global_norm(self.clip, size)
        report = self.trainer.step(size)
        if self._adds:
            for param in self._params:
                param.zero_grad()
        for labels, outputs, losses in seen:
            for part in zip(labels, outputs):
                counts.accuracy.update(*part)
            if report.applied:
                for loss in losses:
                    counts.loss.update(loss)
        return report

    def _gradients(self, batch: Batch, weight: float) -> Tuple[List, List, List]:
        images, labels = split(batch, self.devices)
        pairs = [self.objective.mixed(*part, weight) for part in zip(images, labels)]
        with autograd.record():
            outputs = [self.net(part) for part, _ in pairs]
            losses = self.objective.losses(outputs, [target for _, target in pairs])
        self.trainer.backward(losses)
        return labels, outputs, losses

    def predict(self, batch: Batch) -> Iterator[Tuple[NDArray, NDArray]]:
        for images, labels in zip(*split(batch, self.devices)):
            yield labels, self.net(images)

    def wait(self) -> None:
        for array in self._params[-1].list_data():  # the trainer updates it last
            array.wait_to_read()
