"""Archives of numbers: what was written is read, and any other file is one ValueError."""

import contextlib
import io
import itertools
import json
import re
import tracemalloc
import zipfile

import numpy as np
import pytest

from gluon_amp.files import archive
from tests import forging

from mxnet import nd

KIND = archive.Kind("a format", 3, "header.json", "is of another kind: load another file")
ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b/c": np.asfortranarray([[1, 2], [3, 4]]),
    "empty": np.zeros((0, 3)),
    "number": np.array(2.5, np.float16),
    "names": np.array(["é", "bc"]),
    "flags": np.array([True, False]),
    "bytes": np.array([b"x", b"yz"]),
    "complex": np.array([1j]),
    "big_endian": np.array([1.0, 2.0], ">f4"),
}


def whole():
    return bytes(archive.encode(KIND, {"n": [1, None, float("inf")]}, ARRAYS))


def refused(data, match=""):
    with pytest.raises(ValueError, match=match) as caught:
        archive.decode(KIND, data, "file")
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500


def test_what_is_written_is_read():
    header, arrays = archive.decode(KIND, whole(), "file")
    assert header == {"n": [1, None, float("inf")]}
    assert list(arrays) == list(ARRAYS)
    for name, array in arrays.items():
        assert array.dtype == ARRAYS[name].dtype
        assert array.shape == ARRAYS[name].shape
        assert np.array_equal(array, ARRAYS[name])
        assert array.flags.writeable
        assert array.flags.f_contiguous == ARRAYS[name].flags.f_contiguous


def test_files_of_another_kind(tmp_path):
    path = tmp_path / "file"
    for data in (b"", b"PK", b"\x80\x04N.", b"x" * 1000):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="file is of another kind: load another file"):
            archive.read(KIND, path)
    path.write_bytes(whole())
    archive.read(KIND, path)


def test_other_versions():
    data = bytes(archive.encode(KIND._replace(version=4), {}, {}))
    refused(data, "has version 4 of the format, this gluon_amp reads 3")
    refused(forging.with_header(whole(), {}), "version None")
    refused(forging.with_header(whole(), {"version": forging.DEEP, "format": 3}), "version a list")


FORGED_HEADERS = [
    "",
    "[]",
    "[" * 100_000,
    "[" * 10**6 + "]" * 10**6,
    '{"version": 3, "version": 3, "format": "a format"}',
    b"\xff\xfe",
    '{"format": "a format", "version": NaN}',
]


@pytest.mark.parametrize("header", FORGED_HEADERS, ids=itertools.count())
def test_forged_headers(header):
    refused(forging.with_header(whole(), header))


def npy(descr="'<f4'", order="False", shape="(2,)", data=b"\0" * 8, magic=b"\x93NUMPY\x01\x00"):
    header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
    return magic + len(header).to_bytes(2, "little") + header + data


FORGED_ARRAYS = [
    npy("'|O'"),
    npy("[('a', '<f4')]"),
    npy("'<f4', 'x': 1"),
    npy("'<f3'"),
    npy("'<U0'", shape="(999999999999,)", data=b""),
    npy("'<f4'", shape="(3,)"),
    npy(shape="(-2,)"),
    npy(shape="(9999999999999999,)"),
    npy(shape="(" + "1, " * 40 + "2)"),
    npy(shape="(" * 10_000),
    npy(order="__import__('os').system('true')"),
    npy(magic=b"\x93NUMPY\x02\x00"),
    npy("'|b1'", shape="(8,)", data=b"\x02" * 8),
    npy("'<U2'", shape="(1,)", data=b"\xff" * 8),
    b"",
    npy(shape="(0, 2)"),
]


@pytest.mark.parametrize("content", FORGED_ARRAYS, ids=itertools.count())
def test_forged_arrays(content):
    (header, text), *_ = forging.members(whole()).items()
    refused(forging.archive([(header, text), ("a.npy", content)]), "correct checksum and content")


def test_the_forger_can_write_a_valid_file():
    (header, text), *_ = forging.members(whole()).items()
    _, arrays = archive.decode(KIND, forging.archive([(header, text), ("a.npy", npy())]), "file")
    assert arrays["a"].tolist() == [0.0, 0.0]


def test_a_name_that_occurs_twice():
    parts = list(forging.members(whole()).items())
    with pytest.warns(UserWarning, match="Duplicate name"):
        data = forging.archive([*parts, parts[1]])
    refused(data, "the name 'a.npy' occurs twice")


def test_members_of_another_kind():
    parts = list(forging.members(whole()).items())
    refused(forging.archive([*parts, ("a.py", b"1")]), "'a.py' is not an array")
    refused(forging.archive(parts[1:]))
    refused(forging.signed(b"header.json" + b" " * 100))


