"""Laws of the loader: order, resuming, shards, exact counts, unreadable images."""

import itertools
import os

import numpy as np
import pytest

from gluon_amp.base.hardware import count_processors
from gluon_amp.training.data import (
    DataError,
    Preprocessing,
    TrainingBatches,
    ValidationBatches,
    open_folders,
    open_records,
)
from gluon_amp.training.data.loader import epoch_order
from gluon_amp.training.data.source import Images, UnreadableImageError
from tests.images import record_files, write_folders, write_records

import mxnet as mx
from mxnet.gluon.data import SimpleDataset


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


def labels(batches):
    return [label for _, batch in data(batches) for label in batch]


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Ten real images, packed."""
    folder = tmp_path_factory.mktemp("packed")
    for part in ("train", "val"):
        write_records(folder, part, range(10))
    return record_files(folder)


def test_the_first_batch_of_an_epoch_is_the_start_of_its_order():
    order = epoch_order(10, 3, 2).tolist()
    first = data(TrainingBatches(Numbers(10), 4, seed=3).epoch(2))[0]
    assert first == ([[2.0, index] for index in order[:4]], order[:4])


def test_batches_are_float32_and_int32_on_the_cpu():
    images, numbers = next(TrainingBatches(Numbers(10), 4).epoch(0))
    assert images.shape == (4, 2) and images.dtype == np.float32 and images.context == mx.cpu()
    assert numbers.shape == (4,) and numbers.dtype == np.int32


@pytest.mark.parametrize("workers", [1, 2, 4, None])
def test_the_number_of_workers_does_not_change_the_data(packed, workers):
    """Decoded and augmented images, bit for bit."""
    source = open_records(packed, seed=5, preprocessing=Preprocessing(24))
    for number in (0, 3):
        alone = TrainingBatches(source.train, 4, seed=5, num_workers=0).epoch(number)
        threaded = TrainingBatches(source.train, 4, seed=5, num_workers=workers).epoch(number)
        assert data(threaded) == data(alone)
    alone = ValidationBatches(source.val, 4, num_workers=0)
    assert data(ValidationBatches(source.val, 4, num_workers=workers)) == data(alone)


@pytest.mark.parametrize("start", [0, 1, 2, 3, 4])
def test_starting_later_skips_batches(packed, start):
    source = open_records(packed, seed=1, preprocessing=Preprocessing(24))
    batches = TrainingBatches(source.train, 4, seed=1)
    assert data(batches.epoch(2, start)) == data(batches.epoch(2))[start:]


def test_an_epoch_left_early_does_not_change_the_next(packed):
    source = open_records(packed, preprocessing=Preprocessing(24))
    batches = TrainingBatches(source.train, 2)
    whole = data(TrainingBatches(source.train, 2).epoch(1))
    left = batches.epoch(0)
    next(left)
    left.close()
    assert data(batches.epoch(1)) == whole


def test_two_epochs_may_be_read_at_once():
    batches = TrainingBatches(Numbers(12), 4)
    pairs = list(zip(batches.epoch(0), batches.epoch(1)))
    first, second = zip(*pairs)
    assert data(first) == data(batches.epoch(0)) and data(second) == data(batches.epoch(1))


def test_kept_batches_are_not_overwritten():
    batches = list(TrainingBatches(Numbers(64), 4).epoch(0))
    assert labels(batches) == epoch_order(64, 0, 0).tolist()


def test_any_dataset_of_pairs_can_be_loaded():
    pairs = SimpleDataset([(mx.nd.array([n, -n]), n) for n in range(3)])
    assert data(ValidationBatches(pairs, 2)) == [([[0, 0], [1, -1]], [0, 1]), ([[2, -2]], [2])]


def test_workers_default_to_the_processors():
    assert count_processors() >= 1
    assert TrainingBatches(Numbers(1), 1).num_workers == count_processors()


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_shards_partition_an_epoch(parts):
    shards = [
        TrainingBatches(Numbers(10), 3, seed=2, part_index=part, num_parts=parts)
        for part in range(parts)
    ]
    read = [labels(shard.epoch(1)) for shard in shards]
    assert {len(part) for part in read} == {shards[0].images} == {10 // parts}
    assert sorted(itertools.chain(*read)) == list(range(10))


@pytest.mark.parametrize("parts, repeated", [(3, 2), (4, 2), (8, 6), (16, 6)])
def test_shards_are_equal_if_the_images_cannot_be_divided_evenly(parts, repeated):
    shards = [
        TrainingBatches(Numbers(10), 4, part_index=part, num_parts=parts) for part in range(parts)
    ]
    read = [labels(shard.epoch(0)) for shard in shards]
    assert {len(part) for part in read} == {-(-10 // parts)}
    assert len({len(shard) for shard in shards}) == 1
    counts = np.bincount(list(itertools.chain(*read)), minlength=10)
    assert counts.min() == 1 and counts.sum() == 10 + repeated and counts.max() == 2


def test_shards_together_train_on_the_batches_of_one_process():
    whole = data(TrainingBatches(Numbers(24), 8, seed=1).epoch(3))
    shards = [TrainingBatches(Numbers(24), 4, 1, part_index=n, num_parts=2) for n in (0, 1)]
    together = list(zip(*(data(shard.epoch(3)) for shard in shards)))
    assert len(whole) == len(together) == 3
    for (_, expected), ((_, first), (_, second)) in zip(whole, together):
        assert sorted(first + second) == sorted(expected)


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_validation_shards_partition_the_images_exactly(parts):
    read = [
        labels(ValidationBatches(Numbers(10), 4, part_index=part, num_parts=parts))
        for part in range(parts)
    ]
    assert sorted(itertools.chain(*read)) == list(range(10))


@pytest.mark.parametrize("kind", [TrainingBatches, ValidationBatches])
@pytest.mark.parametrize(
    "options, message",
    [
        ({"part_index": 2, "num_parts": 2}, "part_index is 2, expected 0 to 1"),
        ({"part_index": -1, "num_parts": 2}, "part_index is -1, expected 0 to 1"),
        ({"batch_size": 0}, "batch_size is 0, expected 1 or more"),
    ],
)
def test_an_impossible_part_or_batch_is_refused(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(Numbers(4), **{"batch_size": 2, **options})


@pytest.mark.parametrize("batch_size", [1, 3, 4, 5, 10, 64])
def test_every_pass_holds_every_image_once(packed, batch_size):
    """ImageRecordIter with its defaults gives 12, 8, 12 ... rows at batch 4."""
    source = open_records(packed, preprocessing=Preprocessing(24))
    batches = ValidationBatches(source.val, batch_size)
    passes = [data(batches) for _ in range(5)]
    assert all(again == passes[0] for again in passes)
    assert [label for _, batch in passes[0] for label in batch] == list(range(10))
    assert len(batches) == len(passes[0]) and batches.images == 10


def test_five_validations_have_identical_metrics(packed):
    source = open_records(packed, preprocessing=Preprocessing(24))
    batches = ValidationBatches(source.val, 4)
    net = mx.gluon.nn.Dense(10, in_units=3 * 24 * 24)
    net.initialize()

    def validate():
        metric = mx.metric.CompositeEvalMetric([mx.metric.Accuracy(), mx.metric.CrossEntropy()])
        for images, numbers in batches:
            metric.update([numbers], [mx.nd.softmax(net(images))])
        return metric.get(), metric.metrics[0].num_inst

    results = [validate() for _ in range(5)]
    assert results[0][1] == 10
    assert all(result == results[0] for result in results)


def test_an_unreadable_image_is_replaced_by_the_next_good_one():
    batches = TrainingBatches(Numbers(6, bad=(1, 2, 5)), 4)
    expected = [{1: 3, 2: 3, 5: 0}.get(index, index) for index in epoch_order(6, 0, 2).tolist()]
    for workers in (0, 2):
        batches = TrainingBatches(Numbers(6, bad=(1, 2, 5)), 4, num_workers=workers)
        assert labels(batches.epoch(2)) == expected
        assert batches.unreadable == ["image 1", "image 2", "image 5"]


def test_each_pass_counts_its_unreadable_images():
    dataset = Numbers(6, bad=(4,))
    batches = TrainingBatches(dataset, 4)
    assert batches.unreadable == []
    data(batches.epoch(0))
    assert batches.unreadable == ["image 4"]
    dataset.bad = ()
    data(batches.epoch(1))
    assert batches.unreadable == []


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_validation_image_is_left_out(workers):
    batches = ValidationBatches(Numbers(7, bad=(1, 4, 5, 6)), 2, workers)
    assert data(batches) == [([[0, 0]], [0]), ([[0, 2], [0, 3]], [2, 3])]
    assert batches.unreadable == ["image 1", "image 4", "image 5", "image 6"]
    assert [labels.dtype for _, labels in batches] == [np.int32] * 2


def test_no_readable_validation_image_is_an_error():
    with pytest.raises(DataError, match="none of the 2 images can be read, for example image 0"):
        data(ValidationBatches(Numbers(2, bad=(0, 1)), 4))
    assert data(ValidationBatches(Numbers(1), 4, part_index=1, num_parts=2)) == []


@pytest.mark.parametrize("part", ["train", "val"])
def test_a_fifo_is_unreadable_and_does_not_block(tmp_path, part):
    for name in ("train", "val"):
        write_folders(tmp_path, name, ["cat"], images=2)
    fifo = tmp_path / part / "cat" / "x.jpg"
    os.mkfifo(fifo)
    source = open_folders(tmp_path, preprocessing=Preprocessing(24))
    if part == "train":  # replaced by another image
        batches = TrainingBatches(source.train, 3)
        assert labels(batches.epoch(0)) == [0, 0, 0]
    else:
        batches = ValidationBatches(source.val, 3)
        assert labels(batches) == [0, 0]
    assert batches.unreadable == [str(fifo)]


@pytest.mark.parametrize("workers", [0, 2])
def test_no_readable_image_at_all_is_an_error(workers):
    batches = TrainingBatches(Numbers(3, bad=range(3)), 2, num_workers=workers)
    with pytest.raises(DataError, match="none of the 3 images can be read, for example image 0"):
        data(batches.epoch(0))


def test_a_corrupt_file_in_a_folder_is_named(tmp_path):
    for part in ("train", "val"):
        write_folders(tmp_path, part, ["cat", "dog"], images=3)
    bad = tmp_path / "train" / "dog" / "1.png"
    bad.write_bytes(bad.read_bytes()[:40])
    batches = TrainingBatches(open_folders(tmp_path, preprocessing=Preprocessing(24)).train, 4)
    assert sorted(labels(batches.epoch(0))) == [0, 0, 0, 1, 1, 1]
    assert batches.unreadable == [str(bad)]


def test_a_file_that_was_removed_is_named(tmp_path):
    for part in ("train", "val"):
        write_folders(tmp_path, part, ["cat"], images=3)
    source = open_folders(tmp_path, preprocessing=Preprocessing(24))
    (tmp_path / "val" / "cat" / "2.png").unlink()
    batches = ValidationBatches(source.val, 2)
    assert labels(batches) == [0, 0]
    assert batches.unreadable == [str(tmp_path / "val" / "cat" / "2.png")]


def test_a_corrupt_record_is_named(packed, tmp_path):
    for part in ("train", "val"):
        write_records(tmp_path, part, range(4))
    start = int((tmp_path / "val.idx").read_text().split()[5])  # of record 2
    raw = bytearray((tmp_path / "val.rec").read_bytes())
    raw[start + 32 : start + 48] = bytes(16)  # where the image begins
    (tmp_path / "val.rec").write_bytes(raw)
    source = open_records(record_files(tmp_path), preprocessing=Preprocessing(24))
    batches = ValidationBatches(source.val, 4)
    assert labels(batches) == [0, 1, 3]
    assert batches.unreadable == [f"record 2 of {tmp_path}/val.rec"]
