"""Random augmentation that depends on (seed, epoch, image) alone.

A random number from a process-wide generator depends on which worker drew it and on everything
drawn before, so a run could be neither repeated nor resumed. Here the position that the sampler
hands out carries the epoch, and every image gets a generator of its own.
"""

from typing import Any, Callable, Tuple

import numpy as np

from mxnet.gluon.data import Dataset


class Augmented(Dataset):
    """A dataset with random augmentation.

    Parameters
    ----------
    images : Dataset
        Items are ``(image, label)``.
    augment : callable
        ``augment(image, generator) -> image``, where `generator` is a `numpy.random.Generator`.
    seed : int
        Another seed, another augmentation.

    Notes
    -----
    Index it by position, ``epoch * len(dataset) + index``: in epoch 0 that is the index.
    """

    def __init__(
        self, images: Dataset, augment: Callable[[Any, np.random.Generator], Any], seed: int
    ):
        self._images = images
        self._augment = augment
        self._seed = seed

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, position: int) -> Tuple[Any, Any]:
        epoch, index = divmod(int(position), len(self))
        image, label = self._images[index]
        return self._augment(image, np.random.default_rng((self._seed, epoch, index))), label
