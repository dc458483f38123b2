"""Rendered shapes: as many images as wanted, so that small differences of accuracy are visible.

Polygons and stars at random places, in random sizes, turned by random angles, under noise.
"""

from typing import Dict, Tuple

import numpy as np

from gluon_amp.training.data.source import Images, Source

SIZE = 12
# Corners, and the distance of the notches between them from the centre, where the corners have 1.
# The edges of a polygon are nearest to the centre at cos(pi / corners).
SHAPES: Dict[str, Tuple[int, float]] = {
    **{f"polygon of {n}": (n, float(np.cos(np.pi / n))) for n in (3, 4, 5, 6, 8)},
    **{f"star of {n}": (n, 0.4) for n in (3, 4, 5, 6, 8)},
}
RADIUS = (0.3, 0.47)  # of the corners, as shares of the image
NOISE = 0.2  # standard deviation, where shapes are 1 and the background is 0
BLACK, GREYS = 80, 80  # the grey level of the background, and how far the shapes are above it
TRAIN_IMAGES, VAL_IMAGES = 60_000, 40_000
VAL_SEED = 2**40  # no seed of a run
BLOCK = 1000  # images that are rendered at once


def render(labels: np.ndarray, generator: np.random.Generator, size: int = SIZE) -> np.ndarray:
    """Return shapes without noise: float32 from 0 to 1, (N, size, size), with smooth edges."""
    of_label = np.array(list(SHAPES.values()), np.float32)[labels]
    corners, notch = of_label.T[..., np.newaxis, np.newaxis]
    share, angle, top, left = generator.random((4, len(labels), 1, 1), np.float32)
    radius = size * (RADIUS[0] + (RADIUS[1] - RADIUS[0]) * share)
    free = size - 1 - 2 * radius
    pixels = np.arange(size, dtype=np.float32)
    y, x = pixels[:, np.newaxis] - (radius + free * top), pixels - (radius + free * left)
    sector = np.float32(np.pi) / corners
    turned = np.arctan2(y, x) + np.float32(2 * np.pi) * angle
    from_notch = np.abs(np.mod(turned, 2 * sector) - sector)
    # the line from a corner to a notch, in polar coordinates
    line = notch * np.sin(from_notch) + np.sin(sector - from_notch)
    return np.clip(radius * notch * np.sin(sector) / line - np.hypot(y, x) + 0.5, 0, 1)


class ShapeImages(Images):
    """Grey shapes under noise, as RGB images around 0, which depend on the seed alone."""

    def __init__(self, images: int, seed: int, size: int = SIZE):
        self.shape = (3, size, size)
        generator = np.random.default_rng(seed)
        self._labels = generator.integers(len(SHAPES), size=images)
        self._pixels = np.empty((images, size, size), np.uint8)
        for first in range(0, images, BLOCK):
            shapes = render(self._labels[first : first + BLOCK], generator, size)
            shapes += NOISE * generator.standard_normal(shapes.shape, np.float32)
            levels = np.clip(BLACK + GREYS * shapes, 0, 255)
            self._pixels[first : first + BLOCK] = np.rint(levels)

    def __len__(self) -> int:
        return len(self._labels)

    def write(self, position: int, out: np.ndarray) -> int:
        index = position % len(self)
        out[...] = (self._pixels[index].astype(np.float32) - BLACK) / GREYS
        return int(self._labels[index])


def open_shapes(seed: int = 0, size: int = SIZE) -> Source:
    """Return shapes as a `Source`. The validation images do not depend on the seed."""
    return Source(
        name="shapes",
        train=ShapeImages(TRAIN_IMAGES, seed, size),
        val=ShapeImages(VAL_IMAGES, VAL_SEED, size),
        classes=len(SHAPES),
        image_shape=(3, size, size),
        class_names=tuple(SHAPES),
    )
