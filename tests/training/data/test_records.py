"""Record files: reading what MXNet writes, and indices that do not match."""

import struct
import threading

import numpy as np
import pytest

from gluon_amp.training.data import (
    DataError,
    Preprocessing,
    TrainingBatches,
    open_folders,
    open_records,
)
from gluon_amp.training.data.decode import DecodeError
from gluon_amp.training.data.records import MAGIC_BYTES, RecordImages, read_index, record_data
from tests.images import picture, png, record_files, write_folders, write_records

from mxnet import recordio


def opened(folder, name="train"):
    return RecordImages(folder / f"{name}.rec", folder / f"{name}.idx")


def test_records(tmp_path):
    write_records(tmp_path, "train", [0, 1, 2, 0])
    write_records(tmp_path, "val", [2, 1, 0])
    source = open_records(record_files(tmp_path), preprocessing=Preprocessing(35))
    assert (source.train_images, source.val_images, source.classes) == (4, 3, 3)
    assert [int(label) for _, label in (source.val[n] for n in range(3))] == [2, 1, 0]
    image, label = source.train[2]
    assert image.shape == (3, 35, 35) and label == 2


@pytest.mark.parametrize("name", ["train.rec", "train.idx", "val.rec", "val.idx"])
def test_a_missing_file_is_named(tmp_path, name):
    for part in ("train", "val"):
        write_records(tmp_path, part, [0, 1])
    (tmp_path / name).unlink()
    with pytest.raises(DataError, match=f"{name} was not found"):
        open_records(record_files(tmp_path))


@pytest.mark.parametrize(
    "index, message",
    [
        ("0\t0\n1\t20\n", "record at byte [0-9]+ should end at byte 20"),
        ("0\t0\n1\t99999999\n", "no record at byte 99999999"),
        ("cat\tdog\n", "is not an index"),
        ("0\n", "is not an index"),
        ("", "lists no records"),
    ],
)
def test_an_index_that_does_not_match_is_refused(tmp_path, index, message):
    for part in ("train", "val"):
        write_records(tmp_path, part, [0, 1])
    (tmp_path / "train.idx").write_text(index)
    with pytest.raises(DataError, match=message):
        open_records(record_files(tmp_path))


@pytest.mark.parametrize("label", [0.5, -1, float("nan"), float("inf"), 2.0**24, 1e30])
def test_a_label_must_be_a_whole_number(tmp_path, label):
    write_records(tmp_path, "train", [0, label])
    write_records(tmp_path, "val", [0])
    with pytest.raises(DataError, match="record 1 of .*train.rec has the label"):
        open_records(record_files(tmp_path))


def test_record_classes_must_agree(tmp_path):
    write_records(tmp_path, "train", [0, 1, 2])
    write_records(tmp_path, "val", [0, 1])
    with pytest.raises(DataError, match="class 2 is only in .*train.rec"):
        open_records(record_files(tmp_path))


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
    write_records(tmp_path, "train", [0, 0], [b"x" * length, b"y" * 5])
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
def test_data_with_the_magic_number_in_it_is_joined(tmp_path, payload):
    write_records(tmp_path, "train", [0, 0], [payload, b"next"])
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
    """MXIndexedRecordIO has one file position, so several threads would mix up its records."""
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
        write_records(tmp_path, part, [0, 0, 1, 1], [png(picture(n)) for n in (0, 1, 0, 1)])
    folders, packed = (
        open_folders(tmp_path, seed=3, preprocessing=Preprocessing(24)),
        open_records(record_files(tmp_path), seed=3, preprocessing=Preprocessing(24)),
    )
    for source in ("train", "val"):
        for position in (0, 3, 9):
            image, label = getattr(folders, source)[position]
            other, same = getattr(packed, source)[position]
            assert np.array_equal(image.asnumpy(), other.asnumpy()) and label == same


def test_read_index(tmp_path):
    path = tmp_path / "a.idx"
    path.write_text("7\t0\n3\t120\n")
    assert read_index(path).tolist() == [[7, 0], [3, 120]]


@pytest.mark.parametrize("text", ["1 2 3", "1\t1.5", "a\tb", "1\t99999999999999999999", "\0\1\2"])
def test_a_malformed_index_is_refused(tmp_path, text):
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
    with pytest.raises(
        DataError, match=f"train.idx does not fit .*train.rec: .*{message}"
    ) as caught:
        opened(tmp_path).check()
    assert str(caught.value).endswith("so write both again.") and "\n" not in str(caught.value)


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


def test_a_label_that_was_not_checked_is_refused_when_it_is_read(tmp_path, monkeypatch):
    """Of more than RECORDS_CHECKED records only some are checked."""
    monkeypatch.setattr("gluon_amp.training.data.records.RECORDS_CHECKED", 2)
    write_records(tmp_path, "train", [0, 9, 1, 0])
    write_records(tmp_path, "val", [0, 0, 1, 0])
    source = open_records(record_files(tmp_path), preprocessing=Preprocessing(24))
    assert source.classes == 2
    message = "record 1 of .*train.rec has the label 9, but the 2 classes have the labels 0 to 1"
    with pytest.raises(DataError, match=message):
        list(TrainingBatches(source.train, 4).epoch(0))
