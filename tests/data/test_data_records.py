"""Record files: what MXNet writes is read back; what does not fit is one sentence."""

import json
import struct
import threading

import numpy as np
import pytest

import gluon_amp  # noqa: F401
from gluon_amp.data import (
    DataError,
    Look,
    RecordFiles,
    TrainingBatches,
    open_folders,
    open_records,
    read_classes,
    write_classes,
)
from gluon_amp.data.decode import DecodeError
from gluon_amp.data.records import MAGIC_BYTES, RecordImages, read_index, record_data
from gluon_amp.data.synthetic import write_synthetic_records
from tests.images import picture, png, write_folders, write_records

from mxnet import recordio


def files(folder):
    names = ("train.rec", "train.idx", "val.rec", "val.idx")
    return RecordFiles(*(folder / name for name in names))


def opened(folder, name="train"):
    return RecordImages(folder / f"{name}.rec", folder / f"{name}.idx")


def write(folder, payloads, name="train"):
    """Write raw payloads with the header of an image of class 0."""
    records = recordio.MXIndexedRecordIO(
        str(folder / f"{name}.idx"), str(folder / f"{name}.rec"), "w"
    )
    for number, payload in enumerate(payloads):
        header = recordio.IRHeader(0, 0.0, number, 0)
        records.write_idx(number, recordio.pack(header, payload))
    records.close()


# --------------------------------------------------------------------------- reading


def test_records_are_read_as_they_were_written(tmp_path):
    write_records(tmp_path, "train", [2, 0, 1])
    images = opened(tmp_path)
    assert len(images) == 3
    assert [images.read(n) for n in (2, 0, 1)] == [
        (png(picture(n)), label) for n, label in ((2, 1), (0, 2), (1, 0))
    ]
    assert images.name(1) == f"record 1 of {tmp_path}/train.rec"


@pytest.mark.parametrize("length", range(9))
def test_padding_is_not_read(tmp_path, length):
    write(tmp_path, [b"x" * length, b"y" * 5])
    assert opened(tmp_path).read(0) == (b"x" * length, 0)


@pytest.mark.parametrize(
    "payload",
    [
        MAGIC_BYTES,
        MAGIC_BYTES * 3,
        b"abcd" + MAGIC_BYTES + b"efghi",
        b"abc" + MAGIC_BYTES,  # not aligned, so left in one piece
        b"abcd" + MAGIC_BYTES + b"efgh" + MAGIC_BYTES + b"ij",
    ],
)
def test_data_with_the_magic_number_in_it_is_put_together(tmp_path, payload):
    write(tmp_path, [payload, b"next"])
    images = opened(tmp_path)
    assert images.check() == {0}
    assert images.read(0) == (payload, 0) and images.read(1) == (b"next", 0)


@pytest.mark.parametrize(
    "record",
    [
        b"",
        MAGIC_BYTES,
        b"\0" * 8,
        MAGIC_BYTES + struct.pack("<I", 5) + b"abcd",
        MAGIC_BYTES + struct.pack("<I", (1 << 29) + 4) + b"abcd",
    ],
    ids=["empty", "no length", "no magic number", "cut short", "no last part"],
)
def test_a_damaged_record_is_refused(record):
    with pytest.raises(DecodeError):
        record_data(record)


def test_an_index_may_be_in_any_order(tmp_path):
    write_records(tmp_path, "train", [0, 1, 2, 3])
    index = tmp_path / "train.idx"
    index.write_text("\n".join(reversed(index.read_text().splitlines())))
    images = opened(tmp_path)
    assert images.check() == {0, 1, 2, 3}
    assert [images.read(n)[1] for n in range(4)] == [3, 2, 1, 0]
    assert images.name(0) == f"record 3 of {tmp_path}/train.rec"


def test_many_threads_read_at_once(tmp_path):
    """MXIndexedRecordIO moves one position in the file for all, so threads mix up its records."""
    write_records(tmp_path, "train", range(20))
    images, wrong = opened(tmp_path), []

    def read():
        for _ in range(20):
            wrong.extend(n for n in range(20) if images.read(n) != (expected[n], n))

    expected = [png(picture(n)) for n in range(20)]
    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_folders_and_records_give_the_same_images(tmp_path):
    for part in ("train", "val"):
        write_folders(tmp_path, part, ["a", "b"], images=2)
        records = recordio.MXIndexedRecordIO(
            str(tmp_path / f"{part}.idx"), str(tmp_path / f"{part}.rec"), "w"
        )
        for n in range(4):
            header = recordio.IRHeader(0, float(n // 2), n, 0)
            records.write_idx(n, recordio.pack(header, png(picture(n % 2))))
        records.close()
    folders, packed = (
        open_folders(tmp_path, seed=3, look=Look(24)),
        open_records(files(tmp_path), seed=3, look=Look(24)),
    )
    for source in ("train", "val"):
        for position in (0, 3, 9):
            image, label = getattr(folders, source)[position]
            other, same = getattr(packed, source)[position]
            assert np.array_equal(image.asnumpy(), other.asnumpy()) and label == same


# ------------------------------------------------------------------------- indices that do not fit


def test_read_index(tmp_path):
    path = tmp_path / "a.idx"
    path.write_text("7\t0\n3\t120\n")
    assert read_index(path).tolist() == [[7, 0], [3, 120]]


@pytest.mark.parametrize("text", ["1 2 3", "1\t1.5", "a\tb", "1\t99999999999999999999", "\0\1\2"])
def test_what_is_no_index_is_refused(tmp_path, text):
    path = tmp_path / "a.idx"
    path.write_text(text)
    with pytest.raises(DataError, match=r"a\.idx is not an index: expected lines of a key, a tab"):
        read_index(path)


def lines_of(folder):
    return (folder / "train.idx").read_text().splitlines(keepends=True)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda lines: lines[:-1], "the record at byte [0-9]+ is not listed"),
        (lambda lines: [lines[0], *lines[2:]], "the record at byte [0-9]+ is not listed"),
        (lambda lines: [*lines, "9\t99999999\n"], "there is no record at byte 99999999"),
        (lambda lines: [*lines, "9\t-4\n"], "there is no record at byte -4"),
        (lambda lines: [*lines, "9\t40\n"], "should end at byte 40"),
        (lambda lines: ["0\t4\n", *lines[1:]], "there is no record at byte 4"),
    ],
    ids=["short", "a gap", "beyond the end", "before the start", "inside a record", "shifted"],
)
def test_an_index_of_other_records_is_refused(tmp_path, change, message):
    write_records(tmp_path, "train", range(4))
    (tmp_path / "train.idx").write_text("".join(change(lines_of(tmp_path))))
    with pytest.raises(DataError, match=f"train.idx does not fit .*train.rec: .*{message}") as told:
        opened(tmp_path).check()
    assert str(told.value).endswith("so write both again.") and "\n" not in str(told.value)


