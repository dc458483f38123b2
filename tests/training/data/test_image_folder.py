"""Folders of classes that are split here."""

import numpy as np
import pytest
from gluon_amp.training.data.image_folder import split
from gluon_amp.training.data.prepare.splitting import read_tree

from gluon_amp.training.data import DataError, Preprocessing, open_image_folder
from tests.images import picture, png, write_folders

SMALL = Preprocessing(24)


def names(images):
    return [image.name for image in images]


def test_a_fifth_of_each_class_is_for_validation(tmp_path):
    write_folders(tmp_path, "", ["cat"], images=10)
    write_folders(tmp_path, "", ["dog"], images=2)
    (tmp_path / "notes.txt").write_text("not a class")
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    source = open_image_folder(tmp_path, preprocessing=SMALL)
    assert (source.train_images, source.val_images, source.classes) == (9, 3, 2)
    assert source.class_names == ("cat", "dog")
    assert [source.val[n][1] for n in range(3)] == [0, 0, 1]
    image, label = source.train[8]
    assert image.shape == (3, 24, 24) and image.dtype == np.float32 and label == 1


def test_the_parts_are_all_images_and_depend_on_the_seed(tmp_path):
    write_folders(tmp_path, "", ["a", "b"], images=20)
    tree = read_tree(tmp_path)
    parts = split(tree, seed=0)
    assert sorted(names(parts["train"] + parts["val"])) == sorted(names(tree.images))
    assert len(parts["val"]) == 8
    assert split(tree, seed=0) == parts
    assert split(tree, seed=1) != parts


def test_other_classes_do_not_change_the_split_of_a_class(tmp_path):
    write_folders(tmp_path, "", ["a", "c"], images=9)
    before = names(split(read_tree(tmp_path), seed=3)["val"])
    write_folders(tmp_path, "", ["b"], images=9)
    after = names(split(read_tree(tmp_path), seed=3)["val"])
    assert [name for name in after if not name.startswith("b")] == before


def test_folders_that_are_split_already(tmp_path):
    write_folders(tmp_path, "train", ["cat", "dog"], images=3)
    write_folders(tmp_path, "val", ["cat", "dog"], images=1)
    source = open_image_folder(tmp_path, preprocessing=SMALL)
    assert (source.train_images, source.val_images, source.classes) == (6, 2, 2)


@pytest.mark.parametrize(
    ("folders", "sentence"),
    [
        ({}, "holds no folders: expected one for each class"),
        ({"cat": 3}, "holds one class, cat: expected a folder for each of several"),
        ({"train": 3}, "holds one class, train"),
        ({"cat": 3, "dog": 1}, "dog has one image: a class needs at least two"),
        ({"cat": 3, "dog": 0}, "dog counts as a class but has no images"),
    ],
)
def test_folders_that_are_refused(tmp_path, folders, sentence):
    for name, images in folders.items():
        write_folders(tmp_path, "", [name], images)
    with pytest.raises(DataError, match=sentence):
        open_image_folder(tmp_path)


def test_a_folder_that_is_missing_is_refused(tmp_path):
    with pytest.raises(DataError, match="none is not a folder"):
        open_image_folder(tmp_path / "none")


def test_a_damaged_image_is_named(tmp_path):
    write_folders(tmp_path, "", ["a", "b"], images=4)
    source = open_image_folder(tmp_path, preprocessing=SMALL)
    broken = source.val._encoded.name(0)
    with open(broken, "wb") as file:
        file.write(png(picture(0))[:60])
    with pytest.raises(ValueError, match=broken):
        source.val[0]
