"""Training by Gluon: a network and its trainer."""

from dataclasses import dataclass
from typing import Iterator, List, Optional, Tuple

from gluon_amp.optimizer.arrays import all_finite
from gluon_amp.trainer import StepReport
from gluon_amp.training.runs.engines.base import Batch, Engine, split
from gluon_amp.training.runs.history import Counts
from gluon_amp.training.runs.objective import Objective

from mxnet import autograd
from mxnet.ndarray import NDArray


@dataclass
class GluonEngine(Engine):
    """A network and its trainer, which sums the gradients of several batches in float32."""

    objective: Objective
    workers: int = 1  # engines that train together
    clip: Optional[float] = None  # largest norm of the gradient of the mean loss
    accumulates: bool = False  # whether a step has several batches

    def step(self, batches: List[Batch], epoch: int, number: int, counts: Counts) -> StepReport:
        passes = [
            self._backward(batch, self.objective.weight(epoch, number + offset))
            for offset, batch in enumerate(batches)
        ]
        size = self.workers * sum(len(batch[0]) for batch in batches)
        if self.clip is not None:
            self.trainer.clip_global_norm(self.clip, size)
        report = self.trainer.step(size)
        for labels, outputs, losses in passes:
            for part in zip(labels, outputs):
                counts.accuracy.update(*part)
            for loss in losses if report.applied else ():
                if not report.dropped or all_finite([loss]):
                    counts.loss.update(loss)
        return report

    def _backward(self, batch: Batch, weight: float) -> Tuple[List, List, List]:
        """Compute gradients; return labels, outputs and losses of each device."""
        images, labels = split(batch, self.devices)
        pairs = [self.objective.mixed(*part, weight) for part in zip(images, labels)]
        with autograd.record():
            outputs = [self.net(part) for part, _ in pairs]
            losses = self.objective.losses(outputs, [target for _, target in pairs])
        self.trainer.backward(losses, accumulate=self.accumulates)
        return labels, outputs, losses

    def predict(self, batch: Batch) -> Iterator[Tuple[NDArray, NDArray]]:
        for images, labels in zip(*split(batch, self.devices)):
            yield labels, self.net(images)
