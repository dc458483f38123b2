"""Scikit-learn's handwritten digits: 1,797 real images without a download.

They have 8×8 pixels in 17 grey levels: the test part of the UCI data set "Optical Recognition of
Handwritten Digits" (Alpaydin and Kaynak, 1998).
"""

from typing import Optional, Sequence, Tuple

import numpy as np

from gluon_amp.base.messages import from_extra
from gluon_amp.training.data.datasets import AugmentedImages, described, enlarge
from gluon_amp.training.data.source import Source

SIZE = 32
WHITE = 16  # the highest of the 17 grey levels
CLASSES = 10
SPLIT_SEED = 0
SHARE = 5  # one image in five is for validation
SHIFT = 16  # images are shifted by up to size / SHIFT in each direction: 2 of 32 pixels
MEAN, STD = 0.305, 0.324  # of the training pixels, divided by 255


def split(labels: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Return the indices for training and for validation, the same share of each class."""
    # RandomState and not default_rng: numpy guarantees that its stream never changes
    shuffled = np.random.RandomState(SPLIT_SEED).permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    for_validation = np.arange(len(labels)) % SHARE == 0
    return by_class[~for_validation], by_class[for_validation]


def load_digits(
    size: int = SIZE,
) -> Tuple[Tuple[np.ndarray, np.ndarray], Tuple[np.ndarray, np.ndarray]]:
    """Return (images, labels) for training and for validation: grey uint8, and int32 0..9."""
    with from_extra("data", "the digits come with scikit-learn, which is not installed"):
        from sklearn.datasets import load_digits as load
    digits = load()
    images, labels = enlarge(digits.images, size, WHITE), digits.target.astype(np.int32)
    train, val = split(labels)
    return (images[train], labels[train]), (images[val], labels[val])


def normalise(image: np.ndarray) -> np.ndarray:
    """Convert a grey uint8 image (H, W) to a normalised float32 RGB image (3, H, W)."""
    grey = (image.astype(np.float32) / 255 - np.float32(MEAN)) / np.float32(STD)
    return np.broadcast_to(grey, (3, *grey.shape))


def shift(image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Shift a grey image by up to a sixteenth, fill with background, and normalise it."""
    height, width = image.shape
    most = height // SHIFT
    top, left = generator.integers(0, 2 * most + 1, size=2)
    return normalise(np.pad(image, most)[top : top + height, left : left + width])


class DigitImages(AugmentedImages):
    """Grey images as normalised RGB images, shifted at random if there is a seed."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, seed: Optional[int] = None):
        super().__init__((3, *images.shape[1:]), seed)
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return len(self._labels)

    def draw(self, index: int, generator: Optional[np.random.Generator], out: np.ndarray) -> int:
        image = self._images[index]
        out[...] = normalise(image) if generator is None else shift(image, generator)
        return int(self._labels[index])


def _only(
    keep: Sequence[int], images: np.ndarray, labels: np.ndarray
) -> Tuple[np.ndarray, np.ndarray]:
    kept = np.isin(labels, keep)
    return images[kept], np.searchsorted(keep, labels[kept]).astype(np.int32)


def open_digits(seed: int = 0, keep: Sequence[int] = range(CLASSES), size: int = SIZE) -> Source:
    """Return the digits to `keep`, in ascending order. The split does not depend on the seed."""
    train, val = (_only(keep, *part) for part in load_digits(size))
    return Source(
        name="digits",
        train=DigitImages(*train, seed),
        val=DigitImages(*val),
        classes=len(keep),
        image_shape=(3, size, size),
        class_names=tuple(map(str, keep)),
        preprocessing=described(size, MEAN, STD),
    )
