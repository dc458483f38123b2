"""Fashion-MNIST: 60,000 training and 10,000 validation images of articles of clothing.

Grey, 28×28 pixels (Xiao, Rasul and Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking
Machine Learning Algorithms", 2017; MIT licence). Debian packages its four files.
"""

from pathlib import Path
from typing import Optional, Tuple

import numpy as np

from gluon_amp.training.data.datasets import AugmentedImages, described, enlarge
from gluon_amp.training.data.idx import read_idx
from gluon_amp.training.data.source import DataError, Source

PACKAGE = "dataset-fashion-mnist"
FOLDER = Path("/usr/share/datasets/fashion-mnist")  # where Debian's package puts the files
PARTS = ("train", "t10k")
SIZE = 28
SHIFT = 2  # by default, how far images are shifted in each direction, with background at the edge
CLASSES = tuple(
    "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot".split(",")
)
MEAN, STD = 0.286, 0.353  # of the training pixels, divided by 255
NORMALISED = ((np.arange(256) / 255 - MEAN) / STD).astype(np.float32)  # of each grey level


class FashionImages(AugmentedImages):
    """Grey images as normalised RGB images, shifted and mirrored at random if there is a seed."""

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        size: int = SIZE,
        seed: Optional[int] = None,
        shift: int = SHIFT,
    ):
        super().__init__((3, size, size), seed)
        self._padded = np.pad(images, ((0, 0), (shift, shift), (shift, shift)))
        self._labels = labels
        self._size, self._shift = size, shift

    def __len__(self) -> int:
        return len(self._labels)

    def draw(self, index: int, generator: Optional[np.random.Generator], out: np.ndarray) -> int:
        top, left, mirrored = self._shift, self._shift, False
        if generator is not None:
            places = 2 * self._shift + 1
            top, left, mirrored = generator.integers((places, places, 2)).tolist()
        image = self._padded[index, top : top + SIZE, left : left + SIZE]
        if mirrored:
            image = image[:, ::-1]
        if self._size != SIZE:
            image = enlarge(image[np.newaxis], self._size, white=255)[0]
        out[...] = NORMALISED[image]
        return int(self._labels[index])


def load_part(folder: Path, part: str) -> Tuple[np.ndarray, np.ndarray]:
    """Return the images and labels of 'train' or 't10k': uint8, (N, 28, 28) and (N,)."""
    paths = [_find(folder, f"{part}-{content}-ubyte") for content in ("images-idx3", "labels-idx1")]
    images, labels = (read_idx(path, item) for path, item in zip(paths, ((SIZE, SIZE), ())))
    if len(images) != len(labels):
        raise DataError(
            f"{paths[0]} has {len(images)} images, but {paths[1]} has {len(labels)} labels: they "
            "must be of the same data set."
        )
    if labels.max() >= len(CLASSES):
        raise DataError(
            f"{paths[1]} has the label {labels.max()}, but the {len(CLASSES)} classes have the "
            f"labels 0 to {len(CLASSES) - 1}: get the file again."
        )
    return images, labels


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    raise DataError(
        f"{folder} has no {name} or {name}.gz: install the Debian package {PACKAGE}, or name a "
        "folder that has the four files of Fashion-MNIST."
    )


def open_fashion_mnist(
    folder: Path = FOLDER, seed: int = 0, size: int = SIZE, shift: int = SHIFT
) -> Source:
    """Return the four files in a folder, plain or compressed by gzip, as a `Source`.

    Training shifts its images by up to `shift` pixels.
    """
    train, val = (load_part(folder, part) for part in PARTS)
    return Source(
        name="fashion-mnist",
        train=FashionImages(*train, size, seed, shift),
        val=FashionImages(*val, size),
        classes=len(CLASSES),
        image_shape=(3, size, size),
        class_names=CLASSES,
        preprocessing=described(size, MEAN, STD),
    )
