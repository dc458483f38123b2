"""Laws of the loader: order, resuming, shards, exact counts, unreadable images."""

import gc
import itertools
import threading

import numpy as np
import pytest

from gluon_amp.base.hardware import count_processors
from gluon_amp.training.data import (
    DataError,
    Preprocessing,
    TrainingBatches,
    ValidationBatches,
    open_records,
)
from gluon_amp.training.data.datasets import generator_of
from gluon_amp.training.data.source import Images, UnreadableImageError
from tests.images import record_files, write_records

import mxnet as mx


class Numbers(Images):
    """Image n of epoch e is (e, n), its label n; those in `bad` cannot be read."""

    shape = (2,)

    def __init__(self, length, bad=()):
        self._length = length
        self.bad = bad

    def __len__(self):
        return self._length

    def write(self, position, out):
        epoch, index = divmod(position, self._length)
        if index in self.bad:
            raise UnreadableImageError(f"image {index}")
        out[:] = epoch, index
        return index


def data(batches):
    """Return each batch as its images and labels."""
    return [(images.asnumpy().tolist(), labels.asnumpy().tolist()) for images, labels in batches]


def flat(batches):
    """Return the labels of batches that are lists."""
    return [label for _, labels in batches for label in labels]


def labels(batches):
    return flat(data(batches))


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Ten real images, packed."""
    folder = tmp_path_factory.mktemp("packed")
    for part in ("train", "val"):
        write_records(folder, part, range(10))
    return open_records(record_files(folder), seed=5, preprocessing=Preprocessing(24))


def test_an_epoch_is_every_image_once_in_an_order_of_its_own():
    batches = TrainingBatches(Numbers(10), 4, seed=3)
    for array, dtype, shape in zip(next(batches.epoch(0)), (np.float32, np.int32), ((4, 2), (4,))):
        assert (array.dtype, array.shape, array.context) == (dtype, shape, mx.cpu())
    epochs = [data(batches.epoch(number)) for number in (0, 1)]
    for number, epoch in enumerate(epochs):
        assert [len(numbers) for _, numbers in epoch] == [4, 4, 2]
        for images, numbers in epoch:
            assert images == [[number, index] for index in numbers]
        assert sorted(flat(epoch)) == list(range(10))
    orders = [
        labels(TrainingBatches(Numbers(10), 10, seed).epoch(number))
        for seed in (3, 4)
        for number in (0, 1)
    ]
    assert len({tuple(order) for order in orders}) == 4
    assert orders[0] == flat(epochs[0])
    assert data(batches.epoch(1)) == epochs[1]  # whatever was read before


@pytest.mark.parametrize("workers", [2, None])
def test_the_number_of_workers_does_not_change_the_data(packed, workers):
    """Decoded and augmented images, bit for bit."""
    alone = TrainingBatches(packed.train, 4, seed=5, num_workers=0)
    threaded = TrainingBatches(packed.train, 4, seed=5, num_workers=workers)
    assert threaded.num_workers == (count_processors() if workers is None else workers)
    assert data(threaded.epoch(3)) == data(alone.epoch(3))
    alone = ValidationBatches(packed.val, 4, num_workers=0)
    assert data(ValidationBatches(packed.val, 4, num_workers=workers)) == data(alone)


@pytest.mark.parametrize("start", [1, 3])
def test_starting_later_skips_batches(packed, start):
    batches = TrainingBatches(packed.train, 4, seed=1)
    assert data(batches.epoch(2, start)) == data(batches.epoch(2))[start:]


def test_epochs_do_not_disturb_each_other(packed):
    batches = TrainingBatches(packed.train, 4)
    whole = [data(batches.epoch(number)) for number in (0, 1)]
    left = batches.epoch(0)
    next(left)
    left.close()
    first, second = zip(*zip(batches.epoch(0), batches.epoch(1)))  # all kept, none overwritten
    assert [data(first), data(second)] == whole


def test_the_augmentation_of_an_image_depends_on_seed_epoch_and_index():
    keys = [(7, 3, 0), (8, 3, 0), (7, 4, 0), (7, 3, 1), (7, 3, 0)]
    drawn = [generator_of(*key).random() for key in keys]
    assert len(set(drawn)) == 4 and drawn[0] == drawn[4]


@pytest.mark.parametrize("parts, repeated", [(2, 0), (3, 2), (16, 6)])
def test_shards_are_equal_parts_of_an_epoch(parts, repeated):
    """Where the images cannot be divided evenly, some are repeated."""
    shards = [
        TrainingBatches(Numbers(10), 4, part_index=part, num_parts=parts) for part in range(parts)
    ]
    read = [labels(shard.epoch(0)) for shard in shards]
    assert {len(part) for part in read} == {-(-10 // parts)} == {shards[0].images}
    counts = np.bincount(list(itertools.chain(*read)), minlength=10)
    assert counts.min() == 1 and counts.sum() == 10 + repeated and counts.max() <= 2


def test_shards_together_train_on_the_batches_of_one_process():
    whole = data(TrainingBatches(Numbers(24), 8, seed=1).epoch(3))
    shards = [TrainingBatches(Numbers(24), 4, 1, part_index=n, num_parts=2) for n in (0, 1)]
    together = list(zip(*(data(shard.epoch(3)) for shard in shards)))
    assert len(whole) == len(together) == 3
    for (_, expected), ((_, first), (_, second)) in zip(whole, together):
        assert (expected[0::2], expected[1::2]) == (first, second)


@pytest.mark.parametrize("parts", [1, 3])
def test_a_validation_is_every_image_once(packed, parts):
    """ImageRecordIter with its defaults gives 12, 8, 12 ... rows at batch 4."""
    shards = [
        ValidationBatches(packed.val, 4, part_index=part, num_parts=parts) for part in range(parts)
    ]
    passes = [[labels(shard) for shard in shards] for _ in range(3)]
    assert passes[0] == passes[1] == passes[2]
    assert sorted(itertools.chain(*passes[0])) == list(range(10))
    assert [shard.images for shard in shards] == [len(read) for read in passes[0]]
    assert [len(shard) for shard in shards] == [-(-len(read) // 4) for read in passes[0]]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_image_is_replaced_by_the_next_good_one(workers):
    dataset = Numbers(6)
    batches = TrainingBatches(dataset, 4, num_workers=workers)
    assert batches.unreadable == []
    order = labels(batches.epoch(2))
    dataset.bad = (1, 2, 5)
    assert labels(batches.epoch(2)) == [{1: 3, 2: 3, 5: 0}.get(index, index) for index in order]
    assert batches.unreadable == ["image 1", "image 2", "image 5"]
    dataset.bad = ()
    assert labels(batches.epoch(2)) == order and batches.unreadable == []


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_validation_image_is_left_out(workers):
    batches = ValidationBatches(Numbers(7, bad=(1, 4, 5, 6)), 2, workers)
    assert data(batches) == [([[0, 0]], [0]), ([[0, 2], [0, 3]], [2, 3])]
    assert batches.unreadable == ["image 1", "image 4", "image 5", "image 6"]
    assert [labels.dtype for _, labels in batches] == [np.int32] * 2


def test_no_readable_image_at_all_is_an_error():
    dataset = Numbers(3, bad=range(3))
    for kind, batches in (
        ("training", TrainingBatches(dataset, 2).epoch(0)),
        ("validation", ValidationBatches(dataset, 2)),
    ):
        with pytest.raises(DataError, match=f"none of the 3 {kind} images can be read, for exam"):
            data(batches)
    assert data(ValidationBatches(Numbers(1), 4, part_index=1, num_parts=2)) == []


def test_arrays_live_as_long_as_threads_write_into_them():
    """A caller that stops early drops the batches that are being loaded."""
    writing, go_on = threading.Event(), threading.Event()

    class Slow(Numbers):
        shape = (3, 5, 7)

        def write(self, position, out):
            if position >= 2:
                writing.set()
                assert go_on.wait(60)
            out[:] = position
            return position

    loaded = iter(ValidationBatches(Slow(8), batch_size=1, num_workers=2))
    next(loaded)
    assert writing.wait(60)
    loaded.close()
    gc.collect()
    alive = [
        x for x in gc.get_objects() if isinstance(x, mx.nd.NDArray) and x.shape == (1, 3, 5, 7)
    ]
    go_on.set()
    assert len(alive) >= 1
