"""Scikit-learn's digits: their fixed split, their enlargement and their augmentation."""

import zlib

import numpy as np

from gluon_amp.training.data import open_digits
from gluon_amp.training.data.digits import load_digits, normalise, shift


def test_digits_split_is_fixed():
    (train, train_labels), (val, val_labels) = load_digits()
    assert train.shape == (1437, 32, 32) and val.shape == (360, 32, 32)
    assert np.bincount(val_labels).tolist() == [36, 36, 36, 36, 37, 36, 36, 36, 35, 36]
    assert zlib.crc32(train.tobytes()) == 4287450448
    assert zlib.crc32(val.tobytes()) == 2809935326
    assert zlib.crc32(train_labels.tobytes()) == 1747987181


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
    source = open_digits(keep=(5, 7), size=48)
    assert (source.classes, source.class_names) == (2, ("5", "7"))
    assert source.train_images == 146 + 143 and source.val_images == 36 * 2
    for image, label in (source.train[0], source.val[0]):
        assert image.shape == source.image_shape == (3, 48, 48)
        assert image.dtype == np.float32 and label in (0, 1)
    first, next_epoch = (source.train[epoch * 289][0].asnumpy() for epoch in (0, 1))
    assert not np.array_equal(first, next_epoch)
    (_, _), (images, labels) = load_digits(48)
    stored = normalise(images[np.isin(labels, (5, 7))][0])
    assert np.array_equal(source.val[0][0].asnumpy(), stored)
