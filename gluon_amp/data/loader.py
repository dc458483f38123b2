"""Batches: in a seeded order for training, every image exactly once for validation."""

import ctypes
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Deque, Dict, Iterator, List, NamedTuple, Optional, Sequence

import numpy as np

from gluon_amp.data.source import DataError, Images, UnreadableImageError
from gluon_amp.hardware import count_processors

import mxnet as mx
from mxnet.base import _LIB, check_call
from mxnet.gluon.data import Dataset
from mxnet.ndarray import NDArray

PREFETCH = 2  # batches in work besides the one that is waited for
TASK = 8  # images that a worker takes at once
NO_CLASS = -1  # stands for the label of an image that cannot be read until the image is left out


def epoch_order(length: int, seed: int, epoch: int) -> np.ndarray:
    """Return the indices of `length` images as shuffled by (seed, epoch) and by nothing else."""
    return np.random.default_rng((seed, epoch)).permutation(length)


def writable(array: NDArray) -> np.ndarray:
    """Return the memory of a fresh CPU array as a numpy array, which must not outlive it.

    Not `mx.nd.from_numpy`, the other way to save a copy: it calls back into Python when MXNet
    frees the memory, be it from one of its own threads while Python ends.
    """
    pointer = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    kind = np.ctypeslib.as_ctypes_type(array.dtype) * array.size
    return np.frombuffer(kind.from_address(pointer.value), array.dtype).reshape(array.shape)


class _Items(Images):
    """Any dataset whose items are ``(image, label)``, as `Images`."""

    def __init__(self, dataset: Dataset):
        self._dataset = dataset
        self.shape = np.shape(dataset[0][0])

    def __len__(self) -> int:
        return len(self._dataset)

    def write(self, position: int, out: np.ndarray) -> int:
        image, label = self._dataset[position]
        out[...] = image.asnumpy() if isinstance(image, NDArray) else image
        return label


class _Batch(NamedTuple):
    arrays: List[NDArray]
    images: np.ndarray
    labels: np.ndarray
    positions: List[int]
    unreadable: Dict[int, str]
    tasks: List[Future]


