"""The sizes of the networks that are built here, both with MXNet and with PyTorch.

It imports nothing but the standard library.
"""

from typing import NamedTuple


class Transformer(NamedTuple):
    """An encoder with pre-normalization, and a dense layer to the vocabulary for each token."""

    layers: int
    units: int
    heads: int
    hidden: int
    vocabulary: int
    positions: int = 0  # whose embeddings are learned
    transforms: bool = False  # whether the head begins as that of a masked language model


TRANSFORMERS = {
    "transformer": Transformer(4, 256, 4, 1024, 2000),
    "bert_base": Transformer(12, 768, 12, 3072, 30522, positions=512, transforms=True),
}


class Lstm(NamedTuple):
    """An embedding, an LSTM, and a dense layer to the vocabulary for each token."""

    layers: int = 2
    embedding: int = 256
    units: int = 512
    vocabulary: int = 2000


class UNet(NamedTuple):
    """Convolutions at three resolutions, and a class for each pixel."""

    channels: tuple = (32, 64, 128)
    classes: int = 4


LSTM, UNET = Lstm(), UNet()
VOCABULARIES = {
    "lstm": LSTM.vocabulary,
    **{name: size.vocabulary for name, size in TRANSFORMERS.items()},
}
RATE = 1e-6  # of Adam, so that training on noise does not overflow
