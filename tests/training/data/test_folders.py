"""Images in folders: classes, preprocessing, the split, and folders that are refused."""

import numpy as np
import pytest

from gluon_amp.training.data import Preprocessing, open_folders, open_image_folder
from gluon_amp.training.data.source import UnreadableImageError
from tests.images import write_folders
from tests.training.data.refusal import refusal

SMALL = Preprocessing(24)


@pytest.mark.parametrize("open_source", [open_folders, open_image_folder])
def test_divided_folders(tmp_path, open_source):
    write_folders(tmp_path, "train", ["b", "C"], images=3)
    write_folders(tmp_path, "val", ["b", "C"], images=1)
    (tmp_path / "train" / "notes.txt").write_text("not a class")
    source = open_source(tmp_path, preprocessing=Preprocessing(35))
    assert (source.train_images, source.val_images, source.classes) == (6, 2, 2)
    assert source.class_names == ("C", "b")
    image, label = source.train[5]
    assert image.shape == (3, 35, 35) and image.dtype == np.float32 and label == 1
    assert source.val[0][0].shape == (3, 35, 35)


def test_augmentation_depends_on_the_seed_and_the_epoch(tmp_path):
    for part in ("train", "val"):
        write_folders(tmp_path, part, ["a", "b"])
    one, again, other = (open_folders(tmp_path, seed, SMALL).train for seed in (5, 5, 6))
    image = one[1][0].asnumpy()
    assert np.array_equal(image, again[1][0].asnumpy())
    assert not np.array_equal(image, other[1][0].asnumpy())
    assert not np.array_equal(image, one[2 * len(one) + 1][0].asnumpy())  # epoch 2


@pytest.mark.parametrize(
    ("train", "val", "sentence"),
    [
        (None, None, "holds no classes to train on: expected images in"),
        ("cat dog", "cat", "class dog is only in train: they must be the same classes"),
        ("cat", "cat dog", "class dog is only in val: they must be the same classes"),
    ],
)
def test_divided_folders_that_are_refused(tmp_path, train, val, sentence):
    for part, classes in (("train", train), ("val", val)):
        if classes:
            write_folders(tmp_path, part, classes.split())
    assert sentence in refusal(open_folders, tmp_path)


def in_order(images):
    """Return the names of the images of a part."""
    return [images._encoded.name(n) for n in range(len(images))]


def test_a_fifth_of_each_class_is_for_validation(tmp_path):
    write_folders(tmp_path, "", ["a", "c"], images=10)
    write_folders(tmp_path, "", ["d"], images=2)
    source = open_image_folder(tmp_path, seed=3, preprocessing=SMALL)
    assert (source.train_images, source.val_images) == (17, 5)
    assert source.class_names == ("a", "c", "d")
    train, val = in_order(source.train), in_order(source.val)
    assert sorted(train + val) == sorted(str(path) for path in tmp_path.rglob("*.png"))
    assert sorted(source.val[n][1] for n in range(5)) == [0, 0, 1, 1, 2]
    other = open_image_folder(tmp_path, seed=4, preprocessing=SMALL)
    assert sorted(in_order(other.val)) != sorted(val)
    write_folders(tmp_path, "", ["b"], images=10)  # another class changes nothing in these
    after = in_order(open_image_folder(tmp_path, seed=3, preprocessing=SMALL).val)
    assert sorted(name for name in after if "/b/" not in name) == sorted(val)


@pytest.mark.parametrize(
    ("folders", "sentence"),
    [
        ({}, "holds no folders: expected one for each class"),
        ({"train": 3}, "holds one class, train: expected a folder for each of several"),
        ({"cat": 3, "dog": 1}, "dog has one image: a class needs at least two"),
    ],
)
def test_folders_that_cannot_be_split(tmp_path, folders, sentence):
    for name, images in folders.items():
        write_folders(tmp_path, "", [name], images)
    assert sentence in refusal(open_image_folder, tmp_path)


def test_a_file_that_is_gone_is_named(tmp_path):
    write_folders(tmp_path, "", ["a", "b"], images=4)
    source = open_image_folder(tmp_path, preprocessing=SMALL)
    name = in_order(source.val)[0]
    (tmp_path / name).unlink()
    with pytest.raises(UnreadableImageError) as caught:
        source.val[0]
    assert str(caught.value) == name
