"""Images made up in memory, to measure training without a disk or a decoder."""

from typing import Optional, Tuple

import numpy as np

from gluon_amp.data.source import Images, Source

DISTINCT = 64  # images made; the others repeat them, so that memory does not grow with their number


class SyntheticImages(Images):
    """Standard normal images with random labels, made once and the same for the same seed.

    Parameters
    ----------
    images : int
        How many there are.
    shape : tuple of int
        (channels, height, width).
    classes : int
        Labels are 0 ... classes - 1.
    seed : int
        Decides images and labels.
    """

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
    val_images: Optional[int] = None,
) -> Source:
    """Return a `Source` of synthetic images: `val_images` validate, by default a fifth of `images`.

    It measures speed; there is nothing in it to learn.
    """
    val_images = max(1, images // 5) if val_images is None else val_images
    return Source(
        name="synthetic",
        train=SyntheticImages(images, shape, classes, seed),
        val=SyntheticImages(val_images, shape, classes, seed + 1),
        classes=classes,
        image_shape=tuple(shape),
    )
