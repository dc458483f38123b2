"""A teacher network's labels: as many samples as wanted, so that small differences are visible.

The inputs are standard normal, in the shape of an image. A network with one hidden layer, the same
for all seeds, labels them.
"""

import numpy as np

from gluon_amp.training.data.source import Source, StoredImages

SIZE = 8  # height and width of the inputs, which have one channel
HIDDEN, CLASSES = 32, 10
GAIN = 1.0  # of the hidden layer: a higher one makes the task harder
TRAIN_IMAGES, VAL_IMAGES = 100_000, 50_000
TEACHER_SEED, VAL_SEED = 0, 2**40  # the second is no seed of a run


def label(inputs: np.ndarray) -> np.ndarray:
    """Return the teacher's classes of inputs (N, features), int64 (N,)."""
    # RandomState and not default_rng: numpy guarantees that its stream never changes
    generator = np.random.RandomState(TEACHER_SEED)
    hidden = GAIN * generator.standard_normal((inputs.shape[1], HIDDEN)) / inputs.shape[1] ** 0.5
    output = generator.standard_normal((HIDDEN, CLASSES))
    return np.argmax(np.tanh(inputs @ hidden) @ output, axis=1)


def taught(images: int, seed: int, size: int = SIZE) -> StoredImages:
    """Return standard normal inputs with the teacher's labels, which depend on the seed alone."""
    shape = (images, 1, size, size)
    inputs = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return StoredImages(inputs, label(inputs.reshape(images, -1)))


def open_taught(seed: int = 0, size: int = SIZE) -> Source:
    """Return the task as a `Source`. The validation set does not depend on the seed."""
    train, val = taught(TRAIN_IMAGES, seed, size), taught(VAL_IMAGES, VAL_SEED, size)
    return Source("teacher", train, val, CLASSES, (1, size, size))
