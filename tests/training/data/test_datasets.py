"""Augmentation and order, which depend on the seed and the epoch alone."""

import numpy as np
import pytest

from gluon_amp.training.data import Preprocessing, TrainingBatches, open_folders
from gluon_amp.training.data.datasets import Augmented
from tests.images import write_folders

from mxnet.gluon.data import SimpleDataset


def noisy(length=10, seed=0):
    images = SimpleDataset([(np.float32(number), number) for number in range(length)])
    return Augmented(images, lambda image, generator: image + generator.random(), seed)


def epoch(batches, number):
    """Return the labels and the images in their order."""
    images, labels = zip(*batches.epoch(number))
    return (
        np.concatenate([part.asnumpy() for part in labels]).tolist(),
        np.concatenate([part.asnumpy() for part in images]).tolist(),
    )


@pytest.mark.parametrize("batch_size, expected", [(4, [4, 4, 2]), (5, [5, 5]), (20, [10])])
def test_an_epoch_holds_every_image_once(batch_size, expected):
    batches = TrainingBatches(noisy(), batch_size)
    assert len(batches) == len(expected)
    for number in range(3):
        assert [len(labels) for _, labels in batches.epoch(number)] == expected
        assert sorted(epoch(batches, number)[0]) == list(range(10))


def test_order_and_augmentation_depend_on_seed_and_epoch_alone():
    batches = TrainingBatches(noisy(), 4, seed=7)
    third = epoch(batches, 3)
    assert epoch(batches, 4) != third
    assert epoch(TrainingBatches(noisy(), 4, seed=7), 3) == third
    assert epoch(TrainingBatches(noisy(), 4, seed=8), 3) != third
    assert epoch(TrainingBatches(noisy(seed=1), 4, seed=7), 3)[1] != third[1]


def test_imagenet_augmentation_can_be_repeated(tmp_path):
    for part in ("train", "val"):
        write_folders(tmp_path, part, ["a", "b"])
    options = {"seed": 5, "preprocessing": Preprocessing(24)}
    first, again = (open_folders(tmp_path, **options).train for _ in range(2))
    later = again[2 * len(again) + 1][0].asnumpy()  # epoch 2, image 1
    assert np.array_equal(first[1][0].asnumpy(), again[1][0].asnumpy())
    assert not np.array_equal(later, first[1][0].asnumpy())
