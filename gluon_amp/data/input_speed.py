"""How many images the input pipeline gives in a second, with nothing else on the machine."""

import itertools
import time
from dataclasses import dataclass
from statistics import median
from typing import Dict, Iterator, List, Optional, Sequence

from gluon_amp.data import imagenet_transforms
from gluon_amp.data.imagenet_transforms import Look
from gluon_amp.data.loader import TrainingBatches
from gluon_amp.data.records import RecordFiles, open_records
from gluon_amp.data.source import DataError, Source
from gluon_amp.hardware import count_processors

import mxnet as mx
from mxnet.ndarray import NDArray

WARM_UP = 2  # batches taken before measuring: threads start, and the page cache fills
Batches = Iterator[Sequence[NDArray]]


def images_per_second(batches: Batches, count: int) -> float:
    """Take `WARM_UP` batches, then `count` more, and return images per second of these.

    Parameters
    ----------
    batches : iterator
        Of ``[images, labels]``.
    count : int
        Batches measured.
    """
    for images, _ in itertools.islice(batches, WARM_UP):
        images.wait_to_read()
    started, total = time.perf_counter(), 0
    for images, _ in itertools.islice(batches, count):
        images.wait_to_read()
        total += len(images)
    return total / (time.perf_counter() - started)


def training_batches(source: Source, batch_size: int, num_workers: Optional[int] = None) -> Batches:
    """Yield the training batches of epoch 0, 1, 2 ... without end."""
    loader = TrainingBatches(source.train, batch_size, num_workers=num_workers)
    return itertools.chain.from_iterable(loader.epoch(number) for number in itertools.count())


def measure_input(
    source: Source, batch_size: int, batches: int, num_workers: Optional[int] = None
) -> float:
    """Return images per second of the training input of `source`, over `batches` batches."""
    return images_per_second(training_batches(source, batch_size, num_workers), batches)


def record_iter_batches(
    files: RecordFiles, batch_size: int, size: int, num_workers: int
) -> Batches:
    """Yield batches of MXNet's own reader without end, augmented as GluonCV does for ImageNet.

    Its batches do not last: the reader fills their memory anew for later ones.

    Source of the settings: gluon-cv ``train_imagenet.py``, ``get_data_rec``, with the areas and
    aspects of its folder transforms.
    """
    jitter = dict.fromkeys(["brightness", "contrast", "saturation"], imagenet_transforms.JITTER)
    mean, std = (
        {f"{name}_{channel}": 255 * value for channel, value in zip("rgb", values)}
        for name, values in (("mean", imagenet_transforms.MEAN), ("std", imagenet_transforms.STD))
    )
    (min_area, max_area), (min_aspect, max_aspect) = (
        imagenet_transforms.AREA,
        imagenet_transforms.ASPECT,
    )
    reader = mx.io.ImageRecordIter(
        path_imgrec=str(files.train),
        path_imgidx=str(files.train_idx),
        batch_size=batch_size,
        data_shape=(3, size, size),
        preprocess_threads=num_workers,
        shuffle=True,
        rand_mirror=True,
        random_resized_crop=True,
        min_random_area=min_area,
        max_random_area=max_area,
        min_aspect_ratio=min_aspect,
        max_aspect_ratio=max_aspect,
        pca_noise=imagenet_transforms.LIGHTING,
        verbose=False,
        **jitter,
        **mean,
        **std,
    )
    while True:
        for batch in reader:
            yield batch.data[0], batch.label[0]
        reader.reset()


def record_iter_threads(asked: int) -> int:
    """Return how many threads ImageRecordIter uses when asked for so many.

    Source: MXNet 1.9.1, ``src/io/iter_image_recordio_2.cc``: at most half of the cores less one.
    """
    return min(asked, max(count_processors() // 2 - 1, 1))


@dataclass(frozen=True)
class Comparison:
    """Images per second of each reader, round by round.

    Attributes
    ----------
    gluon_amp : list of float
        This package with the threads asked for.
    same_threads : list of float
        This package with no more threads than ImageRecordIter uses (`record_iter_threads`).
    image_record_iter : list of float
        ImageRecordIter, asked for the same threads.
    """

    gluon_amp: List[float]
    same_threads: List[float]
    image_record_iter: List[float]

    @property
    def ratio(self) -> float:
        """Median of the rounds' ratios: above 1, gluon_amp is faster."""
        return median(a / b for a, b in zip(self.gluon_amp, self.image_record_iter))


def compare(
    files: RecordFiles,
    batch_size: int = 64,
    batches: int = 24,
    rounds: int = 5,
    num_workers: Optional[int] = None,
    size: int = imagenet_transforms.INPUT_SIZE,
) -> Comparison:
    """Measure this package's input and `mx.io.ImageRecordIter` in turn, on the same records.

    Parameters
    ----------
    files : RecordFiles
        Packed images; the training part is read.
    batch_size, batches, rounds : int
        Each reader gives `batches` batches in each of `rounds` rounds; their order turns round
        every time.
    num_workers : int, optional
        Threads of either reader; None is one for each core.
    size : int
        Height and width of the images that come out.

    Raises
    ------
    DataError
        `open_records` does, or there are fewer images than in a batch.
    """
    source, num_workers = open_records(files, look=Look(size)), num_workers or count_processors()
    if source.train_images < batch_size:
        raise DataError(
            f"{files.train} has {source.train_images} images, fewer than a batch of {batch_size}, "
            "with which ImageRecordIter cannot work: use a smaller batch."
        )
    readers = {
        "gluon_amp": lambda: training_batches(source, batch_size, num_workers),
        "same_threads": lambda: training_batches(
            source, batch_size, record_iter_threads(num_workers)
        ),
        "image_record_iter": lambda: record_iter_batches(files, batch_size, size, num_workers),
    }
    speeds: Dict[str, List[float]] = {name: [] for name in readers}
    for number in range(rounds):
        for name in sorted(readers, reverse=number % 2 == 1):
            speeds[name].append(images_per_second(readers[name](), batches))
    return Comparison(**speeds)
