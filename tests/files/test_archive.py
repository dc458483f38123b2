"""Archives of numbers: what was written is read, and any other file is one ValueError."""

import contextlib
import io
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
WHOLE = bytes(archive.encode(KIND, {"n": [1, None, float("inf")]}, ARRAYS))
HEADER, *OTHERS = forging.members(WHOLE).items()


def refused(data, match=""):
    with pytest.raises(ValueError, match=match) as caught:
        archive.decode(KIND, data, "file")
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500


def test_what_is_written_is_read():
    header, arrays = archive.decode(KIND, WHOLE, "file")
    assert header == {"n": [1, None, float("inf")]}
    assert list(arrays) == list(ARRAYS)
    for name, array in arrays.items():
        assert (array.dtype, array.shape) == (ARRAYS[name].dtype, ARRAYS[name].shape)
        assert np.array_equal(array, ARRAYS[name])
        assert array.flags.writeable
        assert array.flags.f_contiguous == ARRAYS[name].flags.f_contiguous


def test_files_of_another_kind_or_version(tmp_path):
    path = tmp_path / "file"
    for data in (b"", b"PK", b"\x80\x04N.", b"x" * 1000):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="file is of another kind: load another file"):
            archive.read(KIND, path)
    path.write_bytes(WHOLE)
    archive.read(KIND, path)
    data = bytes(archive.encode(KIND._replace(version=4), {}, {}))
    refused(data, "has version 4 of the format, this gluon_amp reads 3")
    refused(forging.with_header(WHOLE, {}), "version None")


@pytest.mark.parametrize(
    "header",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"version": 3, "version": 3, "format": "a format"}',
        b"\xff\xfe",
        '{"format": "a format", "version": NaN}',
        '{"format": "a format", "version": [[]]}',
    ],
    ids=range(7),
)
def test_forged_headers(header):
    refused(forging.with_header(WHOLE, header))


def npy(descr="'<f4'", order="False", shape="(2,)", data=b"\0" * 8, magic=b"\x93NUMPY\x01\x00"):
    header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
    return magic + len(header).to_bytes(2, "little") + header + data


def with_array(content):
    return forging.archive([HEADER, ("a.npy", content)])


def test_forged_arrays():
    _, arrays = archive.decode(KIND, with_array(npy()), "file")
    assert arrays["a"].tolist() == [0.0, 0.0]  # the forger can write a valid file
    for content in (
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
        npy(shape="(0, 2)"),
        npy(order="__import__('os').system('true')"),
        npy(magic=b"\x93NUMPY\x02\x00"),
        npy("'|b1'", shape="(8,)", data=b"\x02" * 8),
        npy("'<U2'", shape="(1,)", data=b"\xff" * 8),
        b"\x93NUMPY\x01\x00\xff\xff" + npy()[10:],
        b"",
    ):
        refused(with_array(content), "correct checksum and content")


@contextlib.contextmanager
def little_memory():
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10**6


def test_forged_members():
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = forging.archive([HEADER, *OTHERS, OTHERS[0]])
    refused(twice, "the name 'a.npy' occurs twice")
    refused(forging.archive([HEADER, ("a.py", b"1")]), "'a.py' is not an array")
    refused(forging.archive(OTHERS))
    refused(forging.signed(b"header.json" + b" " * 100))
    deflated = forging.archive([HEADER, ("z.npy", b"\0" * 10**7)], zipfile.ZIP_DEFLATED)
    with little_memory():
        refused(deflated, "is compressed or larger than the file")
        refused(with_array(npy("'|u1'", shape=f"({2**50},)")))


def test_overlapping_members_are_refused():
    """One content under a thousand names, as in some ZIP bombs."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(zipfile.ZipInfo(HEADER[0]), HEADER[1])
        content = npy("'|u1'", shape="(100000,)", data=b"1" * 10**5)
        file.writestr(zipfile.ZipInfo("0000.npy"), content)
        first = file.filelist[-1]
        for k in range(1, 1000):
            again = zipfile.ZipInfo(f"{k:04}.npy")
            for name in ("header_offset", "CRC", "file_size", "compress_size"):
                setattr(again, name, getattr(first, name))
            file.filelist.append(again)
        file.comment = b" " * 64
    # The second message is Python's own, in later patches of each version.
    refused(forging.signed(buffer.getvalue()), "compressed or larger than the file|Overlapped")


def test_random_damage_of_a_signed_file():
    random, read = np.random.RandomState(5), 0
    for _ in range(300):
        wrong = bytearray(WHOLE)
        for _ in range(random.randint(1, 4)):
            wrong[random.randint(len(WHOLE) - 64)] = random.randint(256)
        try:
            archive.decode(KIND, forging.signed(bytes(wrong)), "file")
            read += 1
        except ValueError as error:
            assert "\n" not in str(error)
    assert read < 90  # times and flags of the ZIP format, which nothing reads


# ------------------------------------------------------------------------------- values as JSON


def test_values_of_all_kinds_are_read_as_they_were():
    value = {"a": [1, (None, True)], 2: np.float32(0.5), "n": np.arange(3), (1, "k"): "text"}
    arrays = {}
    packed = json.loads(json.dumps(archive.pack(value, arrays, "extra")))
    result = archive.unpack(packed, arrays)
    assert result.pop("n").tolist() == [0, 1, 2] and type(result[2]) is np.float32
    value.pop("n")
    assert result == value
    for other, hint in ((object(), "is a builtins.object, which a"), (nd.ones(1), ".asnumpy()")):
        with pytest.raises(TypeError, match=re.escape(hint)):
            archive.pack({"x": other}, {}, "extra")


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: (v,), lambda v: {"k": v}])
def test_depth_is_limited_on_both_sides(wrap):
    value = 1
    for _ in range(archive.MAX_DEPTH):
        value = wrap(value)
    packed = archive.pack(value, {}, "extra")
    assert archive.unpack(json.loads(json.dumps(packed)), {}) == value
    with pytest.raises(ValueError, match=r"extra holds lists or dicts more than 64 deep .* save"):
        archive.pack(wrap(value), {}, "extra['thing']")
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
    with pytest.raises(ValueError, match=r"^(a dict|an object) has|^an object is"):
        archive.unpack(packed, {"a": np.ones(2)})
