"""A small convolutional network, for small images and machines without a GPU."""

from typing import Sequence

from mxnet.gluon import HybridBlock, nn

CHANNELS = (16, 32, 64)


def convnet(classes: int, channels: Sequence[int] = CHANNELS) -> HybridBlock:
    """Return an image classifier that is not initialized.

    It has a 3×3 convolution, 2×2 max pooling, BatchNorm and ReLU for each number of channels, then
    a dense layer. Pooling comes first because the layers after it are then four times cheaper, as
    in Page, "How to Train Your ResNet 8: Bag of Tricks" (2019).
    """
    net = nn.HybridSequential()
    for count in channels:
        net.add(
            nn.Conv2D(count, kernel_size=3, padding=1, use_bias=False),
            nn.MaxPool2D(),
            nn.BatchNorm(),
            nn.Activation("relu"),
        )
    net.add(nn.Dense(classes))
    return net
