"""GluonCV's ImageNet transforms, with which the published accuracies were trained.

Source: gluon-cv ``scripts/classification/imagenet/train_imagenet.py``, ``get_data_loader``, and
the transforms of MXNet that it uses. Brightness, contrast, saturation, lighting and normalisation
are linear in the colour of a pixel. So they are combined into one 3×4 matrix, which is applied
once, in float32, as in NVIDIA DALI's ``ColorTwist``. MXNet rounds and clips to 0..255 after each of
them. MXNet's saturation moves colours towards 0.114 × blue, because ``image_random-inl.h`` lacks a
``+=``; here they move towards grey.
"""

import math
import threading
from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

import numpy as np

from gluon_amp.training.data.decode import Box, Size, cv2, decode, decode_box, require_opencv

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
JITTER = 0.4
LIGHTING = 0.1
INPUT_SIZE = 224
CROP_RATIO = 0.875  # for validation, the short side is resized to 224 / 0.875 = 256
AREA = (0.08, 1.0)
ASPECT = (3 / 4, 4 / 3)
ATTEMPTS = 10

# In red, green, blue. Sources: ITU-R BT.601; the principal components of ImageNet's colours of
# Krizhevsky et al. (2012), as in MXNet's RandomLighting.
GREY = np.array([0.299, 0.587, 0.114])
LIGHT_VALUES = np.array([55.46, 4.794, 1.148])
LIGHT_VECTORS = np.array(
    [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]]
)
# Columns of a matrix product of at most 2**18 multiplications. OpenBLAS computes such a product in
# the calling thread (interface/gemm.c), and its operands fit into the cache.
CHUNK = 2**18 // (3 * 4) // 64 * 64


def random_box(size: Size, generator: np.random.Generator, min_area: float = AREA[0]) -> Box:
    """Draw a part of an image; if ten draws do not fit, return the largest central part."""
    height, width = size
    for area, aspect, down, across in generator.random((ATTEMPTS, 4)).tolist():
        area = height * width * (min_area + area * (AREA[1] - min_area))
        aspect = math.exp(math.log(ASPECT[0]) + aspect * math.log(ASPECT[1] / ASPECT[0]))
        across_, down_ = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < across_ <= width and 0 < down_ <= height:
            top, left = int(down * (height - down_ + 1)), int(across * (width - across_ + 1))
            return top, left, down_, across_
    wide = min(width, max(1, round(height * ASPECT[1])))
    high = min(height, max(1, round(width / ASPECT[0])))
    return (height - high) // 2, (width - wide) // 2, high, wide


@dataclass(frozen=True)
class Preprocessing:
    """Size and normalisation of the images that a network expects."""

    size: int = INPUT_SIZE  # height and width
    # Validation resizes the short side to size / crop_ratio before the crop.
    crop_ratio: float = CROP_RATIO
    mean: Tuple[float, float, float] = MEAN  # of red, green and blue, for colours from 0 to 1
    std: Tuple[float, float, float] = STD
    # The smallest share of an image that a random crop has in training
    min_area: float = AREA[0]

    @property
    def short_side(self) -> int:
        """To which validation resizes the short side of an image."""
        return math.ceil(self.size / self.crop_ratio)

    def described(self) -> Dict[str, Any]:
        """Return what validation does, as `Source.preprocessing` says it."""
        return {
            "colours": "RGB from 0 to 1",
            "resize": f"short side to {self.short_side}",
            "interpolation": "bilinear of OpenCV (INTER_LINEAR), without antialiasing",
            "crop": f"the middle {self.size} x {self.size}",
            "mean": list(self.mean),
            "std": list(self.std),
        }


GLUONCV = Preprocessing()


def normalisation(preprocessing: Preprocessing, colour: Optional[np.ndarray] = None) -> np.ndarray:
    """Return the 3×4 matrix of `colour`, if given, and the normalisation, from blue, green, red."""
    matrix = np.eye(3, 4) if colour is None else colour.copy()
    matrix /= 255
    matrix[:, 3] -= preprocessing.mean
    matrix /= np.array(preprocessing.std)[:, None]
    return matrix[:, [2, 1, 0, 3]].astype(np.float32)


