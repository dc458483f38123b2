"""Synthetic images, in memory and as records."""

import numpy as np

from gluon_amp.training.data import TrainingBatches, open_synthetic
from gluon_amp.training.data.records import RecordImages
from gluon_amp.training.data.synthetic import write_synthetic_records


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


def test_synthetic_records_are_seeded_jpegs(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        size = write_synthetic_records(tmp_path, name, 6, classes=3, side=256, seed=seed)
        assert 20_000 < size < 30_000
    paths = [(tmp_path / f"{name}.rec", tmp_path / f"{name}.idx") for name in "abc"]
    first, again, other = (RecordImages(*path) for path in paths)
    assert [first.read(n)[1] for n in range(6)] == [0, 1, 2] * 2
    assert all(first.read(n) == again.read(n) for n in range(6))
    assert first.read(0) != other.read(0) and first.read(0) != first.read(3)
