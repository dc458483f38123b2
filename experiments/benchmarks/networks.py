"""Networks for MXNet that no model zoo has: transformers, an LSTM and a U-Net."""

from functools import partial

from experiments.benchmarks import sizes
from gluon_amp.training.networks.language_model import TransformerLayer

from mxnet.gluon import HybridBlock, nn, rnn


class Transformer(HybridBlock):
    """A transformer of some size."""

    def __init__(self, size: sizes.Transformer):
        super().__init__()
        with self.name_scope():
            self.embedding = nn.Embedding(size.vocabulary, size.units)
            self.positions = nn.Embedding(size.positions, size.units) if size.positions else None
            self.body = nn.HybridSequential()
            for _ in range(size.layers):
                self.body.add(TransformerLayer(size.units, size.hidden, size.heads))
            self.body.add(nn.LayerNorm(in_channels=size.units))
            if size.transforms:
                self.body.add(nn.Dense(size.units, flatten=False, in_units=size.units))
                self.body.add(nn.GELU(), nn.LayerNorm(in_channels=size.units))
            self.body.add(nn.Dense(size.vocabulary, flatten=False, in_units=size.units))

    def hybrid_forward(self, F, x):
        """Return a score of each word for each token."""
        tokens = self.embedding(x)
        if self.positions is not None:
            numbers = F.contrib.arange_like(x, axis=1)
            tokens = F.broadcast_add(tokens, F.expand_dims(self.positions(numbers), 0))
        return self.body(tokens)


def lstm() -> HybridBlock:
    """Return the LSTM."""
    size, net = sizes.LSTM, nn.HybridSequential()
    net.add(nn.Embedding(size.vocabulary, size.embedding))
    net.add(rnn.LSTM(size.units, size.layers, layout="NTC", input_size=size.embedding))
    net.add(nn.Dense(size.vocabulary, flatten=False, in_units=size.units))
    return net


def _convolution(channels: int) -> HybridBlock:
    block = nn.HybridSequential()
    block.add(nn.Conv2D(channels, 3, padding=1, use_bias=False))
    block.add(nn.BatchNorm(), nn.Activation("relu"))
    return block


class UNet(HybridBlock):
    """The U-Net: each resolution reads what is below, and the same resolution on the way down."""

    def __init__(self):
        super().__init__()
        high, middle, low = sizes.UNET.channels
        with self.name_scope():
            self.down1, self.down2 = _convolution(high), _convolution(middle)
            self.bottom = _convolution(low)
            self.pool = nn.MaxPool2D(2)
            self.enlarge2 = nn.Conv2DTranspose(middle, 2, strides=2)
            self.enlarge1 = nn.Conv2DTranspose(high, 2, strides=2)
            self.up2, self.up1 = _convolution(middle), _convolution(high)
            self.head = nn.Conv2D(sizes.UNET.classes, 1)

    def hybrid_forward(self, F, x):
        """Return a score of each class for each pixel."""
        first = self.down1(x)
        second = self.down2(self.pool(first))
        third = self.enlarge2(self.bottom(self.pool(second)))
        second = self.enlarge1(self.up2(F.concat(third, second, dim=1)))
        return self.head(self.up1(F.concat(second, first, dim=1)))


BUILT = {
    **{name: partial(Transformer, size) for name, size in sizes.TRANSFORMERS.items()},
    "lstm": lstm,
    "unet": UNet,
}
