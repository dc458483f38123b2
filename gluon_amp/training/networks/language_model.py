"""A character language model."""

from typing import Any, List

import mxnet as mx
from mxnet import gluon, nd
from mxnet.gluon import HybridBlock
from mxnet.ndarray import NDArray

States = List[NDArray]


class LanguageModel(HybridBlock):
    """Embedding, LSTM, and a dense layer that predicts the next character."""

    def __init__(self, classes: int, embedding: int, hidden: int, layers: int):
        super().__init__()
        self.hidden, self.layers = hidden, layers
        with self.name_scope():
            self.embedding = gluon.nn.Embedding(classes, embedding)
            self.lstm = gluon.rnn.LSTM(hidden, layers, layout="NTC", input_size=embedding)
            self.decoder = gluon.nn.Dense(classes, flatten=False, in_units=hidden)

    def begin(self, streams: int, device: mx.Context) -> States:
        """Return hidden state and cell of new streams: zeros, (layers, streams, hidden)."""
        shape = (self.layers, streams, self.hidden)
        return [nd.zeros(shape, ctx=device) for _ in range(2)]

    def hybrid_forward(self, F: Any, inputs: Any, hidden: Any, cell: Any) -> Any:
        """Return logits (streams, length, classes) of inputs (streams, length), and new states."""
        features, (hidden, cell) = self.lstm(self.embedding(inputs), [hidden, cell])
        return self.decoder(features), hidden, cell
