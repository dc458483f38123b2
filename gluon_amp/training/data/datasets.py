"""Datasets whose random augmentation depends on the seed, the epoch and the image alone.

With one random generator for all, a run could be neither repeated nor resumed. Here a position
includes the epoch, and every image has a generator of its own.
"""

from typing import Any, Dict, Optional, Sequence, Tuple

import numpy as np

from gluon_amp.training.data.decode import DecodeError, cv2
from gluon_amp.training.data.imagenet_transforms import (
    Preprocessing,
    TrainingTransform,
    Transform,
    ValidationTransform,
)
from gluon_amp.training.data.source import DataError, Images, Source, UnreadableImageError


def generator_of(seed: int, epoch: int, index: int) -> np.random.Generator:
    """Return the random generator of one image in one epoch."""
    return np.random.default_rng((seed, epoch, index))


class AugmentedImages(Images):
    """Images with random augmentation if there is a seed."""

    def __init__(self, shape: Tuple[int, ...], seed: Optional[int] = None):
        self.shape, self._seed = shape, seed

    def write(self, position: int, out: np.ndarray) -> int:
        epoch, index = divmod(int(position), len(self))
        generator = None if self._seed is None else generator_of(self._seed, epoch, index)
        return self.draw(index, generator, out)

    def draw(self, index: int, generator: Optional[np.random.Generator], out: np.ndarray) -> int:
        """Write an image to `out`; return its label. Without a generator, nothing is augmented."""
        raise NotImplementedError


def enlarge(images: np.ndarray, size: int, white: int) -> np.ndarray:
    """Resize square grey images, up to the level `white`, to uint8, with bilinear interpolation.

    The weights are whole numbers, so the sums are exact and the result has the same bytes on every
    machine. The vectorised resize functions of libraries do not guarantee this.
    """
    small, unit = images.shape[-1], 2 * size  # positions and weights are multiples of 1 / unit
    centre = np.clip((2 * np.arange(size) + 1) * small - size, 0, (small - 1) * unit)
    left = np.minimum(centre // unit, small - 2)
    weights = np.zeros((size, small))
    weights[np.arange(size), left] = (left + 1) * unit - centre
    weights[np.arange(size), left + 1] = centre - left * unit
    result = np.empty((len(images), size, size), np.uint8)
    for image, out in zip(images, result):  # one by one: all of them in float64 may be gigabytes
        out[...] = np.rint(weights @ (image * 255.0) @ weights.T / (white * unit**2))
    return result


def described(size: int, mean: float, std: float) -> Dict[str, Any]:
    """Return what makes a grey image an input, as `Source.preprocessing` says it."""
    return {
        "colours": "grey from 0 to 1, three times",
        "resize": f"to {size} x {size}",
        "interpolation": "bilinear, without antialiasing",
        "mean": [mean] * 3,
        "std": [std] * 3,
    }


class DecodedImages(AugmentedImages):
    """Image files, decoded and transformed; without a seed, the transform has no augmentation.

    Threads call ``encoded.read(index)`` at once for the bytes of an image and its label.
    ``encoded.name(index)`` is a path, or a record and its file, for messages.
    """

    def __init__(
        self,
        encoded: Any,
        transform: Transform,
        classes: int,
        seed: Optional[int] = None,
    ):
        super().__init__(transform.shape, seed)
        self._encoded = encoded
        self._transform = transform
        self._classes = classes

    def __len__(self) -> int:
        return len(self._encoded)

    def draw(self, index: int, generator: Optional[np.random.Generator], out: np.ndarray) -> int:
        try:
            encoded, label = self._encoded.read(index)
            self._transform(encoded, generator, out)
        except (DecodeError, OSError, cv2.error, MemoryError):  # MemoryError: an absurd size
            raise UnreadableImageError(self._encoded.name(index)) from None
        if not 0 <= label < self._classes:
            raise DataError(
                f"{self._encoded.name(index)} has the label {label}, but the {self._classes} "
                f"classes have the labels 0 to {self._classes - 1}: pack the data again."
            )
        return label


def imagenet_source(
    train: Any,
    val: Any,
    classes: int,
    class_names: Sequence[str],
    seed: int,
    preprocessing: Preprocessing,
) -> Source:
    """Return encoded images as a `Source`, with the transforms of ImageNet."""
    return Source(
        name="imagenet",
        train=DecodedImages(train, TrainingTransform(preprocessing), classes, seed),
        val=DecodedImages(val, ValidationTransform(preprocessing), classes),
        classes=classes,
        image_shape=(3, preprocessing.size, preprocessing.size),
        class_names=tuple(class_names),
        preprocessing=preprocessing.described(),
    )
