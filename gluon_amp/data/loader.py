"""Batches: in a seeded order for training, every image exactly once for validation."""

from typing import Iterator, List

import numpy as np

from mxnet.gluon.data import DataLoader, Dataset, Sampler
from mxnet.ndarray import NDArray


class EpochOrder(Sampler):
    """Yields the positions of one epoch, shuffled by (seed, epoch) and by nothing else."""

    def __init__(self, length: int, seed: int):
        self._length = length
        self._seed = seed
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        order = np.random.default_rng((self._seed, self.epoch)).permutation(self._length)
        return iter((order + self.epoch * self._length).tolist())

    def __len__(self) -> int:
        return self._length


class TrainingBatches:
    """Shuffled batches of a dataset, epoch by epoch.

    The last batch of an epoch may be smaller: no image is dropped, repeated, or carried over, so
    every epoch has the same number of batches and a schedule counted in epochs stays exact.

    Parameters
    ----------
    dataset : Dataset
        Indexed by position, as `gluon_amp.data.augment.Augmented` is.
    batch_size : int
        Images in a batch, all devices together.
    seed : int
        Decides the order.
    num_workers : int
        Loading processes; 0 loads in this one. Workers yield arrays in shared memory (context
        ``cpu_shared``): copy them to a device before use.
    """

    def __init__(self, dataset: Dataset, batch_size: int, seed: int = 0, num_workers: int = 0):
        self._order = EpochOrder(len(dataset), seed)
        self._loader = DataLoader(
            dataset, batch_size, sampler=self._order, last_batch="keep", num_workers=num_workers
        )
        self.images = len(dataset)
        self.batch_size = batch_size

    def epoch(self, number: int) -> Iterator[List[NDArray]]:
        """Return the ``[images, labels]`` batches of epoch `number`, counted from 0."""
        self._order.epoch = number
        return iter(self._loader)

    def __len__(self) -> int:
        return len(self._loader)


def validation_batches(dataset: Dataset, batch_size: int, num_workers: int = 0) -> DataLoader:
    """Return batches that hold every image of `dataset` exactly once, in every pass.

    `mx.io.ImageRecordIter` cannot do that: it repeats images of the first batch to fill the last
    one, skips them in the next pass, and its ``pad`` is stale (MXNet 1.9.1).
    """
    return DataLoader(dataset, batch_size, last_batch="keep", num_workers=num_workers)
