"""Names of classes in a file beside packed images."""

import json

import pytest

from gluon_amp.training.data import Preprocessing, RecordFiles, open_records
from gluon_amp.training.data.class_names import read_classes, write_classes
from tests.images import write_records
from tests.training.data.refusal import refusal


def packed(folder, train_names, val_names):
    """Write three records to train/ and to val/, beside the names of their classes."""
    paths = []
    for part, names in (("train", train_names), ("val", val_names)):
        (folder / part).mkdir()
        if names:
            write_classes(folder / part, names)
        rec = write_records(folder / part, part, [0, 1, 4])
        paths += [rec, rec.with_suffix(".idx")]
    return RecordFiles(*paths)


NAMES = ["café", "b", "c", "d", "e"]


@pytest.mark.parametrize(("names", "classes"), [(NAMES, 5), ([*NAMES, "f"], 6), ([], 5)])
def test_class_names_are_read_beside_the_records(tmp_path, names, classes):
    source = open_records(packed(tmp_path, names, names), preprocessing=Preprocessing(24))
    assert (list(source.class_names), source.classes) == (names, classes)
    assert list(read_classes(tmp_path / "train")) == names
    if names:
        text = (tmp_path / "train" / "classes.json").read_text("utf-8")
        assert json.loads(text) == names and "café" in text


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "[1, 2]", '["a", "a"]', "\udcff", "[" * 100_000],
    ids=["empty", "dict", "none", "numbers", "twice", "bytes", "deep"],
)
def test_a_bad_list_of_names_is_refused(tmp_path, text):
    (tmp_path / "classes.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    message = refusal(read_classes, tmp_path)
    assert message.startswith(f"{tmp_path}/classes.json is not a list of different class names")


@pytest.mark.parametrize(
    ("train", "val", "sentence"),
    [
        ("a b c", "a b c", "has the label 4, but classes.json beside it names 3 classes, 0 to 2"),
        ("a b c d e", "a b c d f", "class e is only in train: they must be the same"),
        ("a b c d e", "a b c e d", "name the same classes in another order"),
    ],
)
def test_names_that_do_not_fit_are_refused(tmp_path, train, val, sentence):
    assert sentence in refusal(open_records, packed(tmp_path, train.split(), val.split()))
