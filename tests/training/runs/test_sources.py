"""The data that a recipe names."""

import dataclasses

import pytest

from gluon_amp.base.messages import UsageError
from gluon_amp.training.data import Preprocessing
from gluon_amp.training.data.splitting import write_classes
from gluon_amp.training.runs.recipe import read, read_fine_tuning
from gluon_amp.training.runs.sources import open_data, record_files
from tests.idx_files import write_fashion
from tests.images import write_folders, write_records


def test_record_files_are_found_beside_each_other(tmp_path):
    files = record_files(read("--rec-train t.rec --rec-val v.rec --rec-val-idx w.idx".split()))
    assert [str(path) for path in dataclasses.astuple(files)] == "t.rec t.idx v.rec w.idx".split()
    packed = read(["--use-rec", "--data-dir", str(tmp_path)])
    assert record_files(packed).val_idx == tmp_path / "rec" / "val.idx"
    with pytest.raises(UsageError, match="--rec-val is missing"):
        record_files(read(["--rec-train", "t.rec"]))


@pytest.fixture
def places(tmp_path):
    """Small data of every kind, by the names that stand for their folders in a line."""
    for part, images in (("train", 17), ("val", 5)):
        write_folders(tmp_path / "folders", part, ["cat", "dog"], images=3)
        (tmp_path / "caltech" / "rec").mkdir(parents=True, exist_ok=True)
        write_records(tmp_path / "caltech" / "rec", part, [number % 2 for number in range(images)])
    write_classes(tmp_path / "caltech" / "rec", ["ant", "bee"])
    write_folders(tmp_path / "pets", "", ["cat", "dog"], images=5)
    write_fashion(tmp_path / "fashion", train=40, val=23)
    return tmp_path


@pytest.mark.parametrize(
    "line, name, counts, side",
    [
        ("", "digits", (1437, 360, 10), 32),
        ("--benchmark --batch-size 8 --num-classes 5 --input-size 40", "synthetic", (16, 3, 5), 40),
        ("--dataset fashion-mnist --data-dir {}/fashion", "fashion-mnist", (40, 23, 10), 28),
        ("--image-folder {}/pets --input-size 24", "folder-pets", (8, 2, 2), 24),
        ("--data-dir {}/folders", "folder-folders", (6, 6, 2), 224),
        ("--data-dir {}/folders --dataset imagenet", "imagenet", (6, 6, 2), 224),
        ("--dataset caltech101 --data-dir {}/caltech", "caltech101", (17, 5, 2), 224),
        ("--use-rec --data-dir {}/caltech", "folder-rec", (17, 5, 2), 224),
    ],
)
def test_each_kind_of_data(line, name, counts, side, places):
    source = open_data(read(line.format(places).split()), devices=2)
    assert (source.name, source.image_shape) == (name, (3, side, side))
    assert (source.train_images, source.val_images, source.classes) == counts
    assert source.train[0][0].shape == (3, side, side)


def test_fine_tuning_has_the_other_half_of_the_digits():
    source = open_data(read_fine_tuning([]), devices=1)
    assert (source.train_images, source.val_images) == (717, 179)
    assert source.class_names == ("5", "6", "7", "8", "9")


@pytest.mark.parametrize(
    "line, sentence",
    [
        ("--num-classes 11", "--num-classes 11 was given, but digits has 10"),
        ("--num-training-samples 9", "--num-training-samples 9 was given, but digits has 1437"),
        ("--dataset caltech256", "run `gluon-amp prepare-caltech --dataset caltech256`"),
    ],
)
def test_data_that_is_not_there(line, sentence):
    with pytest.raises(UsageError, match=sentence):
        open_data(read(line.split()), devices=1)


@pytest.mark.parametrize(
    "more, mean, std", [("", 127, 128), ("--rgb-mean 0,0,0 --rgb-std 1,1,1", 0, 1)]
)
def test_images_are_prepared_as_the_weights_and_the_options_ask(more, mean, std, tmp_path):
    write_folders(tmp_path, "", ["cat", "dog"], images=2)
    line = f"--image-folder {tmp_path} --model efficientnet_lite0 --input-size 24 {more}"
    line += " --crop-ratio 0.6 --min-random-area 0.5"
    data = open_data(read_fine_tuning(line.split()), devices=1)
    expected = Preprocessing(24, 0.6, (mean / 255,) * 3, (std / 255,) * 3, 0.5)
    for images in (data.train, data.val):
        assert images._transform._preprocessing == expected
