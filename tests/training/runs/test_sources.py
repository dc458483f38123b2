"""The data that a recipe names."""

import dataclasses

import numpy as np
import pytest

from gluon_amp.base.messages import UsageError
from gluon_amp.training.data import DataError
from gluon_amp.training.data.fashion_mnist import PACKAGE
from gluon_amp.training.runs.recipe import Recipe, read, read_fine_tuning
from gluon_amp.training.runs.sources import open_data, record_files
from tests.idx_files import write_fashion
from tests.images import picture, png, write_folders


def test_record_files_are_found_beside_each_other(tmp_path):
    recipe, _ = read(["--rec-train", "t.rec", "--rec-val", "v.rec", "--rec-val-idx", "w.idx"])
    files = record_files(recipe)
    assert [str(path) for path in dataclasses.astuple(files)] == "t.rec t.idx v.rec w.idx".split()
    recipe, _ = read(["--use-rec", "--data-dir", str(tmp_path)])
    assert record_files(recipe).val_idx == tmp_path / "rec" / "val.idx"
    with pytest.raises(UsageError, match="--rec-val is missing"):
        record_files(read(["--rec-train", "t.rec"])[0])


def test_digits_are_as_large_as_the_network_needs():
    for line, size in (("", 32), ("--model alexnet", 64), ("--model alexnet --input-size 96", 96)):
        recipe, options = read(["--dataset", "digits", *line.split()])
        data, _ = open_data(recipe, options)
        assert data.image_shape == (3, size, size)


@pytest.mark.parametrize(
    ("line", "size"),
    [("", 28), ("--model mobilenet0.25", 28), ("--model alexnet", 64), ("--input-size 40", 40)],
)
def test_fashion_mnist_has_its_own_size_where_the_network_accepts_it(tmp_path, line, size):
    folder = write_fashion(tmp_path / "data")
    recipe, options = read(["--dataset", "fashion-mnist", "--data-dir", str(folder), *line.split()])
    data, notice = open_data(recipe, options)
    assert (data.name, data.image_shape, notice) == ("fashion-mnist", (3, size, size), None)
    assert data.train[0][0].shape == (3, size, size)


def test_fashion_mnist_is_looked_for_where_debian_puts_it(tmp_path, monkeypatch):
    from gluon_amp.training.data import fashion_mnist

    recipe, options = read(["--dataset", "fashion-mnist"])
    monkeypatch.setattr(fashion_mnist, "FOLDER", tmp_path / "debian")
    with pytest.raises(DataError, match=f"/debian has no train-.* install .* {PACKAGE}"):
        open_data(recipe, options)
    write_fashion(tmp_path / "debian", train=17)
    assert open_data(recipe, options)[0].train_images == 17


def test_an_image_folder_is_split_here(tmp_path):
    write_folders(tmp_path / "pets", "", ["cat", "dog"], images=5)
    line = ["--image-folder", str(tmp_path / "pets"), "--input-size", "24"]
    recipe, options = read_fine_tuning(line)
    assert recipe.dataset == "folder"  # and not the digits, fine-tuning's default
    data, notice = open_data(recipe, options)
    assert (data.train_images, data.val_images, notice) == (8, 2, None)
    assert data.name == "folder-pets"


@pytest.mark.parametrize(
    "line", ["--dataset digits", "--data-dir .", "--use-rec", "--dataset caltech101"]
)
def test_an_image_folder_and_other_data_are_refused(line):
    with pytest.raises(UsageError, match="--image-folder and .* both name the data"):
        read(["--image-folder", ".", *line.split()])


def test_images_have_the_colours_that_the_weights_were_trained_with(tmp_path):
    write_folders(tmp_path, "", ["cat", "dog"], images=2)
    pixels = picture(0)[8:32, 8:32]  # the centre of a file of 40 pixels
    for line, mean, std in (
        ("--model efficientnet_lite0", 127, 128),
        ("--model efficientnet_lite0 --rgb-mean 0,0,0 --rgb-std 1,1,1", 0, 1),
    ):
        options = f"--image-folder {tmp_path} --input-size 24 --crop-ratio 0.6 {line}"
        data, _ = open_data(*read_fine_tuning(options.split()))
        (tmp_path / "cat" / "0.png").write_bytes(png(picture(0)))
        (tmp_path / "cat" / "1.png").write_bytes(png(picture(0)))
        image, label = data.val[0]
        assert label == 0
        expected = (pixels.transpose(2, 0, 1).astype("f4") - mean) / std
        np.testing.assert_allclose(image.asnumpy(), expected, atol=1e-5 * 255 / std)
    assert read([])[0].rgb_mean == Recipe().rgb_mean


def test_random_crops_have_the_area_of_the_option(tmp_path):
    write_folders(tmp_path, "", ["cat", "dog"], images=5)
    half_black = np.zeros((40, 40, 3), np.uint8)
    half_black[:, 20:] = 255
    for each in tmp_path.glob("*/*.png"):
        each.write_bytes(png(half_black))
    line = f"--image-folder {tmp_path} --input-size 24 --rgb-mean 0,0,0 --rgb-std 1,1,1"
    one_sided = {}
    for area in ("0.08", "1"):
        data, _ = open_data(*read([*line.split(), "--min-random-area", area]))
        images = [data.train[position][0].asnumpy() for position in range(80)]
        one_sided[area] = sum(float(np.ptp(image)) < 100 for image in images)
    assert one_sided["0.08"] > 0 == one_sided["1"]
