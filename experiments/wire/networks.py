"""The networks whose gradients are exchanged, on batches of the digits."""

from typing import Any, Iterator, List, NamedTuple, Tuple

import numpy as np

from gluon_amp.base.host import host_copy
from gluon_amp.casting.cast import cast
from gluon_amp.trainer import Trainer
from gluon_amp.training.data import TrainingBatches, open_digits
from gluon_amp.training.networks.models import build

import mxnet as mx
from mxnet import autograd, gluon, nd

SEED = 0
TRAINED_STEPS = 20  # before gradients are collected, so that the loss scale is found
KEPT = 200_000  # elements of each worker, drawn from those of the low precision's parameters


class Network(NamedTuple):
    """A network of the recipes, the height and width of its images, and its batch."""

    model: str
    title: str
    size: int
    batch: int


NETWORKS = {
    "digits": Network("convnet", "the digits' network", 28, 16),
    "resnet18": Network("resnet18_v1", "ResNet-18 v1", 32, 8),
}


class Training:
    """A cast network with its first weights, and a trainer that exchanges by `kvstore`."""

    def __init__(self, network: Network, policy: str, kvstore: Any):
        mx.random.seed(0)
        self._network = network
        self._net = build(network.model, 10)
        self._net.initialize(mx.init.MSRAPrelu())
        cast(self._net, policy)
        self._net.hybridize(static_alloc=True)
        self._loss = gluon.loss.SoftmaxCrossEntropyLoss()
        settings = {"learning_rate": 0.05, "momentum": 0.9}
        self.trainer = Trainer(self._net.collect_params(), "sgd", settings, kvstore=kvstore)

    def backward(self, images: nd.NDArray, labels: nd.NDArray) -> None:
        """Compute the gradients of a batch, times the loss scale."""
        with autograd.record():
            loss = self._loss(self._net(images), labels)
        self.trainer.backward(loss)

    def batches(self, seed: int) -> Iterator[Tuple[nd.NDArray, nd.NDArray]]:
        """Yield images and labels endlessly, in epochs of the digits."""
        source = open_digits(seed, size=self._network.size)
        epochs = TrainingBatches(source.train, self._network.batch, seed, num_workers=0)
        epoch = 0
        while True:
            yield from epochs.epoch(epoch)
            epoch += 1


class Gradients(NamedTuple):
    """Vectors of float32, a simulated worker each, whose values carry the loss scale."""

    parts: List[np.ndarray]
    dtype: str  # in which the network has them
    scale: float


def collect(network: Network, policy: str, workers: int) -> Gradients:
    """Return the gradients of so many batches, after `TRAINED_STEPS` steps on others.

    All parameters of two or more dimensions count; a policy may have them in float16.
    """
    training = Training(network, policy, None)
    batches = training.batches(SEED)
    for _, (images, labels) in zip(range(TRAINED_STEPS), batches):
        training.backward(images, labels)
        training.trainer.step(len(images))
    weights = [
        param.list_grad()[0]
        for param in training.trainer.parameters
        if param.grad_req != "null" and len(param.shape) > 1
    ]
    size = sum(weight.size for weight in weights)
    chosen = np.sort(np.random.RandomState(SEED).permutation(size)[:KEPT])
    parts = []
    for _, (images, labels) in zip(range(workers), batches):
        training.backward(images, labels)
        vector = np.concatenate([host_copy(weight).ravel() for weight in weights])
        parts.append(vector[chosen].astype(np.float32))
    return Gradients(parts, np.dtype(weights[0].dtype).name, training.trainer.used_scale())
