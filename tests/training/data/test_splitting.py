"""Folders of classes, their names, and their split into training and validation images."""

import collections
import json
import os
import subprocess
import sys

import pytest

from gluon_amp.training.data import Preprocessing, RecordFiles, open_records
from gluon_amp.training.data.splitting import Split, read_classes, read_tree, write_classes
from tests.images import write_records
from tests.training.data.jpegs import write_classes_abc
from tests.training.data.refusal import refusal
from tests.training.runs.scripts import environment


def test_tree(root):
    (root / "a" / "notes.txt").touch()
    (root / "a" / "deep.jpg").mkdir()
    (root / "a" / ".hidden.jpg").touch()
    (root / ".git").mkdir()
    (root / "beside.jpg").touch()
    (root / "B").mkdir()
    (root / "B" / "x.PNG").touch()
    (root / "B" / "y.JPeG").touch()
    os.mkfifo(root / "b" / "fifo.jpg")
    tree = read_tree(root)
    assert tree.classes == ("B", "a", "b", "c")  # by bytes, as Python sorts and im2rec lists
    assert tree.count() == [2, 3, 4, 5]
    assert tree.images[:4] == (("B/x.PNG", 0), ("B/y.JPeG", 0), ("a/0.jpg", 1), ("a/1.jpg", 1))
    assert tree.ignored == ("a/deep.jpg", "a/notes.txt", "b/fifo.jpg")
    tree = read_tree(root, ["a/", "c/4.jpg"])
    assert tree.classes == ("B", "b", "c") and tree.count() == [2, 4, 4]


def test_refused_trees(root):
    message = refusal(read_tree, root, ["c/5.jpg", "a"])
    assert message == f"{root} holds no c/5.jpg, so it cannot be left out."
    (root / "d").mkdir()
    assert refusal(read_tree, root) == f"{root}/d counts as a class but has no images: remove it."
    message = refusal(read_tree, root / "d")
    assert message == f"{root}/d holds no folders: expected one for each class."
    (root / os.fsdecode(b"\xe9")).mkdir()
    message = refusal(read_tree, root, ["d"])
    assert message == f"{root} holds a class '\\udce9', not in UTF-8: rename it."
    assert refusal(read_tree, root / "e") == (
        f"{root}/e is not a folder: expected one with a folder for each class."
    )


OTHER_LOCALE = """
import sys
from pathlib import Path
from gluon_amp.training.command_line import status_of
from gluon_amp.training.data.splitting import read_tree
sys.exit(status_of("prog", lambda: print(*read_tree(Path(sys.argv[1])).classes)))
"""


def test_names_are_in_utf_8_in_every_locale(tmp_path):
    write_classes_abc(tmp_path).joinpath("a").rename(tmp_path / "café")
    variables = environment(LC_ALL="C", PYTHONUTF8="0")
    command = [sys.executable, "-c", OTHER_LOCALE, str(tmp_path)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("b c caf\\xe9\n", "")


def test_the_draw_never_changes(root):
    """The names whose `printf '0 b/2.jpg' | sha256sum` is the smallest of their class, in order."""
    tree = read_tree(root)
    parts = Split(per_class=1).divide(tree)
    assert [image.name for image in parts["train"]] == ["b/2.jpg", "a/1.jpg", "c/4.jpg"]
    assert parts["val"] == [image for image in tree.images if image not in parts["train"]]
    assert Split(per_class=1, seed=1).divide(tree)["train"] != parts["train"]


@pytest.mark.parametrize(("total", "counts"), [(3, [1, 1, 1]), (7, [2, 2, 3]), (8, [2, 3, 3])])
def test_images_in_total(root, total, counts):
    """7 of 12 are 1.75, 2.33, 2.92 of 3, 4, 5: rounded down 1, 2, 2; the remainders decide."""
    parts = Split(total=total).divide(read_tree(root))
    drawn = collections.Counter(image.label for image in parts["train"])
    assert [drawn[label] for label in range(3)] == counts
    assert len(parts["val"]) == 12 - total


def test_splits_that_leave_nothing(root):
    assert refusal(Split(per_class=3).divide, read_tree(root)) == (
        f"{root}/a has 3 images, so 3 of each class for training would leave none for validation: "
        "choose at most 2."
    )
    for total, which in ((1, "0 of the 3 in {}/a"), (11, "3 of the 3 in {}/a")):
        assert refusal(Split(total=total).divide, read_tree(root)) == (
            f"{total} of all 12 images for training would be {which.format(root)}: each class "
            "needs images for training and for validation."
        )


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
