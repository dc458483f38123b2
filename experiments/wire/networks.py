"""The networks whose gradients are exchanged, on batches of the digits."""

from dataclasses import dataclass
from typing import Any, Dict, Iterator, Tuple

from gluon_amp.casting.cast import cast
from gluon_amp.trainer import Trainer
from gluon_amp.training.data import TrainingBatches, open_digits
from gluon_amp.training.networks.models import build

import mxnet as mx
from mxnet import autograd, gluon, nd

LEARNING_RATE = 0.05


@dataclass(frozen=True)
class Network:
    """A network of the recipes, the height and width of its images, and its batch."""

    model: str
    title: str
    size: int
    batch: int


NETWORKS: Dict[str, Network] = {
    "digits": Network("convnet", "the digits' network", 28, 16),
    "resnet18": Network("resnet18_v1", "ResNet-18 v1", 32, 8),
}


class Training:
    """A cast network with a loss and a trainer."""

    def __init__(self, net: gluon.HybridBlock, trainer: Trainer):
        self.net, self.trainer = net, trainer
        self._loss = gluon.loss.SoftmaxCrossEntropyLoss()

    def backward(self, images: nd.NDArray, labels: nd.NDArray) -> None:
        """Compute the gradients of a batch, times the loss scale."""
        with autograd.record():
            loss = self._loss(self.net(images), labels)
        self.trainer.backward(loss)


def trained(network: Network, policy: str, kvstore: Any) -> Training:
    """Return a network with its first weights, and a trainer that exchanges by `kvstore`."""
    mx.random.seed(0)
    net = build(network.model, 10)
    net.initialize(mx.init.MSRAPrelu())
    cast(net, policy)
    net.hybridize(static_alloc=True)
    settings = {"learning_rate": LEARNING_RATE, "momentum": 0.9}
    return Training(net, Trainer(net.collect_params(), "sgd", settings, kvstore=kvstore))


def batches(network: Network, seed: int, count: int) -> Iterator[Tuple[nd.NDArray, nd.NDArray]]:
    """Yield images and labels of `count` batches, in epochs of the digits."""
    source = open_digits(seed, size=network.size)
    epochs = TrainingBatches(source.train, network.batch, seed, num_workers=0)
    made, epoch = 0, 0
    while made < count:
        for images, labels in epochs.epoch(epoch):
            if made == count:
                return
            yield images, labels
            made += 1
        epoch += 1
