"""Loads batches: in a seeded order for training, every image exactly once for validation."""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Deque, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from gluon_amp.base.hardware import count_processors
from gluon_amp.base.host import host_view
from gluon_amp.training.data.source import DataError, Images, UnreadableImageError

import mxnet as mx
from mxnet.ndarray import NDArray

PREFETCH = 2  # batches that are loaded ahead of the one that is needed
TASK = 8  # images of one task of a worker
NO_CLASS = -1  # label of an unreadable image, until the image is removed from its batch


def epoch_order(length: int, seed: int, epoch: int) -> np.ndarray:
    """Return the indices of `length` images in an order that depends on (seed, epoch) alone."""
    return np.random.default_rng((seed, epoch)).permutation(length)


class _Loader:
    """Loads batches of positions in worker threads.

    OpenCV and numpy release Python's global lock for decoding and arithmetic. So threads use all
    cores, and unlike processes they write into the batch itself. Python holds the lock for 0.08 of
    the 0.7 ms of an image (224 pixels, 2 cores), so more than a dozen threads do not help.
    """

    def __init__(
        self,
        dataset: Images,
        batch_size: int,
        num_workers: Optional[int] = None,
        part_index: int = 0,
        num_parts: int = 1,
    ):
        self._images = dataset
        self.num_workers = count_processors() if num_workers is None else num_workers
        threads = self.num_workers
        self._pool = ThreadPoolExecutor(threads, "gluon_amp_data") if threads else None
        self.batch_size = batch_size
        self._part = part_index, num_parts
        self._unreadable: Dict[int, str] = {}  # by position, as names need not be unique

    @property
    def images(self) -> int:
        """How many images a pass has, in this part."""
        raise NotImplementedError

    def _write(self, position: int, out: np.ndarray, unreadable: Dict[int, str]) -> int:
        """Write the image at a position to `out`; return its label."""
        raise NotImplementedError

    @property
    def unreadable(self) -> List[str]:
        """Names of the images that the latest pass could not read, sorted."""
        return sorted(self._unreadable.values())

    def __len__(self) -> int:
        return -(-self.images // self.batch_size)

    def _load(self, positions: np.ndarray) -> Iterator[List[NDArray]]:
        unreadable: Dict[int, str] = {}
        self._unreadable = unreadable
        pending: Deque[Tuple[List[NDArray], List[Future]]] = deque()
        try:
            for first in range(0, len(positions), self.batch_size):
                in_batch = positions[first : first + self.batch_size].tolist()
                pending.append(self._start(in_batch, unreadable))
                if len(pending) > (PREFETCH if self._pool else 0):
                    yield _finished(*pending.popleft())
            while pending:
                yield _finished(*pending.popleft())
        finally:
            for _, tasks in pending:  # the caller has stopped early
                for task in tasks:
                    task.cancel()

    def _start(
        self, positions: List[int], unreadable: Dict[int, str]
    ) -> Tuple[List[NDArray], List[Future]]:
        count = len(positions)
        arrays = [
            mx.nd.empty((count, *self._images.shape), mx.cpu(), np.float32),
            mx.nd.empty((count,), mx.cpu(), np.int32),
        ]
        # Workers write into the memory of the arrays. `mx.nd.from_numpy` also avoids a copy, but it
        # calls into Python when MXNet frees the memory, perhaps in a thread while Python exits.
        images, labels = (host_view(array).reshape(array.shape) for array in arrays)

        def fill(rows: Sequence[int]) -> None:
            for row in rows:
                out = images[row : row + 1].reshape(self._images.shape)  # 0-d is a view, too
                labels[row] = self._write(positions[row], out, unreadable)

        if not self._pool:
            fill(range(count))
            return arrays, []
        parts = (range(first, min(first + TASK, count)) for first in range(0, count, TASK))
        return arrays, [self._pool.submit(fill, rows) for rows in parts]


def _finished(arrays: List[NDArray], tasks: List[Future]) -> List[NDArray]:
    for task in tasks:
        task.result()
    return arrays


class TrainingBatches(_Loader):
    """Shuffled batches of a dataset, epoch by epoch; the last of an epoch may be smaller.

    No image is dropped or moved to the next epoch. The content of a batch depends only on the seed,
    the epoch and the number of the batch. An image that cannot be read is replaced by the next
    readable one in the order of the dataset.

    All parts have the same number of images: the first of the epoch may be repeated at its end.
    Batch n of all parts together is batch n of a single process with `num_parts` times the batch
    size.
    """

    def __init__(
        self,
        dataset: Images,
        batch_size: int,
        seed: int = 0,
        num_workers: Optional[int] = None,
        part_index: int = 0,
        num_parts: int = 1,
    ):
        super().__init__(dataset, batch_size, num_workers, part_index, num_parts)
        self._seed = seed

    @property
    def images(self) -> int:
        return -(-len(self._images) // self._part[1])

    def epoch(self, number: int, start: int = 0) -> Iterator[List[NDArray]]:
        """Return ``[images, labels]`` batches, float32 and int32, of an epoch from `start` on."""
        length, (part, parts) = len(self._images), self._part
        order = np.resize(epoch_order(length, self._seed, number), self.images * parts)
        positions = order[part::parts] + number * length
        return self._load(positions[start * self.batch_size :])

    def _write(self, position: int, out: np.ndarray, unreadable: Dict[int, str]) -> int:
        length = len(self._images)
        epoch, index = divmod(position, length)
        for offset in range(length):
            candidate = (index + offset) % length
            try:
                return self._images.write(epoch * length + candidate, out)
            except UnreadableImageError as error:
                unreadable[candidate] = str(error)
        raise _none_readable(f"{length} training", unreadable)


class ValidationBatches(_Loader):
    """Batches with every image of a dataset exactly once in every pass; the last may be smaller.

    An image that cannot be read is left out of its batch. The sizes of parts may differ by one.
    `mx.io.ImageRecordIter` of MXNet 1.9.1 repeats images of the first batch to fill the last one,
    skips them in the next pass, and its ``pad`` is wrong.
    """

    @property
    def images(self) -> int:
        return len(self._positions())

    def _positions(self) -> np.ndarray:
        part, parts = self._part
        return np.arange(part, len(self._images), parts)

    def __iter__(self) -> Iterator[List[NDArray]]:
        for images, labels in self._load(self._positions()):
            readable = np.flatnonzero(labels.asnumpy() != NO_CLASS)
            if len(readable) == len(labels):
                yield [images, labels]
            elif len(readable):
                yield [
                    mx.nd.array(array.asnumpy()[readable], dtype=array.dtype)
                    for array in (images, labels)
                ]
        if self.images and len(self._unreadable) == self.images:
            raise _none_readable(f"{self.images} validation", self._unreadable)

    def _write(self, position: int, out: np.ndarray, unreadable: Dict[int, str]) -> int:
        try:
            return self._images.write(position, out)
        except UnreadableImageError as error:
            unreadable[position] = str(error)
            return NO_CLASS


def _none_readable(images: str, unreadable: Dict[int, str]) -> DataError:
    example = min(unreadable.values())
    return DataError(f"none of the {images} images can be read, for example {example}.")
