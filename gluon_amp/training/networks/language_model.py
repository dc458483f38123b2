"""Character language models: recurrent ones, and a transformer."""

from functools import partial
from typing import Any, Callable, List

import mxnet as mx
from mxnet import gluon, nd
from mxnet.gluon import HybridBlock, nn
from mxnet.ndarray import NDArray

States = List[NDArray]

# Recurrent layers by name, and how many arrays their state has
RECURRENT = {"lstm": (gluon.rnn.LSTM, 2), "gru": (gluon.rnn.GRU, 1)}
KINDS = (*RECURRENT, "transformer")

# A score of a later token, relative to the others: softmax makes it 0, and float16 holds it
NEVER = -1e4
EPSILON = 1e-5  # of MXNet's LayerNorm


class SplitLayerNorm(HybridBlock):
    """A LayerNorm of single operators, each of which a policy can pin: MXNet's sums in float32."""

    def __init__(self, in_channels: int):
        super().__init__()
        with self.name_scope():
            size = {"shape": (in_channels,)}
            self.gamma = self.params.get("gamma", init="ones", **size)
            self.beta = self.params.get("beta", init="zeros", **size)

    def hybrid_forward(self, F, x, gamma, beta):
        """Return the tokens with mean 0 and variance 1 over the last axis, scaled and shifted."""
        x = F.broadcast_sub(x, F.mean(x, axis=-1, keepdims=True))
        variance = F.mean(F.square(x), axis=-1, keepdims=True)
        x = F.broadcast_mul(x, F.rsqrt(variance + EPSILON))
        return F.broadcast_add(F.broadcast_mul(x, gamma), beta)


class TransformerLayer(HybridBlock):
    """Self-attention and two dense layers with GELU, each behind a LayerNorm and beside a shortcut.

    This is the pre-norm layer of GPT-2. If `causal`, a token sees itself and earlier tokens only.
    `dropout` is the share of the values that is left out of what is added to a shortcut.
    """

    def __init__(
        self,
        units: int,
        hidden: int,
        heads: int,
        dropout: float = 0.0,
        causal: bool = False,
        norm: Callable[..., HybridBlock] = nn.LayerNorm,
    ):
        super().__init__()
        self.heads, self.scale = heads, (units // heads) ** -0.5
        self.dropout, self.causal = dropout, causal
        dense = partial(nn.Dense, flatten=False)
        with self.name_scope():
            self.norm1, self.norm2 = norm(in_channels=units), norm(in_channels=units)
            self.read = dense(3 * units, in_units=units)
            self.write = dense(units, in_units=units)
            self.widen = dense(hidden, in_units=units)
            self.gelu = nn.GELU()
            self.narrow = dense(units, in_units=hidden)

    def _split(self, F, x):
        """Turn (batch, tokens, units) into (batch * heads, tokens, units / heads)."""
        x = F.reshape(x, (0, 0, self.heads, -1))
        return F.reshape(F.transpose(x, (0, 2, 1, 3)), (-3, 0, 0))

    def hybrid_forward(self, F, x):
        """Return as many tokens: (batch, tokens, units)."""
        parts = F.split(self.read(self.norm1(x)), 3, axis=2)
        queries, keys, values = (self._split(F, part) for part in parts)
        scores = F.batch_dot(queries, keys, transpose_b=True) * self.scale
        if self.causal:
            numbers = F.contrib.arange_like(scores, axis=1)
            later = F.broadcast_lesser(F.expand_dims(numbers, 1), F.expand_dims(numbers, 0))
            scores = F.broadcast_add(scores, F.expand_dims(later * NEVER, 0))
        found = F.batch_dot(F.softmax(scores), values)
        found = F.reshape(found, (-4, -1, self.heads, 0, 0))
        found = F.reshape(F.transpose(found, (0, 2, 1, 3)), (0, 0, -3))
        x = x + dropped(F, self.write(found), self.dropout)
        return x + dropped(F, self.narrow(self.gelu(self.widen(self.norm2(x)))), self.dropout)


def dropped(F, x, share: float):
    """Leave out a share of the values while training; without one, add no node to the graph."""
    return F.Dropout(x, p=share) if share else x


class LanguageModel(HybridBlock):
    """An embedding, layers of a kind, and a dense layer that predicts the next character.

    Parameters
    ----------
    classes : int
        Different characters.
    kind : {'lstm', 'gru', 'transformer'}
    embedding, hidden, layers : int
        The size of a character's vector, which a transformer's layers keep; that of a recurrent
        layer, or of a transformer's inner dense layers; and how many layers there are.
    heads, length : int
        Of a transformer: the heads of its attention, which divide `embedding`, and the most
        characters that it reads at once, as each place has a vector of its own.
    tied : bool
        Whether the prediction has the embedding's weight, which needs a last layer of its size.
    dropout : float
        The share of the values that is left out behind the embedding and the last layer, and in a
        transformer's layers.
    split_norms : bool
        Whether a transformer's norms are `SplitLayerNorm`.
    """

    def __init__(
        self,
        classes: int,
        kind: str,
        embedding: int,
        hidden: int,
        layers: int,
        heads: int = 1,
        length: int = 0,
        tied: bool = False,
        dropout: float = 0.0,
        split_norms: bool = False,
    ):
        super().__init__()
        self.kind, self.hidden, self.layers, self.dropout = kind, hidden, layers, dropout
        with self.name_scope():
            self.embedding = nn.Embedding(classes, embedding)
            if kind in RECURRENT:
                layer, _ = RECURRENT[kind]
                body = layer(hidden, layers, layout="NTC", input_size=embedding)
            else:
                self.places = nn.Embedding(length, embedding)
                norm = SplitLayerNorm if split_norms else nn.LayerNorm
                body = nn.HybridSequential()
                for _ in range(layers):
                    body.add(TransformerLayer(embedding, hidden, heads, dropout, True, norm))
                body.add(norm(in_channels=embedding))
            setattr(self, kind, body)  # parameters are saved by this name
            units = hidden if kind in RECURRENT else embedding
            shared = self.embedding.params if tied else None
            self.decoder = nn.Dense(classes, flatten=False, in_units=units, params=shared)

    def begin(self, streams: int, device: mx.Context) -> States:
        """Return new streams' state: zeros (layers, streams, hidden); none of a transformer."""
        _, arrays = RECURRENT.get(self.kind, (None, 0))
        shape = (self.layers, streams, self.hidden)
        return [nd.zeros(shape, ctx=device) for _ in range(arrays)]

    def hybrid_forward(self, F: Any, inputs: Any, *states: Any) -> Any:
        """Return logits (streams, length, classes) of inputs (streams, length), and new states."""
        features = self.embedding(inputs)
        if states:
            features = dropped(F, features, self.dropout)
            features, states = getattr(self, self.kind)(features, list(states))
        else:
            places = self.places(F.contrib.arange_like(inputs, axis=1))
            features = F.broadcast_add(features, F.expand_dims(places, 0))
            features = self.transformer(dropped(F, features, self.dropout))
        return (self.decoder(dropped(F, features, self.dropout)), *states)
