"""PyTorch's files: what was written is read, nothing is executed, and any other is a ValueError."""

import tracemalloc
import zipfile

import numpy as np
import pytest

from gluon_amp.files import torch_file
from tests.torch_files import (
    WRITERS,
    archive,
    as_legacy,
    legacy_of,
    number,
    state_dict,
    storage,
    tensor,
    text,
)

ONES = np.ones((2, 3), np.float32)
ARRAYS = {
    "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "half": np.array([0.5, -2], np.float16),
    "empty": np.zeros((0, 3), np.float32),
    "counter": np.array(7),
}


def read(tmp_path, data):
    path = tmp_path / "weights.pth"
    path.write_bytes(data)
    assert torch_file.is_torch_file(path)
    return torch_file.read(path)


def refused(tmp_path, data, match=""):
    with pytest.raises(ValueError, match=match) as caught:
        read(tmp_path, data)
    message = str(caught.value)
    assert message.startswith(str(tmp_path)) and message.endswith("...)`.")
    assert "\n" not in message and len(message) < 500


@pytest.mark.parametrize("layout", WRITERS)
def test_what_was_written_is_read_and_damage_is_one_sentence(tmp_path, layout):
    data = WRITERS[layout](ARRAYS)
    result = read(tmp_path, data)
    assert list(result) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert result[name].dtype == array.dtype and np.array_equal(result[name], array)
    for end in range(5, len(data), 19):
        refused(tmp_path, data[:end])
    path, random = tmp_path / "weights.pth", np.random.RandomState(0)
    for _ in range(150):
        changed = bytearray(data)
        for position in random.randint(4, len(data), 2):
            changed[position] = random.randint(256)
        path.write_bytes(changed)
        try:
            assert all(isinstance(array, np.ndarray) for array in torch_file.read(path).values())
        except ValueError as error:
            assert str(error).startswith(str(path))


def test_a_tensor_may_be_a_part_of_its_storage_and_transposed(tmp_path):
    values = np.arange(10, dtype=np.float32)
    part = tensor(values, "0", offset=2, shape=[2, 3], strides=[1, 2])
    data = archive({"data.pkl": state_dict({"w": part}), "data/0": values.tobytes()})
    assert read(tmp_path, data)["w"].tolist() == [[2, 4, 6], [3, 5, 7]]


def zip_of(value, **members):
    """Return a file with one tensor, of these opcodes."""
    return archive({"data.pkl": state_dict({"w": value}), "data/0": ONES.tobytes(), **members})


@pytest.mark.parametrize(("value", "reason"), [
    (tensor(ONES, "0", offset=1), "6 numbers lies outside"),
    (tensor(ONES, "0", strides=[2**40, 1]), "lies outside"),
    (tensor(ONES, "0", offset=-1), "a tensor"),
    (tensor(ONES, "0", strides=[-3, 1]), "a tensor"),
    (tensor(ONES, "0", shape=[2**50, 3], strides=[0, 1]), "lies outside"),
    (tensor(ONES, "0", strides=[3]), "2 dimensions and 1 strides"),
    (tensor(np.broadcast_to(np.float32(1), (2**20,)), "0"), "bytes"),
    (tensor(ONES, "../data.pkl"), "KeyError|data.pkl"),
    (tensor(ONES, "0", view=b"}"), "part of another"),
    (storage(ONES, "0"), "'w' is not a tensor"),
    (text("x"), "'w' is not a tensor"),
    (tensor(ONES, "0").replace(b"torch\nFloat", b"torch\nNo"), "it names 'torch.NoStorage'"),
    (number(0) + b"Q", "not a tuple of 5"),
])  # fmt: skip
def test_forged_tensors(tmp_path, value, reason):
    refused(tmp_path, zip_of(value), reason)


def test_a_huge_claim_takes_no_memory(tmp_path):
    huge = tensor(np.broadcast_to(np.float32(1), (2**33,)), "0", strides=[1])
    data = legacy_of(state_dict({"w": huge}), {"0": (2**33).to_bytes(8, "little") + bytes(40)})
    tracemalloc.start()
    refused(tmp_path, zip_of(huge), "the storage of 'w' has 24 bytes")
    refused(tmp_path, data, "the storage of 'w' has")
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (archive({"other": b""}), "it has no data.pkl"),
        (archive({"data.pkl": b"\x80\x02]."}), "it holds no dict of tensors"),
        (archive({"data.pkl": b"\x80\x02}."}, zipfile.ZIP_DEFLATED), "compressed"),
        (zip_of(tensor(ONES, "0"), byteorder=b"big"), "big-endian"),
        (as_legacy(ARRAYS).replace(b"\x88u.", b"\x89u."), "big-endian"),
    ],
    ids=range(5),  # archives hold the time
)
def test_other_files(tmp_path, data, reason):
    refused(tmp_path, data, reason)
    (tmp_path / "net.params").write_bytes(b"\x12\x01")
    assert not torch_file.is_torch_file(tmp_path / "net.params")
