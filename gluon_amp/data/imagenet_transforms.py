"""GluonCV's ImageNet transforms: what the published accuracies were trained with.

Source: gluon-cv ``scripts/classification/imagenet/train_imagenet.py``, ``get_data_loader``.
"""

import random
from typing import Any, Callable

import numpy as np

import mxnet as mx
from mxnet.gluon.data.vision import transforms

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
JITTER = 0.4
LIGHTING = 0.1
INPUT_SIZE = 224
CROP_RATIO = 0.875  # validation resizes the short side to 224 / 0.875 = 256


def training_transform(size: int = INPUT_SIZE) -> Callable[[Any, np.random.Generator], Any]:
    """Return ``augment(image, generator)``: random resized crop, flip, jitter, lighting, normalise.

    The image is uint8 (H, W, 3); the result float32 (3, size, size).
    """
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(size),
            transforms.RandomFlipLeftRight(),
            transforms.RandomColorJitter(brightness=JITTER, contrast=JITTER, saturation=JITTER),
            transforms.RandomLighting(LIGHTING),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )

    def augment(image: Any, generator: np.random.Generator) -> Any:
        # These transforms draw from the process-wide generators of Python and MXNet.
        seed = int(generator.integers(2**31))
        random.seed(seed)
        mx.random.seed(seed, ctx=mx.cpu())
        return transform(image)

    return augment


def validation_transform(size: int = INPUT_SIZE) -> Callable[[Any], Any]:
    """Return ``transform(image)``: resize the short side, centre crop, normalise."""
    return transforms.Compose(
        [
            transforms.Resize(int(np.ceil(size / CROP_RATIO)), keep_ratio=True),
            transforms.CenterCrop(size),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
