"""Data: the digits' fixed split, folders, record files, order and augmentation."""

import zlib

import numpy as np
import pytest

import gluon_amp  # noqa: F401
from gluon_amp.data import (
    DataError,
    Look,
    RecordFiles,
    TrainingBatches,
    open_digits,
    open_folders,
    open_records,
)
from gluon_amp.data.augment import Augmented
from gluon_amp.data.digits import enlarge, load_digits, normalise, shift
from tests.images import picture, write_folders, write_records

from mxnet.gluon.data import SimpleDataset

# --------------------------------------------------------------------------- digits


def test_digits_split_is_fixed():
    (train, train_labels), (val, val_labels) = load_digits()
    assert train.shape == (1437, 32, 32) and val.shape == (360, 32, 32)
    assert np.bincount(train_labels).tolist() == [142, 146, 141, 147, 144, 146, 145, 143, 139, 144]
    assert np.bincount(val_labels).tolist() == [36, 36, 36, 36, 37, 36, 36, 36, 35, 36]
    assert zlib.crc32(train.tobytes()) == 4287450448
    assert zlib.crc32(val.tobytes()) == 2809935326
    assert zlib.crc32(train_labels.tobytes()) == 1747987181


def test_no_digit_is_in_both_parts():
    (train, _), (val, _) = load_digits()
    seen = {image.tobytes() for image in train}
    assert len(seen) + len({image.tobytes() for image in val} - seen) == 1797


def test_enlarge_interpolates_between_pixels():
    image = np.zeros((1, 8, 8))
    image[0, 0, 0] = 16
    corner = enlarge(image)[0, :8, 0]
    assert corner.tolist() == [255, 255, 223, 159, 96, 32, 0, 0]
    assert enlarge(np.full((1, 8, 8), 16.0)).min() == 255