def random_colour(mean: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Draw brightness, contrast and saturation in random order, then lighting: a 3×4 matrix."""
    matrix = np.eye(3, 4)
    factors = generator.uniform(1 - JITTER, 1 + JITTER, 3)
    for kind in generator.permutation(3):
        factor = factors[kind]
        grey = GREY @ matrix  # 1×4: the grey of every pixel
        matrix *= factor
        if kind == 1:
            matrix[:, 3] += (1 - factor) * (grey[:3] @ mean + grey[3])
        elif kind == 2:
            matrix += (1 - factor) * grey
    matrix[:, 3] += LIGHT_VECTORS @ (generator.normal(0, LIGHTING, 3) * LIGHT_VALUES)
    return matrix


class _Scratch(threading.local):
    """Arrays of each thread for one image: allocating them costs more time than the arithmetic."""

    size = 0

    def resize(self, size: int) -> None:
        self.size = size
        self.planes = np.empty((2, 3, size, size), np.uint8)
        self.colours = np.ones((4, size * size), np.float32)  # the last row stays 1


class Transform:
    """From the bytes of an image to the input of a network."""

    def __init__(self, preprocessing: Preprocessing):
        require_opencv()
        self._preprocessing = preprocessing
        self._size = preprocessing.size
        self._scratch = _Scratch()
        self.shape = (3, self._size, self._size)  # of the result

    def __call__(self, encoded: bytes, generator: Any, out: np.ndarray) -> None:
        """Write the image to `out`, float32 (3, size, size); a generator draws augmentation."""
        raise NotImplementedError

    def split(self, image: np.ndarray, mirrored: bool) -> np.ndarray:
        """Return the colours of a (size, size, 3) image as uint8 planes, in scratch memory."""
        if self._scratch.size != self._size:
            self._scratch.resize(self._size)
        planes, flipped = self._scratch.planes
        cv2.split(image, list(planes))
        if not mirrored:
            return planes
        for plane, target in zip(planes, flipped):
            cv2.flip(plane, 1, target)
        return flipped

    def normalise(self, planes: np.ndarray, matrix: np.ndarray, out: np.ndarray) -> None:
        """Write the product of a 3×4 matrix and the planes to `out`, float32 (3, size, size)."""
        colours, flat = self._scratch.colours, out.reshape(3, -1)
        np.copyto(colours[:3], planes.reshape(3, -1))
        for start in range(0, flat.shape[1], CHUNK):
            columns = slice(start, start + CHUNK)
            np.matmul(matrix, colours[:, columns], out=flat[:, columns])


class TrainingTransform(Transform):
    """Random resized crop, flip, colour jitter, lighting, normalisation."""

    def __call__(self, encoded: bytes, generator: np.random.Generator, out: np.ndarray) -> None:
        min_area = self._preprocessing.min_area
        part = decode_box(encoded, lambda size: random_box(size, generator, min_area), self._size)
        image = cv2.resize(part, (self._size, self._size), interpolation=cv2.INTER_LINEAR)
        planes = self.split(image, mirrored=generator.random() < 0.5)
        mean = np.array([cv2.mean(plane)[0] for plane in planes[::-1]])
        colour = random_colour(mean, generator)
        self.normalise(planes, normalisation(self._preprocessing, colour), out)


class ValidationTransform(Transform):
    """Resize the short side, crop the centre, normalise; images are decoded at full size."""

    def __call__(self, encoded: bytes, generator: Any, out: np.ndarray) -> None:
        image = decode(encoded)
        height, width = image.shape[:2]
        short = self._preprocessing.short_side
        if min(height, width) != short:
            scale = short / min(height, width)
            height, width = max(short, int(height * scale)), max(short, int(width * scale))
            image = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
        top, left = (height - self._size) // 2, (width - self._size) // 2
        centre = image[top : top + self._size, left : left + self._size]
        planes = self.split(centre, mirrored=False)
        self.normalise(planes, normalisation(self._preprocessing), out)