class _Loader:
    """Loads batches of positions in worker threads; a subclass sets `images`, how many there are.

    Decoding and arithmetic run in OpenCV and numpy, which let other Python threads run meanwhile:
    threads use all cores, and unlike processes write into the batch itself. Python's own share is
    0.08 ms an image of 0.7 ms (224 pixels, 2 cores), so a dozen threads are the most that helps.
    """

    images: int

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        num_workers: Optional[int],
        part_index: int,
        num_parts: int,
    ):
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}, expected 1 or more.")
        if not 0 <= part_index < num_parts:
            raise ValueError(f"part_index is {part_index}, expected 0 to {num_parts - 1}.")
        self._images = dataset if isinstance(dataset, Images) else _Items(dataset)
        workers = count_processors() if num_workers is None else num_workers
        self._pool = ThreadPoolExecutor(workers, "gluon_amp_data") if workers else None
        self.batch_size = batch_size
        self._part = part_index, num_parts
        self._unreadable: Dict[int, str] = {}  # by position: names need not be unique

    @property
    def unreadable(self) -> List[str]:
        """Names of the images of the newest pass that could not be read, sorted."""
        return sorted(self._unreadable.values())

    def __len__(self) -> int:
        return -(-self.images // self.batch_size)

    def _write(self, position: int, out: np.ndarray, unreadable: Dict[int, str]) -> int:
        raise NotImplementedError

    def _load(self, positions: np.ndarray) -> Iterator[List[NDArray]]:
        self._unreadable = unreadable = {}
        working: Deque[_Batch] = deque()
        try:
            for first in range(0, len(positions), self.batch_size):
                taken = positions[first : first + self.batch_size]
                working.append(self._start(taken, unreadable))
                if len(working) > (PREFETCH if self._pool else 0):
                    yield self._finish(working.popleft())
            while working:
                yield self._finish(working.popleft())
        finally:
            for batch in working:  # nobody wants them any more
                for task in batch.tasks:
                    task.cancel()

    def _start(self, positions: np.ndarray, unreadable: Dict[int, str]) -> _Batch:
        count = len(positions)
        arrays = [
            mx.nd.empty((count, *self._images.shape), mx.cpu(), np.float32),
            mx.nd.empty((count,), mx.cpu(), np.int32),
        ]
        batch = _Batch(arrays, *map(writable, arrays), positions.tolist(), unreadable, [])
        for first in range(0, count, TASK):
            rows = range(first, min(first + TASK, count))
            if self._pool:
                batch.tasks.append(self._pool.submit(self._fill, batch, rows))
            else:
                self._fill(batch, rows)
        return batch

    def _fill(self, batch: _Batch, rows: Sequence[int]) -> None:
        for row in rows:
            out = batch.images[row : row + 1].reshape(self._images.shape)  # a view of 0-d, too
            batch.labels[row] = self._write(batch.positions[row], out, batch.unreadable)

    @staticmethod
    def _finish(batch: _Batch) -> List[NDArray]:
        for task in batch.tasks:
            task.result()
        return batch.arrays


class TrainingBatches(_Loader):
    """Shuffled batches of a dataset, epoch by epoch.

    The last batch of an epoch may be smaller: no image is dropped or carried over, so every epoch
    has the same number of batches and a schedule counted in epochs stays exact. What is in a batch
    depends on the seed, the epoch and the number of the batch alone.

    An image that cannot be read is replaced by the next one that can, in the order of the dataset.

    Parameters
    ----------
    dataset : Dataset
        `Images`, or a dataset of ``(image, label)`` indexed by position as they are.
    batch_size : int
        Images in a batch, all devices of this process together.
    seed : int
        Decides the order.
    num_workers : int, optional
        Loading threads; 0 loads in the calling one, None is one for each core.
    part_index, num_parts : int
        Load the part `part_index` of `num_parts`, for training in several processes. All parts get
        the same number of images: where they do not come out even, the first images of the epoch
        come once more at its end. Batch n of all parts together is batch n of a single process
        with `num_parts` times the batch size.

    Attributes
    ----------
    images : int
        Images in an epoch of this part.
    unreadable : list of str
        Names of the images of the newest pass that could not be read.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        seed: int = 0,
        num_workers: Optional[int] = None,
        part_index: int = 0,
        num_parts: int = 1,
    ):
        super().__init__(dataset, batch_size, num_workers, part_index, num_parts)
        self.images = -(-len(self._images) // num_parts)
        self._seed = seed

    def epoch(self, number: int, start: int = 0) -> Iterator[List[NDArray]]:
        """Return the ``[images, labels]`` batches of epoch `number` from batch `start` on.

        Both count from 0. Images are float32, labels int32, both on the CPU.

        Raises
        ------
        DataError
            From the iterator: no image can be read at all, or a label is out of range.
        """
        length, (part, parts) = len(self._images), self._part
        order = np.resize(epoch_order(length, self._seed, number), self.images * parts)
        positions = order[part::parts] + number * length
        return self._load(positions[start * self.batch_size :])

    def _write(self, position: int, out: np.ndarray, unreadable: Dict[int, str]) -> int:
        length = len(self._images)
        epoch, index = divmod(position, length)
        for further in range(length):
            tried = (index + further) % length
            try:
                return self._images.write(epoch * length + tried, out)
            except UnreadableImageError as image:
                unreadable[tried] = str(image)
        raise _none_readable(length, unreadable)


class ValidationBatches(_Loader):
    """Batches that hold every image of a dataset exactly once, in every pass; the last is smaller.

    An image that cannot be read is left out, so its batch is smaller, too.

    `mx.io.ImageRecordIter` cannot do that: it repeats images of the first batch to fill the last
    one, skips them in the next pass, and its ``pad`` is stale (MXNet 1.9.1).

    Parameters
    ----------
    dataset, batch_size, num_workers
        As for `TrainingBatches`.
    part_index, num_parts : int
        Load every `num_parts`-th image, from `part_index` on; parts may differ by an image.

    Attributes
    ----------
    images : int
        Images in a pass of this part.
    unreadable : list of str
        Names of the images of the newest pass that could not be read.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        num_workers: Optional[int] = None,
        part_index: int = 0,
        num_parts: int = 1,
    ):
        super().__init__(dataset, batch_size, num_workers, part_index, num_parts)
        self._positions = np.arange(part_index, len(self._images), num_parts)
        self.images = len(self._positions)

    def __iter__(self) -> Iterator[List[NDArray]]:
        for images, labels in self._load(self._positions):
            readable = np.flatnonzero(labels.asnumpy() != NO_CLASS)
            if len(readable) == len(labels):
                yield [images, labels]
            elif len(readable):
                yield [mx.nd.array(array.asnumpy()[readable], dtype=array.dtype)
                       for array in (images, labels)]  # fmt: skip
        if self.images and len(self._unreadable) == self.images:
            raise _none_readable(self.images, self._unreadable)

    def _write(self, position: int, out: np.ndarray, unreadable: Dict[int, str]) -> int:
        try:
            return self._images.write(position, out)
        except UnreadableImageError as image:
            unreadable[position] = str(image)
            return NO_CLASS


def _none_readable(images: int, unreadable: Dict[int, str]) -> DataError:
    example = min(unreadable.values())
    return DataError(f"none of the {images} images can be read, for example {example}.")


validation_batches = ValidationBatches