def test_a_file_cut_short_is_refused(tmp_path):
    write_records(tmp_path, "train", range(4))
    path = tmp_path / "train.rec"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="the record at byte [0-9]+ should end at byte [0-9]+"):
        opened(tmp_path).check()


def test_the_index_of_another_file_is_refused(tmp_path):
    write_records(tmp_path, "train", range(4))
    write_records(tmp_path, "val", range(3))
    with pytest.raises(DataError, match=r"val\.idx does not fit .*train\.rec"):
        RecordImages(tmp_path / "train.rec", tmp_path / "val.idx").check()


def test_several_labels_are_refused(tmp_path):
    records = recordio.MXIndexedRecordIO(
        str(tmp_path / "train.idx"), str(tmp_path / "train.rec"), "w"
    )
    header = recordio.IRHeader(0, np.array([1.0, 2.0], np.float32), 0, 0)
    records.write_idx(0, recordio.pack(header, png(picture(0))))
    records.close()
    with pytest.raises(DataError, match=r"record 0 of .*train\.rec has 2 labels, expected one"):
        opened(tmp_path).check()


# --------------------------------------------------------------------------- names of classes


def packed(folder, labels=(0, 1, 2), val=None):
    write_records(folder, "train", labels)
    write_records(folder, "val", labels if val is None else val)
    return files(folder)


def named(folder, train_names, val_names):
    """Write two records to train/ and val/ each, with these names beside them."""
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
    source = open_records(packed(tmp_path), look=Look(24))
    assert source.class_names == ("café", "dog", "emu") == read_classes(tmp_path)
    assert source.classes == 3


def test_records_without_names_count_their_labels(tmp_path):
    source = open_records(packed(tmp_path, (0, 4)), look=Look(24))
    assert source.class_names == () and source.classes == 5


def test_folders_name_their_classes(tmp_path):
    for part in ("train", "val"):
        write_folders(tmp_path, part, ["b", "a", "C"])
    assert open_folders(tmp_path, look=Look(24)).class_names == ("C", "a", "b")


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
    for part, names in (("train", ["cat", "dog"]), ("val", ["cat", "emu"])):
        (tmp_path / part).mkdir()
        write_classes(tmp_path / part, names)
        write_records(tmp_path / part, part, [0, 1])
    both = RecordFiles(
        *(
            tmp_path / part / f"{part}.{kind}"
            for part in ("train", "val")
            for kind in ("rec", "idx")
        )
    )
    with pytest.raises(DataError, match="class dog is only in train: they must be the same"):
        open_records(both)


def test_the_same_names_in_another_order_are_refused(tmp_path):
    for part, names in (("train", ["cat", "dog"]), ("val", ["dog", "cat"])):
        (tmp_path / part).mkdir()
        write_classes(tmp_path / part, names)
        write_records(tmp_path / part, part, [0, 1])
    both = RecordFiles(
        *(
            tmp_path / part / f"{part}.{kind}"
            for part in ("train", "val")
            for kind in ("rec", "idx")
        )
    )
    with pytest.raises(DataError, match="name the same classes in another order"):
        open_records(both)


def test_a_label_that_the_check_did_not_see_is_refused_when_it_is_read(tmp_path, monkeypatch):
    """Of more than RECORDS_CHECKED records only some are checked."""
    monkeypatch.setattr("gluon_amp.data.records.RECORDS_CHECKED", 2)
    source = open_records(packed(tmp_path, (0, 9, 1, 0), val=(0, 0, 1, 0)), look=Look(24))
    assert source.classes == 2
    message = "record 1 of .*train.rec has the label 9, but the 2 classes have the labels 0 to 1"
    with pytest.raises(DataError, match=message):
        list(TrainingBatches(source.train, 4).epoch(0))


# --------------------------------------------------------------------------- synthetic records


def test_synthetic_records_are_seeded_jpegs(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        size = write_synthetic_records(tmp_path, name, 12, classes=3, side=256, seed=seed)
        assert 20_000 < size < 30_000
    first, again, other = (opened(tmp_path, name) for name in "abc")
    assert [first.read(n)[1] for n in range(12)] == [0, 1, 2] * 4
    assert all(first.read(n) == again.read(n) for n in range(12))
    assert first.read(0) != other.read(0) and first.read(0) != first.read(3)
    assert first.read(0)[0].startswith(b"\xff\xd8")
