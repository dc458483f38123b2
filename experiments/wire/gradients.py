"""Gradients of simulated workers: one network, a batch of its own for each."""

from typing import List, NamedTuple

import numpy as np

from experiments.wire.networks import Network, batches, trained
from gluon_amp.base.host import host_copy

SEED = 0
TRAINED_STEPS = 20  # before, so that the loss scale is found and the weights are not the first ones
KEPT = 200_000  # elements of each worker, drawn from those of the low precision's parameters


class Gradients(NamedTuple):
    """Vectors of float32, a worker each, whose values carry the loss scale."""

    parts: List[np.ndarray]
    dtype: str  # in which the network has them
    scale: float


def collect(network: Network, policy: str, workers: int) -> Gradients:
    """Return gradients of so many batches, after `TRAINED_STEPS` steps on others.

    All parameters of two or more dimensions count; a policy may have them in float16.
    """
    training = trained(network, policy, None)
    every = batches(network, SEED, TRAINED_STEPS + workers)
    for _, (images, labels) in zip(range(TRAINED_STEPS), every):
        training.backward(images, labels)
        training.trainer.step(len(images))
    weights = [
        param.list_grad()[0]
        for param in training.trainer.parameters
        if param.grad_req != "null" and len(param.shape) > 1
    ]
    chosen = None
    parts = []
    for images, labels in every:
        training.backward(images, labels)
        vector = np.concatenate([host_copy(grad).ravel() for grad in weights])
        if chosen is None:
            count = min(KEPT, vector.size)
            chosen = np.sort(np.random.RandomState(SEED).permutation(vector.size)[:count])
        parts.append(vector[chosen].astype(np.float32))
    return Gradients(parts, np.dtype(weights[0].dtype).name, training.trainer.used_scale())
