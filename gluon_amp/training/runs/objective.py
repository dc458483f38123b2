"""The objective that training minimizes: cross entropy, with optional label smoothing and mixup."""

from dataclasses import dataclass
from typing import List, Tuple

import numpy as np

from mxnet import nd
from mxnet.gluon.loss import SoftmaxCrossEntropyLoss
from mxnet.ndarray import NDArray


@dataclass(frozen=True)
class Objective:
    """Cross entropy of a classifier."""

    classes: int
    # share of each label that is divided among all classes (Szegedy et al. 2016)
    smoothing: float = 0.0
    # pairs are mixed with weights from Beta(mixup, mixup) (Zhang et al. 2018); 0 for none
    mixup: float = 0.0
    mixup_epochs: int = 0  # the first ones, in which images are mixed
    seed: int = 0  # the weights depend only on (seed, epoch, batch)

    def weight(self, epoch: int, batch: int) -> float:
        """Return the weight of the images; that of the reversed batch is 1 minus it."""
        if not self.mixup or epoch >= self.mixup_epochs:
            return 1.0
        # The 1 makes this generator another one than those of order and augmentation.
        generator = np.random.default_rng((self.seed, epoch, batch, 1))
        return float(generator.beta(self.mixup, self.mixup))

    def mixed(self, images: NDArray, labels: NDArray, weight: float) -> Tuple[NDArray, NDArray]:
        """Return images (N, ...) and targets: labels (N,), or probabilities (N, classes)."""
        if weight != 1.0:
            images = weight * images + (1 - weight) * images[::-1]
        if not (self.smoothing or self.mixup):
            return images, labels
        shares = self.shares(labels)
        if weight != 1.0:
            shares = weight * shares + (1 - weight) * shares[::-1]
        return images, shares

    def shares(self, labels: NDArray) -> NDArray:
        """Return the smoothed one-hot encoding of labels (N,): float32 (N, classes)."""
        everywhere = self.smoothing / self.classes
        return nd.one_hot(
            labels, self.classes, on_value=1 - self.smoothing + everywhere, off_value=everywhere
        )

    def losses(self, outputs: List[NDArray], targets: List[NDArray]) -> List[NDArray]:
        """Return the loss of each image, one array for each device."""
        loss = SoftmaxCrossEntropyLoss(sparse_label=not (self.smoothing or self.mixup))
        return [loss(*pair) for pair in zip(outputs, targets)]
