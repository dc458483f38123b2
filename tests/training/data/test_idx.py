"""Idx files: what is read, and what is refused in one sentence."""

import gzip
import struct

import numpy as np
import pytest

from gluon_amp.training.data.idx import MAX_ITEMS, read_idx
from tests.idx_files import idx
from tests.training.data.refusal import refusal

# two images of 2×3 pixels
IMAGES = bytes.fromhex("00000803 00000002 00000002 00000003 000102030405 0a0b0c0d0e0f")
LABELS = bytes.fromhex("00000801 00000003 070009")
HEADER = 16  # bytes before the pixels


@pytest.fixture
def path(tmp_path):
    return tmp_path / "images"


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_images_and_labels(path, pack):
    path.write_bytes(pack(IMAGES))
    images = read_idx(path, (2, 3))
    assert images.dtype == np.uint8
    assert images.tolist() == [[[0, 1, 2], [3, 4, 5]], [[10, 11, 12], [13, 14, 15]]]
    path.write_bytes(pack(LABELS))
    assert read_idx(path, ()).tolist() == [7, 0, 9]


def forged(offset, data):
    return IMAGES[:offset] + data + IMAGES[offset + len(data) :]


REFUSED = [
    (IMAGES[: HEADER - 1], "it has 15 bytes, fewer than its header"),
    (forged(0, b"\1"), "it begins with 01000803, expected 00000803"),
    (forged(2, b"\x0d"), "it begins with 00000d03, expected 00000803"),  # float32
    (LABELS + IMAGES, "it begins with 00000801, expected 00000803"),
    (forged(8, struct.pack(">I", 3)), "its items have 3×3 values, not 2×3"),
    (forged(4, struct.pack(">I", 0)), "its header says 0 items, expected 1 to 1000000"),
    (forged(4, b"\xff" * 4), "its header says 4294967295 items, expected 1 to 1000000"),
    (IMAGES[:-1], "its header says 12 values, but it has only 11"),
    (IMAGES + b"\0", "its header says 12 values, but it has more"),
]


@pytest.mark.parametrize("content, reason", REFUSED)
def test_other_content_is_refused(path, content, reason):
    for pack in (bytes, gzip.compress):
        path.write_bytes(pack(content))
        message = refusal(read_idx, path, (2, 3))
        assert message.startswith(f"{path} is not the expected idx file: ") and reason in message


@pytest.mark.parametrize("damage", [slice(1), slice(12), slice(-1), 60])
def test_damaged_compressed_bytes_are_refused(path, damage):
    whole = bytearray(gzip.compress(idx(np.arange(6 * 50).reshape(50, 2, 3) % 251)))
    if isinstance(damage, slice):
        whole = whole[damage]
    else:
        whole[damage] ^= 0x10
    path.write_bytes(whole)
    assert str(path) in refusal(read_idx, path, (2, 3))


def test_a_file_that_expands_a_thousandfold_is_not_expanded(path, monkeypatch):
    claimed = struct.pack(">HBB3I", 0, 8, 3, 4, 2, 3)
    path.write_bytes(gzip.compress(claimed + bytes(5_000_000)))
    assert path.stat().st_size < 100_000
    read, original = [], gzip.GzipFile.read

    def counted(self, size=-1):
        read.append(size)
        return original(self, size)

    monkeypatch.setattr(gzip.GzipFile, "read", counted)
    assert "its header says 24 values, but it has more" in refusal(read_idx, path, (2, 3))
    assert read == [HEADER, 25]
    assert MAX_ITEMS * 28 * 28 < 2**30  # what any header can make it read
