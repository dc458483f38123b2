"""Synthetic images: in memory, to measure training alone; as records, to measure their reading."""

from pathlib import Path
from typing import Tuple

import numpy as np

from gluon_amp.training.data.decode import cv2, require_opencv
from gluon_amp.training.data.source import Images, Source

from mxnet import recordio

DISTINCT = 64  # different images; the others repeat them, so that they need no more memory


class SyntheticImages(Images):
    """Standard normal images with random labels, which depend on the seed alone."""

    def __init__(self, images: int, shape: Tuple[int, ...], classes: int, seed: int = 0):
        self.shape = tuple(shape)
        generator = np.random.default_rng(seed)
        count = min(images, DISTINCT)
        self._pixels = generator.standard_normal((count, *shape), dtype=np.float32)
        self._labels = generator.integers(classes, size=images)

    def __len__(self) -> int:
        return len(self._labels)

    def write(self, position: int, out: np.ndarray) -> int:
        index = position % len(self)
        out[...] = self._pixels[index % len(self._pixels)]
        return int(self._labels[index])


def open_synthetic(
    images: int = 1280,
    shape: Tuple[int, int, int] = (3, 224, 224),
    classes: int = 1000,
    seed: int = 0,
) -> Source:
    """Return random images as a `Source`, to measure speed; a fifth as many are for validation."""
    return Source(
        name="synthetic",
        train=SyntheticImages(images, shape, classes, seed),
        val=SyntheticImages(max(1, images // 5), shape, classes, seed + 1),
        classes=classes,
        image_shape=tuple(shape),
    )


def write_synthetic_records(
    folder: Path, part: str, images: int, classes: int = 10, side: int = 256, seed: int = 0
) -> float:
    """Write records of JPEGs of smooth colours with a little noise; return their mean bytes."""
    require_opencv()
    stem = folder / part
    records = recordio.MXIndexedRecordIO(f"{stem}.idx", f"{stem}.rec", "w")
    total = 0
    for number in range(images):
        generator = np.random.default_rng((seed, number))
        colours = generator.normal(128, 50, (16, 16, 3))
        image = cv2.resize(colours, (side, side), interpolation=cv2.INTER_CUBIC)
        image += generator.normal(0, 3, (side, side, 1))
        pixels = np.clip(image, 0, 255).astype(np.uint8)
        encoded = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes()
        header = recordio.IRHeader(0, float(number % classes), number, 0)
        records.write_idx(number, recordio.pack(header, encoded))
        total += len(encoded)
    records.close()
    return total / images