@contextlib.contextmanager
def little_memory():
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10**6


def test_compressed_members_are_not_inflated():
    parts = list(forging.members(whole()).items())
    data = forging.archive([*parts, ("z.npy", b"\0" * 10**7)], zipfile.ZIP_DEFLATED)
    with little_memory():
        refused(data, "is compressed or larger than the file")


def test_memory_is_not_allocated_for_missing_bytes():
    (header, text), *_ = forging.members(whole()).items()
    huge = npy("'|u1'", shape=f"({2**50},)")
    with little_memory():
        refused(forging.archive([(header, text), ("a.npy", huge)]))


def test_overlapping_members_are_refused():
    """One content under a thousand names, as in some ZIP bombs."""
    (header, text), *_ = forging.members(whole()).items()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(zipfile.ZipInfo(header), text)
        file.writestr(
            zipfile.ZipInfo("0000.npy"), npy("'|u1'", shape="(100000,)", data=b"1" * 10**5)
        )
        first = file.filelist[-1]
        for k in range(1, 1000):
            again = zipfile.ZipInfo(f"{k:04}.npy")
            for name in ("header_offset", "CRC", "file_size", "compress_size"):
                setattr(again, name, getattr(first, name))
            file.filelist.append(again)
        file.comment = b" " * 64
    # The second message is Python's own, in later patches of each version.
    refused(
        forging.signed(buffer.getvalue()),
        "is compressed or larger than the file|Overlapped entries",
    )


def test_random_bytes_in_a_signed_file():
    data, random = whole(), np.random.RandomState(5)
    read = 0
    for _ in range(400):
        wrong = bytearray(data)
        for _ in range(random.randint(1, 4)):
            wrong[random.randint(len(data) - 64)] = random.randint(256)
        try:
            archive.decode(KIND, forging.signed(bytes(wrong)), "file")
            read += 1
        except ValueError as error:
            assert "\n" not in str(error)
    assert read < 120  # times and flags of the ZIP format, which nothing reads


def test_random_cuts_in_a_signed_file():
    data, random = whole(), np.random.RandomState(6)
    for _ in range(100):
        begin, end = sorted(random.randint(len(data) - 64, size=2))
        if begin < end:
            refused(forging.signed(data[:begin] + data[end:]))


# ------------------------------------------------------------------------------- values as JSON


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: (v,), lambda v: {"k": v}])
def test_depth_is_limited_on_both_sides(wrap):
    value = 1
    for _ in range(archive.MAX_DEPTH):
        value = wrap(value)
    packed = archive.pack(value, {}, "extra")
    assert archive.unpack(json.loads(json.dumps(packed)), {}) == value
    with pytest.raises(ValueError, match="extra holds lists or dicts more than 64 deep"):
        archive.pack(wrap(value), {}, "extra")
    endless = []
    endless.append(endless)
    with pytest.raises(ValueError, match=r"extra holds lists or dicts more than 64 deep .* save"):
        archive.pack(endless, {}, "extra['thing']")
    deeper = {"dict": [["k", packed]]} if isinstance(value, dict) else [packed]
    with pytest.raises(ValueError, match="more than 64 deep"):
        archive.unpack(deeper, {})


@pytest.mark.parametrize(
    "packed",
    [
        {"dict": 3},
        {"dict": [[1, 2, 3]]},
        {"dict": [[{"dict": []}, 1]]},
        {"dict": [[1, 2], [1, 3]]},
        {"tuple": 3},
        {"array": "nothing"},
        {"array": None},
        {"scalar": "a"},
        {"call": "os.system"},
        {"dict": [], "tuple": []},
    ],
    ids=str,
)
def test_unknown_objects(packed):
    assert archive.unpack([{"dict": []}, {"tuple": []}], {}) == [{}, ()]
    with pytest.raises(ValueError, match=r"^(a dict|an object) has|^an object is"):
        archive.unpack(packed, {"a": np.ones(2)})


@pytest.mark.parametrize(
    "value, hint",
    [(object(), "is a builtins.object, which a checkpoint"), (nd.ones(1), "call .asnumpy()")],
    ids=["object", "NDArray"],
)
def test_other_values_cannot_be_saved(value, hint):
    with pytest.raises(TypeError, match=re.escape(hint)):
        archive.pack({"x": value}, {}, "extra")


def test_values_of_all_kinds_are_read_as_they_were():
    value = {"a": [1, (None, True)], 2: np.float32(0.5), "n": np.arange(3), (1, "k"): "text"}
    arrays = {}
    packed = json.loads(json.dumps(archive.pack(value, arrays, "extra")))
    result = archive.unpack(packed, arrays)
    assert result.pop("n").tolist() == [0, 1, 2] and type(result[2]) is np.float32
    value.pop("n")
    assert result == value
