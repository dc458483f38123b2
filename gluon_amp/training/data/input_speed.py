"""How many training images are loaded in a second, with nothing else running."""

import itertools
import time
from typing import Iterator, Optional, Sequence

from gluon_amp.training.data.loader import TrainingBatches
from gluon_amp.training.data.source import Source

from mxnet.ndarray import NDArray

WARM_UP = 2  # batches before the measurement: threads start, and the page cache fills
Batches = Iterator[Sequence[NDArray]]  # of [images, labels]


def images_per_second(batches: Batches, count: int) -> float:
    """Load `WARM_UP` batches, then `count` more; return the images per second of these."""
    for images, _ in itertools.islice(batches, WARM_UP):
        images.wait_to_read()
    start, total = time.perf_counter(), 0
    for images, _ in itertools.islice(batches, count):
        images.wait_to_read()
        total += len(images)
    return total / (time.perf_counter() - start)


def training_batches(source: Source, batch_size: int, num_workers: Optional[int] = None) -> Batches:
    """Return an endless iterator over the training batches of epoch 0, 1, 2 ..."""
    loader = TrainingBatches(source.train, batch_size, num_workers=num_workers)
    return itertools.chain.from_iterable(loader.epoch(number) for number in itertools.count())