@pytest.mark.parametrize("size", [64, 224, 299])
def test_digits_of_any_size(size):
    images = np.zeros((2, 8, 8))
    images[0, 3:5] = 16  # two rows of eight: they are white where the result has their centres
    images[1, :, 2] = 8
    large = enlarge(images, size)
    assert large.shape == (2, size, size)
    rows = [size * 7 // 16, size * 9 // 16 - 1]
    assert large[0, rows[0] : rows[1] + 1].min() > 250 and large[0, 0].max() == 0
    assert (large[0] == large[0, :, :1]).all()  # nothing changes along a row
    # at most half of white, 127.5, which rounds to the even 128
    assert 118 < large[1].max() <= 128 and (large[1] == large[1, :1]).all()
    assert np.array_equal(large[0], large[0, ::-1])  # as the images, so their enlargements
    source = open_digits(keep=(0, 1), size=size)
    assert source.image_shape == (3, size, size) and source.train[0][0].shape == (3, size, size)


def test_digits_are_normalised():
    (train, _), _ = load_digits()
    images = np.stack([normalise(image) for image in train])
    assert images.dtype == np.float32 and images.shape == (1437, 3, 32, 32)
    assert abs(images.mean()) < 0.01 and abs(images.std() - 1) < 0.01


def test_shift_moves_by_up_to_two_pixels_and_keeps_the_rest():
    image = np.zeros((32, 32), np.uint8)
    image[16, 16] = 255
    places = {
        tuple(np.argwhere(shift(image, np.random.default_rng(seed))[0] > 0)[0])
        for seed in range(300)
    }
    assert places == {(row, column) for row in range(14, 19) for column in range(14, 19)}


def test_digits_source():
    source = open_digits()
    assert (source.train_images, source.val_images, source.classes) == (1437, 360, 10)
    image, label = source.val[0]
    assert image.shape == source.image_shape == (3, 32, 32)
    assert image.dtype == np.float32 and 0 <= label < 10


# --------------------------------------------------------------------------- order and augmentation


def noisy(length=10, seed=0):
    images = SimpleDataset([(np.float32(number), number) for number in range(length)])
    return Augmented(images, lambda image, generator: image + generator.random(), seed)


def epoch(batches, number):
    """Return the labels in the order they came, and the images."""
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
    first, again = (open_folders(tmp_path, seed=5, look=Look(24)).train for _ in range(2))
    later = again[2 * len(again) + 1][0].asnumpy()  # epoch 2, image 1; leaves generators disturbed
    assert np.array_equal(first[1][0].asnumpy(), again[1][0].asnumpy())
    assert not np.array_equal(later, first[1][0].asnumpy())


# --------------------------------------------------------------------------- folders


def test_folders(tmp_path):
    for part in ("train", "val"):
        write_folders(tmp_path, part, ["cat", "dog"], images=3)
    (tmp_path / "train" / "notes.txt").write_text("not a class")
    source = open_folders(tmp_path, look=Look(24))
    assert (source.train_images, source.val_images, source.classes) == (6, 6, 2)
    for image, label in (source.train[5], source.val[5]):
        assert image.shape == (3, 24, 24) and image.dtype == np.float32 and label == 1


def test_validation_images_are_resized_cropped_and_normalised(tmp_path):
    for part in ("train", "val"):
        write_folders(tmp_path, part, ["cat"], images=1)
    image = (
        open_folders(tmp_path, look=Look(35)).val[0][0].asnumpy()
    )  # 35 / 0.875 = 40, the file's size
    middle = picture(0)[2:37, 2:37].transpose(2, 0, 1) / 255.0
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    expected = (middle - mean[:, None, None]) / std[:, None, None]
    assert np.allclose(image, expected, atol=1e-5)


def test_a_folder_without_classes_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds no classes to train on"):
        open_folders(tmp_path)
    (tmp_path / "train" / "cat").mkdir(parents=True)
    with pytest.raises(DataError, match="holds no classes to train on"):
        open_folders(tmp_path)


def test_an_empty_class_is_refused(tmp_path):
    write_folders(tmp_path, "train", ["cat"])
    write_folders(tmp_path, "val", ["cat"])
    (tmp_path / "train" / ".hidden").mkdir()
    with pytest.raises(DataError, match=r"train/\.hidden counts as a class but has no images"):
        open_folders(tmp_path)


@pytest.mark.parametrize(
    "train, val, example",
    [
        ("cat dog", "cat", "class dog is only in train:"),
        ("cat dog", "cat emu dog", "class emu is only in val:"),
    ],
)
def test_classes_must_agree(tmp_path, train, val, example):
    write_folders(tmp_path, "train", train.split())
    write_folders(tmp_path, "val", val.split())
    with pytest.raises(DataError, match=example):
        open_folders(tmp_path)


# --------------------------------------------------------------------------- record files


def files(folder):
    return RecordFiles(
        folder / "train.rec", folder / "train.idx", folder / "val.rec", folder / "val.idx"
    )


def test_records(tmp_path):
    write_records(tmp_path, "train", [0, 1, 2, 0])
    write_records(tmp_path, "val", [2, 1, 0])
    source = open_records(files(tmp_path), look=Look(35))
    assert (source.train_images, source.val_images, source.classes) == (4, 3, 3)
    assert [int(label) for _, label in (source.val[n] for n in range(3))] == [2, 1, 0]
    image, label = source.train[2]
    assert image.shape == (3, 35, 35) and label == 2


@pytest.mark.parametrize("name", ["train.rec", "train.idx", "val.rec", "val.idx"])
def test_a_missing_file_is_named(tmp_path, name):
    for part in ("train", "val"):
        write_records(tmp_path, part, [0, 1])
    (tmp_path / name).unlink()
    with pytest.raises(DataError, match=f"{name} was not found"):
        open_records(files(tmp_path))


@pytest.mark.parametrize(
    "index, message",
    [
        ("0\t0\n1\t20\n", "record at byte [0-9]+ should end at byte 20"),
        ("0\t0\n1\t99999999\n", "no record at byte 99999999"),
        ("cat\tdog\n", "is not an index"),
        ("0\n", "is not an index"),
        ("", "lists no records"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(tmp_path, index, message):
    for part in ("train", "val"):
        write_records(tmp_path, part, [0, 1])
    (tmp_path / "train.idx").write_text(index)
    with pytest.raises(DataError, match=message):
        open_records(files(tmp_path))


@pytest.mark.parametrize("label", [0.5, -1, float("nan"), float("inf"), 2.0**24, 1e30])
def test_a_label_must_be_a_whole_number(tmp_path, label):
    write_records(tmp_path, "train", [0, label])
    write_records(tmp_path, "val", [0])
    with pytest.raises(DataError, match="record 1 of .*train.rec has the label"):
        open_records(files(tmp_path))


def test_record_classes_must_agree(tmp_path):
    write_records(tmp_path, "train", [0, 1, 2])
    write_records(tmp_path, "val", [0, 1])
    with pytest.raises(DataError, match="class 2 is only in .*train.rec"):
        open_records(files(tmp_path))
