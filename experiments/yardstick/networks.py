"""Ten small networks of different kinds, with the data that they learn."""

from typing import Callable, NamedTuple, Tuple

import numpy as np

from gluon_amp.training.data.digits import load_digits, normalise
from gluon_amp.training.data.text import CLASSES, open_text
from gluon_amp.training.networks.models import build

from mxnet.gluon import HybridBlock, nn, rnn

BATCH, LENGTH, WIDTH = 32, 32, 64  # samples, characters of each, and features of a character
CHARACTERS = 200_000


class Network(NamedTuple):
    """How to build a network, and what it learns."""

    build: Callable[[], HybridBlock]  # not initialized
    rate: float  # learning rate of SGD with momentum
    data: str = "digits"  # or "text"


class Attention(HybridBlock):
    """A layer of a transformer: causal attention and two dense layers, each behind a LayerNorm."""

    def __init__(self, heads: int = 4):
        super().__init__()
        self.heads = heads
        with self.name_scope():
            self.first_norm, self.second_norm = nn.LayerNorm(), nn.LayerNorm()
            self.projections = nn.Dense(3 * WIDTH, flatten=False)
            self.merge = nn.Dense(WIDTH, flatten=False)
            self.wide = nn.Dense(4 * WIDTH, flatten=False)
            self.narrow = nn.Dense(WIDTH, flatten=False)

    def hybrid_forward(self, F, x):
        """Return features of the shape of `x`, (samples, characters, features)."""
        projected = F.split(self.projections(self.first_norm(x)), num_outputs=3, axis=2)
        query, key, value = (self._by_head(F, each) for each in projected)
        scores = F.batch_dot(query, key, transpose_b=True) * (self.heads / WIDTH) ** 0.5
        position = F.contrib.arange_like(scores, axis=1)
        later = F.broadcast_lesser(position.reshape((1, -1, 1)), position.reshape((1, 1, -1)))
        weights = F.softmax(F.broadcast_sub(scores, later * 1e4))
        mixed = F.batch_dot(weights, value).reshape((-1, self.heads, LENGTH, WIDTH // self.heads))
        x = x + self.merge(F.transpose(mixed, (0, 2, 1, 3)).reshape((0, 0, -1)))
        wide = self.wide(self.second_norm(x))
        # GELU by its definition, as MXNet's has an error of 2e-7 in float64
        return x + self.narrow(wide * (1 + F.erf(wide * 0.5**0.5)) / 2)

    def _by_head(self, F, x):
        split = F.transpose(x.reshape((0, 0, self.heads, -1)), (0, 2, 1, 3))
        return split.reshape((-1, LENGTH, WIDTH // self.heads))


def chain(*layers: HybridBlock) -> HybridBlock:
    """Return a network that applies layers in turn."""
    net = nn.HybridSequential()
    net.add(*layers)
    return net


def dense(activation: str) -> HybridBlock:
    """Return twelve dense layers without norms."""
    return chain(*(nn.Dense(128, activation=activation) for _ in range(11)), nn.Dense(10))


def plain_convolutions() -> HybridBlock:
    """Return eight convolutions without norms, as in VGG."""
    layers = []
    for channels in (16, 32, 64, 64):
        layers += [nn.Conv2D(channels, 3, padding=1, activation="relu") for _ in range(2)]
        layers += [nn.MaxPool2D()]
    return chain(*layers, nn.Dense(10))


def language(*layers: HybridBlock) -> HybridBlock:
    """Return layers between an embedding of characters and the logits of the next ones."""
    return chain(nn.Embedding(CLASSES, WIDTH), *layers, nn.Dense(CLASSES, flatten=False))


NETWORKS = {
    "dense, 12 layers, ReLU": Network(lambda: dense("relu"), 0.005),
    "dense, 12 layers, tanh": Network(lambda: dense("tanh"), 0.005),
    "convolutions, 8 layers, no norms": Network(plain_convolutions, 0.005),
    "ConvNet of the tables": Network(lambda: build("convnet", 10), 0.05),
    "ResNet-20 v1": Network(lambda: build("cifar_resnet20_v1", 10), 0.05),
    "ResNet-20 v2": Network(lambda: build("cifar_resnet20_v2", 10), 0.05),
    "MobileNetV2, width 0.25": Network(lambda: build("mobilenetv2_0.25", 10), 0.05),
    "ResNet-18 v1 of the Model Zoo": Network(lambda: build("resnet18_v1", 10), 0.05),
    "LSTM, 2 layers": Network(lambda: language(rnn.LSTM(128, 2, layout="NTC")), 1.0, "text"),
    "transformer, 4 layers": Network(
        lambda: language(*(Attention() for _ in range(4)), nn.LayerNorm()), 0.1, "text"
    ),
}


def batches(data: str, count: int) -> Tuple[np.ndarray, np.ndarray]:
    """Return inputs and labels of so many batches: float32 images or codes of characters."""
    if data == "text":
        codes = open_text(CHARACTERS).train
        starts = np.random.default_rng(0).integers(len(codes) - LENGTH, size=count * BATCH)
        window = starts[:, np.newaxis] + np.arange(LENGTH + 1)
        inputs, labels = codes[window[:, :-1]].astype(np.float32), codes[window[:, 1:]]
        return inputs.reshape(count, BATCH, LENGTH), labels.reshape(count, BATCH, LENGTH)
    images, labels = load_digits()[0]
    chosen = np.resize(np.random.default_rng(0).permutation(len(images)), (count, BATCH))
    inputs = np.stack([[normalise(images[index]) for index in batch] for batch in chosen])
    return inputs.astype(np.float32), labels[chosen]
