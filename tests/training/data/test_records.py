"""Record files: reading what MXNet writes, and indices that do not match."""

import struct
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gluon_amp.training.data import DataError, Preprocessing, TrainingBatches, open_records
from gluon_amp.training.data.decode import DecodeError
from gluon_amp.training.data.records import MAGIC_BYTES, RecordImages, read_index, record_data
from tests.images import picture, png, record_files, write_records
from tests.training.data.refusal import refusal

from mxnet import recordio


def opened(folder):
    return RecordImages(folder / "train.rec", folder / "train.idx")


@pytest.mark.parametrize("name", ["train.rec", "val.idx"])
def test_a_missing_file_is_named(tmp_path, name):
    for part in ("train", "val"):
        write_records(tmp_path, part, [0, 1])
    (tmp_path / name).unlink()
    assert f"{name} was not found" in refusal(open_records, record_files(tmp_path))


@pytest.mark.parametrize("label", [0.5, -1, float("nan"), 2.0**24])
def test_a_label_must_be_a_whole_number(tmp_path, label):
    write_records(tmp_path, "train", [0, label])
    message = refusal(opened(tmp_path).check)
    assert message.startswith(f"record 1 of {tmp_path}/train.rec has the label ")


def test_several_labels_are_refused(tmp_path):
    records = recordio.MXIndexedRecordIO(
        str(tmp_path / "train.idx"), str(tmp_path / "train.rec"), "w"
    )
    header = recordio.IRHeader(0, np.array([1.0, 2.0], np.float32), 0, 0)
    records.write_idx(0, recordio.pack(header, png(picture(0))))
    records.close()
    assert "train.rec has 2 labels, expected one whole" in refusal(opened(tmp_path).check)


def test_record_classes_must_agree(tmp_path):
    write_records(tmp_path, "train", [0, 1, 2])
    write_records(tmp_path, "val", [0, 1])
    assert "class 2 is only in train.rec" in refusal(open_records, record_files(tmp_path))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"x",
        MAGIC_BYTES * 3,
        b"abc" + MAGIC_BYTES,  # not aligned, so left in one piece
        b"abcd" + MAGIC_BYTES + b"efgh" + MAGIC_BYTES + b"ij",
    ],
)
def test_padding_is_left_out_and_data_with_the_magic_number_is_joined(tmp_path, payload):
    write_records(tmp_path, "train", [0, 0], [payload, b"next"])
    images = opened(tmp_path)
    assert images.check() == {0}
    assert images.read(0) == (payload, 0) and images.read(1) == (b"next", 0)


@pytest.mark.parametrize(
    "record",
    [
        MAGIC_BYTES,
        b"\0" * 8,
        MAGIC_BYTES + struct.pack("<I", 5) + b"abcd",
        MAGIC_BYTES + struct.pack("<I", (1 << 29) + 4) + b"abcd",
    ],
    ids=["no length", "no magic number", "cut short", "no last part"],
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
    assert [images.read(n) for n in range(4)] == [(png(picture(n)), n) for n in (3, 2, 1, 0)]
    assert images.name(0) == f"record 3 of {tmp_path}/train.rec"


def test_many_threads_read_at_once(tmp_path):
    """MXIndexedRecordIO has one file position, so several threads would mix up its records."""
    write_records(tmp_path, "train", range(20))
    images, order = opened(tmp_path), [*range(20)] * 300
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # seconds
    try:
        with ThreadPoolExecutor(4) as pool:
            read = list(pool.map(images.read, order))
    finally:
        sys.setswitchinterval(before)
    assert read == [(png(picture(n)), n) for n in range(20)] * 300


@pytest.mark.parametrize("text", ["1 2 3", "1\t1.5", "1\t99999999999999999999"])
def test_a_malformed_index_is_refused(tmp_path, text):
    path = tmp_path / "a.idx"
    path.write_text(text)
    assert refusal(read_index, path) == (
        f"{path} is not an index: expected lines of a key, a tab, and an offset."
    )


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda lines: lines[:-1], "the record at byte [0-9]+ is not listed"),
        (lambda lines: [lines[0], *lines[2:]], "the record at byte [0-9]+ is not listed"),
        (lambda lines: [*lines, "9\t99999999\n"], "there is no record at byte 99999999"),
        (lambda lines: [*lines, "9\t-4\n"], "there is no record at byte -4"),
        (lambda lines: [*lines, "9\t40\n"], "should end at byte 40"),
        (lambda lines: ["0\t4\n", *lines[1:]], "there is no record at byte 4"),
        (lambda lines: [], "lists no records"),
    ],
    ids=["short", "gap", "beyond the end", "before the start", "inside", "shifted", "empty"],
)
def test_an_index_of_other_records_is_refused(tmp_path, change, message):
    write_records(tmp_path, "train", range(4))
    index = tmp_path / "train.idx"
    index.write_text("".join(change(index.read_text().splitlines(keepends=True))))
    with pytest.raises(DataError, match=message):
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
