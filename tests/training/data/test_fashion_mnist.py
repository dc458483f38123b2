"""Fashion-MNIST: its files, its augmentation, its batches."""

import gzip

import numpy as np
import pytest

from gluon_amp.training.data import open_fashion_mnist
from gluon_amp.training.data.fashion_mnist import CLASSES, PACKAGE, FashionImages, load_part
from gluon_amp.training.runs.recipe import read
from gluon_amp.training.runs.sources import open_data
from tests.idx_files import idx, write_fashion
from tests.training.data.refusal import refusal

BACKGROUND = np.float32(-0.286 / 0.353)
WHITE = np.float32((1 - 0.286) / 0.353)


@pytest.mark.parametrize("compressed", [True, False])
def test_the_source(tmp_path, compressed):
    source = open_fashion_mnist(write_fashion(tmp_path, compressed=compressed))
    assert (source.name, source.classes) == ("fashion-mnist", 10)
    assert (source.train_images, source.val_images) == (40, 20)
    assert source.class_names == CLASSES and len(set(CLASSES)) == 10
    image, label = source.val[13]
    assert image.shape == source.image_shape == (3, 28, 28) and label == 3
    stored = load_part(tmp_path, "t10k")[0][13]
    expected = (stored / 255 - 0.286) / 0.353
    assert np.abs(image.asnumpy() - expected).max() < 1e-5


def test_a_missing_file_names_the_package(tmp_path):
    folder = write_fashion(tmp_path)
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    assert refusal(open_fashion_mnist, folder) == (
        f"{folder} has no t10k-labels-idx1-ubyte or t10k-labels-idx1-ubyte.gz: install the Debian "
        f"package {PACKAGE}, or name a folder that has the four files of Fashion-MNIST."
    )


@pytest.mark.parametrize(
    "name, values, reason",
    [
        ("train-labels-idx1", np.zeros(39), "has 40 images, but"),
        ("train-labels-idx1", np.full(40, 10), "has the label 10, but the 10 classes have"),
        ("train-images-idx3", np.zeros((40, 32, 32)), "its items have 32×32 values, not 28×28"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, name, values, reason):
    folder = write_fashion(tmp_path)
    (folder / f"{name}-ubyte.gz").write_bytes(gzip.compress(idx(values)))
    message = refusal(open_fashion_mnist, folder)
    assert reason in message and f"{name}-ubyte.gz" in message and message.count(". ") == 0


def dot(row, column):
    image = np.zeros((1, 28, 28), np.uint8)
    image[0, row, column] = 255
    return image


def test_augmentation_shifts_by_up_to_two_pixels_and_mirrors():
    images = FashionImages(dot(10, 5), np.zeros(1, np.uint8), seed=0)
    places = set()
    for epoch in range(600):
        pixels = images[epoch][0].asnumpy()
        assert np.isclose(pixels, WHITE).sum() == 3  # one in each colour
        assert np.isclose(pixels, BACKGROUND).sum() == 3 * (28 * 28 - 1)
        places.add(tuple(np.argwhere(pixels[0] > 0)[0]))
    rows, columns = range(8, 13), [*range(3, 8), *range(20, 25)]  # mirrored: 27 - column
    assert places == {(row, column) for row in rows for column in columns}
    corner = FashionImages(dot(0, 0), np.zeros(1, np.uint8), seed=0)  # shifted out, it is gone
    assert {int((corner[epoch][0].asnumpy()[0] > 0).sum()) for epoch in range(50)} == {0, 1}


def test_without_a_shift_images_are_only_mirrored(tmp_path):
    line = f"--dataset fashion-mnist --data-dir {write_fashion(tmp_path)} --max-shift 0"
    train = open_data(read(line.split()), devices=1).train
    first = load_part(tmp_path, "train")[0][0]
    original = ((first / 255 - 0.286) / 0.353).astype("float32")
    seen = {train[epoch * len(train)][0].asnumpy()[0].tobytes() for epoch in range(20)}
    expected = [original, original[:, ::-1]]
    assert len(seen) == 2
    for image in expected:
        assert any(np.allclose(np.frombuffer(one, "float32"), image.ravel()) for one in seen)


def test_augmentation_depends_on_the_seed(tmp_path):
    write_fashion(tmp_path)
    sources = [open_fashion_mnist(tmp_path, seed).train for seed in (3, 3, 4)]
    one, again, other = ([train[n][0].asnumpy() for n in range(9)] for train in sources)
    assert np.array_equal(one, again) and not np.array_equal(one, other)


def test_larger_images_for_networks_that_need_them(tmp_path):
    source = open_fashion_mnist(write_fashion(tmp_path), size=56)
    native, _ = load_part(tmp_path, "t10k")
    large = source.val[0][0].asnumpy()[0] * 0.353 + 0.286
    # twice as large: a pixel is between its nearest neighbours, with weights 3/4 and 1/4
    weights = np.array([[9, 3], [3, 1]]) / 16
    expected = (weights * native[0, 5:7, 5:7]).sum() / 255
    assert large[11, 11] == pytest.approx(expected, abs=0.51 / 255)
    assert source.image_shape == source.train[0][0].shape == (3, 56, 56)
