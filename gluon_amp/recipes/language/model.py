"""A character language model and what trains it on a chunk of text."""

from typing import Iterator, List, Optional, Sequence, Tuple

import numpy as np

from gluon_amp.data.text import Chunk
from gluon_amp.recipes.engine import split
from gluon_amp.recipes.history import Counts
from gluon_amp.recipes.meters import Mean
from gluon_amp.trainer import StepReport, Trainer
from gluon_amp.trainer.loss_scale import LossScale

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import HybridBlock
from mxnet.gluon.loss import SoftmaxCrossEntropyLoss
from mxnet.gluon.utils import split_and_load
from mxnet.ndarray import NDArray

States = List[NDArray]


class LanguageModel(HybridBlock):
    """Embedding, LSTM, and a dense layer that tells the next character.

    Parameters
    ----------
    classes, embedding, hidden, layers : int
        Characters there are, and the sizes of the rest.
    """

    def __init__(self, classes: int, embedding: int, hidden: int, layers: int):
        super().__init__()
        self.hidden, self.layers = hidden, layers
        with self.name_scope():
            self.embedding = gluon.nn.Embedding(classes, embedding)
            self.lstm = gluon.rnn.LSTM(hidden, layers, layout="NTC", input_size=embedding)
            self.decoder = gluon.nn.Dense(classes, flatten=False, in_units=hidden)

    def begin(self, streams: int, device: mx.Context) -> States:
        """Return the hidden state and the cell at the start of streams: zeros."""
        shape = (self.layers, streams, self.hidden)
        return [nd.zeros(shape, ctx=device) for _ in range(2)]

    def hybrid_forward(self, F, inputs, hidden, cell):
        """Take classes (streams, length) and states; return logits and the states after them.

        Logits are (streams, length, classes).
        """
        features, (hidden, cell) = self.lstm(self.embedding(inputs), [hidden, cell])
        return self.decoder(features), hidden, cell


class LanguageEngine:
    """A language model and its trainer: a `gluon_amp.recipes.engine.Engine` for chunks of text.

    The state of every stream is carried on from chunk to chunk, without its gradient. A skipped
    step leaves it as it was, since what overflowed may be in it.

    Parameters
    ----------
    net : LanguageModel
        Initialized on `devices`.
    trainer : gluon_amp.Trainer
        Over the parameters of `net`.
    devices : sequence of Context
        The streams are split over them.
    clip : float, optional
        The longest that the gradient of the mean loss may be.

    """

    def __init__(
        self,
        net: LanguageModel,
        trainer: Trainer,
        devices: Sequence[mx.Context],
        clip: Optional[float] = None,
    ):
        self.net = net
        self.trainer = trainer
        self.devices = devices
        self.clip = clip
        self._states: List[States] = []
        self._loss = SoftmaxCrossEntropyLoss()
        self._params = list(net.collect_params().values())
        self._predicted: List[States] = []
        self._nats = Mean()

    @property
    def loss_scale(self) -> LossScale:
        return self.trainer.loss_scale

    @property
    def scale(self) -> float:
        return self.trainer.loss_scale.scale

    @property
    def nats(self) -> float:
        """Mean loss of all that was predicted since the streams of a text last began."""
        return self._nats.value

    def state(self) -> List[List]:
        """Return hidden state and cell of all streams, as nested lists, for `restore`."""
        return [np.concatenate([array.asnumpy() for array in parts], axis=1).tolist()
                for parts in zip(*self._states)]  # fmt: skip

    def restore(self, state: List[List]) -> None:
        """Go on with a `state` that was carried on, on whatever devices."""
        parts = [split_and_load(nd.array(one), self.devices, batch_axis=1, even_split=False)
                 for one in state]  # fmt: skip
        self._states = [list(part) for part in zip(*parts)]

    def set_learning_rate(self, rate: float) -> None:
        self.trainer.set_learning_rate(rate)

    def step(self, batches: List[Chunk], epoch: int, number: int, counts: Counts) -> StepReport:
        """Update on a chunk, or skip where gradients overflowed; count answers and losses."""
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
        carried = [[array.detach() for array in states] for states in after]
        self._states = carried if report.applied else before
        for logits, labels in parts:
            counts.accuracy.update(labels, logits)
        if report.applied:
            for loss in losses:
                counts.loss.update(loss)
        return report

    def predict(self, batch: Chunk) -> Iterator[Tuple[NDArray, NDArray]]:
        if batch.first:
            self._predicted, self._nats = self._begin(batch), Mean()
        parts, self._predicted = self._forward(batch, self._predicted)
        for logits, labels in parts:
            self._nats.update(self._loss(logits, labels))
            yield labels, logits

    def wait(self) -> None:
        for array in self._params[-1].list_data():  # the trainer updates it last
            array.wait_to_read()

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
