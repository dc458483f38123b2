"""The engine that trains a language model on chunks of text."""

from dataclasses import dataclass
from typing import Iterator, List, Optional, Tuple

import numpy as np

from gluon_amp.optimizer.masters import set_master
from gluon_amp.trainer import StepReport
from gluon_amp.training.data.text import Chunk
from gluon_amp.training.networks.language_model import States
from gluon_amp.training.runs.engines.base import Engine, split
from gluon_amp.training.runs.history import Counts

from mxnet import autograd, nd
from mxnet.gluon.loss import SoftmaxCrossEntropyLoss
from mxnet.gluon.utils import split_and_load
from mxnet.ndarray import NDArray


@dataclass
class LanguageEngine(Engine):
    """A language model and its trainer: an engine for chunks of text.

    Each chunk begins with the state in which its stream's last chunk ended, without its gradient. A
    skipped step leaves the state as it was, since the new one may have overflowed.
    """

    clip: Optional[float] = None  # largest norm of the gradient of the mean loss
    keeps_masters: bool = True  # or else the masters are rounded to float16 after each step

    def __post_init__(self) -> None:
        super().__post_init__()
        self._states: List[States] = []
        self._loss = SoftmaxCrossEntropyLoss()
        self._predicted: List[States] = []

    def state(self) -> List[List]:
        """Return the state of all streams, such as an LSTM's, as nested lists, for `restore`."""
        return [
            np.concatenate([array.asnumpy() for array in parts], axis=1).tolist()
            for parts in zip(*self._states)
        ]

    def restore(self, state: List[List]) -> None:
        """Restore what `state` returned, on any number of devices."""
        parts = [
            split_and_load(nd.array(values), self.devices, batch_axis=1, even_split=False)
            for values in state
        ]
        self._states = [list(part) for part in zip(*parts)] or [[] for _ in self.devices]

    def step(self, batches: List[Chunk], epoch: int, number: int, counts: Counts) -> StepReport:
        (chunk,) = batches
        before = self._begin(chunk) if chunk.first else self._states
        with autograd.record():
            parts, after = self._forward(chunk, before)
            losses = [self._loss(*part) for part in parts]
        self.trainer.backward(losses)
        size = chunk.labels.size
        if self.clip is not None:
            self.trainer.clip_global_norm(self.clip, size)
        report = self.trainer.step(size)
        if not self.keeps_masters:
            self._round_masters()
        detached = [[array.detach() for array in states] for states in after]
        self._states = detached if report.applied else before
        for logits, labels in parts:
            counts.accuracy.update(labels, logits)
        if report.applied:
            for loss in losses:
                counts.loss.update(loss)
        return report

    def _round_masters(self) -> None:
        for param in self.trained:
            if np.dtype(param.dtype) == np.float16:
                set_master(param, param.data(self.devices[0]))

    def predict(self, batch: Chunk) -> Iterator[Tuple[NDArray, NDArray]]:
        if batch.first:
            self._predicted = self._begin(batch)
        parts, self._predicted = self._forward(batch, self._predicted)
        for logits, labels in parts:
            yield labels, logits

    def _begin(self, chunk: Chunk) -> List[States]:
        parts = split([chunk.inputs], self.devices)[0]
        return [self.net.begin(len(part), part.context) for part in parts]

    def _forward(
        self, chunk: Chunk, states: List[States]
    ) -> Tuple[List[Tuple[NDArray, NDArray]], List[States]]:
        """Return logits (N, classes) and labels (N,) of each device, and the states after them."""
        parts, after = [], []
        inputs, labels = split([chunk.inputs, chunk.labels], self.devices)
        for part, target, before in zip(inputs, labels, states):
            logits, *now = self.net(part, *before)
            parts.append((logits.reshape((-1, logits.shape[-1])), target.reshape((-1,))))
            after.append(now)
        return parts, after
