"""Synthetic images in memory."""

import numpy as np

from gluon_amp.training.data import TrainingBatches, open_synthetic


def test_synthetic_images_depend_on_the_seed_alone():
    def images(seed, epoch=0):
        train = open_synthetic(images=10, shape=(3, 8, 6), classes=2, seed=seed).train
        (batch,) = TrainingBatches(train, 10, num_workers=0).epoch(epoch)
        return sorted(image.tobytes() for image in batch[0].asnumpy())

    assert images(4) == images(4) == images(4, epoch=1) != images(5)
    assert len(set(images(4))) == 10
    source = open_synthetic(images=100, shape=(3, 8, 6), classes=7)
    assert (source.train_images, source.val_images, source.classes) == (100, 20, 7)
    assert source.image_shape == source.train[0][0].shape == (3, 8, 6)
    assert {source.train[n][1] for n in range(100)} == set(range(7))
    assert open_synthetic(images=1, shape=(1, 4, 4), classes=2).val_images == 1
    assert not np.array_equal(source.train[0][0].asnumpy(), source.val[0][0].asnumpy())
