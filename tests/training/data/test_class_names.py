"""Names of classes in a file beside packed images."""

import json

import pytest

from gluon_amp.training.data import (
    DataError,
    Preprocessing,
    RecordFiles,
    open_records,
    read_classes,
    write_classes,
)
from tests.images import record_files, write_records


def packed(folder, labels=(0, 1, 2)):
    for part in ("train", "val"):
        write_records(folder, part, labels)
    return record_files(folder)


def named(folder, train_names, val_names):
    """Write two records and names of classes to train/ and to val/."""
    paths = []
    for part, names in (("train", train_names), ("val", val_names)):
        (folder / part).mkdir()
        write_classes(folder / part, names)
        rec = write_records(folder / part, part, [0, 1])
        paths += [rec, rec.with_suffix(".idx")]
    return RecordFiles(*paths)


def test_class_names_are_read_beside_the_records(tmp_path):
    path = write_classes(tmp_path, ["café", "dog", "emu"])
    assert path.name == "classes.json" and json.loads(path.read_text("utf-8"))[0] == "café"
    source = open_records(packed(tmp_path), preprocessing=Preprocessing(24))
    assert source.class_names == ("café", "dog", "emu") == read_classes(tmp_path)
    assert source.classes == 3


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "[1, 2]", '["a", "a"]', '"abc"', "[", "\udcff", "[" * 100_000],
    ids=str.__len__,
)
def test_a_bad_list_of_names_is_refused(tmp_path, text):
    (tmp_path / "classes.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=r"classes\.json is not a list of different class names"):
        read_classes(tmp_path)


def test_a_label_beyond_the_names_is_refused(tmp_path):
    write_classes(tmp_path, ["cat", "dog"])
    with pytest.raises(
        DataError,
        match=r"train\.rec has the label 2, but classes\.json beside it names 2 classes, 0 to 1",
    ):
        open_records(packed(tmp_path))


def test_names_of_training_and_validation_must_agree(tmp_path):
    files = named(tmp_path, ["cat", "dog"], ["cat", "emu"])
    with pytest.raises(DataError, match="class dog is only in train: they must be the same"):
        open_records(files)


def test_the_same_names_in_another_order_are_refused(tmp_path):
    files = named(tmp_path, ["cat", "dog"], ["dog", "cat"])
    with pytest.raises(DataError, match="name the same classes in another order"):
        open_records(files)


def test_records_without_names_have_as_many_classes_as_labels(tmp_path):
    source = open_records(packed(tmp_path, (0, 4)), preprocessing=Preprocessing(24))
    assert source.class_names == () and source.classes == 5
