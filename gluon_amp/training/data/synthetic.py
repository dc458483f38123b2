"""Synthetic images in memory, to measure training alone."""

from typing import Tuple

import numpy as np

from gluon_amp.training.data.source import Source, StoredImages

DISTINCT = 64  # different images; the others repeat them, so that they need no more memory


def open_synthetic(
    images: int = 1280,
    shape: Tuple[int, int, int] = (3, 224, 224),
    classes: int = 1000,
    seed: int = 0,
) -> Source:
    """Return random images as a `Source`, to measure speed; a fifth as many are for validation."""

    def part(count: int, seed: int) -> StoredImages:
        generator = np.random.default_rng(seed)
        pixels = generator.standard_normal((min(count, DISTINCT), *shape), dtype=np.float32)
        return StoredImages(pixels, generator.integers(classes, size=count))

    train, val = part(images, seed), part(max(1, images // 5), seed + 1)
    return Source("synthetic", train, val, classes, shape)
