"""The networks whose gradients are exchanged, on batches of the digits."""

import itertools
from typing import Iterator, List, NamedTuple, Tuple

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


class Gradients(NamedTuple):
    """Vectors of float32, a simulated worker each, whose values carry the loss scale."""

    parts: List[np.ndarray]
    scale: float


def collect(network: Network, policy: str, workers: int) -> Gradients:
    """Return the gradients of so many batches, after `TRAINED_STEPS` steps on others."""
    mx.random.seed(SEED)
    net = build(network.model, 10)
    net.initialize(mx.init.MSRAPrelu())
    cast(net, policy)
    net.hybridize(static_alloc=True)
    settings = {"learning_rate": 0.05, "momentum": 0.9}
    trainer = Trainer(net.collect_params(), "sgd", settings, kvstore=None)
    loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
    weights, vectors = [], []
    for number, (images, labels) in enumerate(_batches(network, TRAINED_STEPS + workers)):
        with autograd.record():
            loss = loss_fn(net(images), labels)
        trainer.backward(loss)
        if number < TRAINED_STEPS:
            trainer.step(len(images))
            continue
        if not weights:
            trained = (p for p in trainer.parameters if p.grad_req != "null" and len(p.shape) > 1)
            weights = [param.list_grad()[0] for param in trained]
            size = sum(weight.size for weight in weights)
            chosen = np.sort(np.random.RandomState(SEED).permutation(size)[:KEPT])
        vector = np.concatenate([host_copy(weight).ravel() for weight in weights])
        vectors.append(vector[chosen].astype(np.float32))
    return Gradients(vectors, trainer.used_scale())


def _batches(network: Network, count: int) -> Iterator[Tuple[nd.NDArray, nd.NDArray]]:
    """Yield images and labels of `count` batches, in epochs of the digits."""
    source = open_digits(SEED, size=network.size)
    epochs = TrainingBatches(source.train, network.batch, SEED, num_workers=0)
    every = itertools.chain.from_iterable(map(epochs.epoch, itertools.count()))
    return itertools.islice(every, count)
