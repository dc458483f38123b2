"""Synthetic images, in memory and as records."""

import numpy as np

from gluon_amp.training.data import TrainingBatches, open_synthetic
from gluon_amp.training.data.records import RecordImages
from gluon_amp.training.data.synthetic import write_synthetic_records


def batches_of(source):
    """Return each training batch as its images and labels."""
    batches = TrainingBatches(source.train, 32).epoch(0)
    return [(images.asnumpy().tolist(), labels.asnumpy().tolist()) for images, labels in batches]


def test_synthetic_images_depend_on_the_seed_alone():
    source = open_synthetic(images=100, shape=(3, 8, 6), classes=7, seed=4)
    again = open_synthetic(images=100, shape=(3, 8, 6), classes=7, seed=4)
    other = open_synthetic(images=100, shape=(3, 8, 6), classes=7, seed=5)
    assert (source.train_images, source.val_images, source.classes) == (100, 20, 7)
    assert source.image_shape == (3, 8, 6)
    first = batches_of(source)
    assert first == batches_of(again)
    assert first != batches_of(other)
    assert {label for _, batch in first for label in batch} == set(range(7))


def test_synthetic_images_do_not_change_from_epoch_to_epoch():
    train = open_synthetic(images=10, shape=(1, 4, 4), classes=2).train
    assert np.array_equal(train[3][0].asnumpy(), train[13][0].asnumpy())
    assert not np.array_equal(train[3][0].asnumpy(), train[4][0].asnumpy())


def test_one_synthetic_image_is_also_validated():
    assert open_synthetic(images=1, shape=(1, 4, 4), classes=2).val_images == 1


def test_synthetic_records_are_seeded_jpegs(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        size = write_synthetic_records(tmp_path, name, 12, classes=3, side=256, seed=seed)
        assert 20_000 < size < 30_000
    paths = [(tmp_path / f"{name}.rec", tmp_path / f"{name}.idx") for name in "abc"]
    first, again, other = (RecordImages(*path) for path in paths)
    assert [first.read(n)[1] for n in range(12)] == [0, 1, 2] * 4
    assert all(first.read(n) == again.read(n) for n in range(12))
    assert first.read(0) != other.read(0) and first.read(0) != first.read(3)
    assert first.read(0)[0].startswith(b"\xff\xd8")
