"""Images in folders: classes, preprocessing, and folders that are refused."""

import numpy as np
import pytest

from gluon_amp.training.data import DataError, Preprocessing, open_folders
from tests.images import picture, write_folders


def test_folders(tmp_path):
    for part in ("train", "val"):
        write_folders(tmp_path, part, ["cat", "dog"], images=3)
    (tmp_path / "train" / "notes.txt").write_text("not a class")
    source = open_folders(tmp_path, preprocessing=Preprocessing(24))
    assert (source.train_images, source.val_images, source.classes) == (6, 6, 2)
    for image, label in (source.train[5], source.val[5]):
        assert image.shape == (3, 24, 24) and image.dtype == np.float32 and label == 1


def test_validation_images_are_resized_cropped_and_normalised(tmp_path):
    for part in ("train", "val"):
        write_folders(tmp_path, part, ["cat"], images=1)
    source = open_folders(tmp_path, preprocessing=Preprocessing(35))  # 35 / 0.875 = 40 = file size
    image = source.val[0][0].asnumpy()
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


def test_folders_name_their_classes(tmp_path):
    for part in ("train", "val"):
        write_folders(tmp_path, part, ["b", "a", "C"])
    assert open_folders(tmp_path, preprocessing=Preprocessing(24)).class_names == ("C", "a", "b")
