"""Downloads from mirrors that fail, and archives that must not be extracted."""

import hashlib
import http.server
import io
import os
import subprocess
import sys
import tarfile
import zipfile

import numpy as np
import pytest

from gluon_amp.training.data.prepare import downloads, progress
from gluon_amp.training.data.prepare.downloads import (
    CHUNK,
    DownloadError,
    download,
    extract,
    md5_of,
)
from gluon_amp.training.data.source import DataError
from tests.training.data.prepare.serving import serve
from tests.training.data.refusal import refusal

DATA = bytes(range(256)) * 12_000  # 3 MB: more than one block
SENT = 17 * CHUNK  # bytes that arrive before the connection breaks
MD5 = hashlib.md5(DATA).hexdigest()
CLOSED = "http://127.0.0.1:9/file"  # no server listens on this port


class Mirror(http.server.BaseHTTPRequestHandler):
    """Serves DATA in the way that the path names."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.seen.append((self.path, self.headers["Range"]))
        self.server.encodings.add(self.headers["Accept-Encoding"])
        getattr(self, self.path[1:].partition("/")[0])()

    def log_message(self, *_):
        pass

    def reply(self, status, body, length=None, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)
        if length is not None:
            self.close_connection = True

    def start(self):
        return int((self.headers["Range"] or "bytes=0-")[6:-1])

    def ranges(self):
        start = self.start()
        if start >= len(DATA):
            return self.reply(416, b"")
        return self.reply(206 if start else 200, DATA[start:])

    def breaking(self):
        """Send at most a third, then close the connection."""
        start = self.start()
        self.reply(206 if start else 200, DATA[start : start + SENT], len(DATA) - start)

    def stuck(self):
        self.reply(200, b"", len(DATA))

    def whole(self):
        self.reply(200, DATA)

    def other(self):
        self.reply(200, b"other")

    def page(self):
        self.reply(200, b"<html>", Content_Type="text/html; charset=utf-8")

    def busy(self):
        if len(self.server.seen) < 3:
            return self.reply(503, b"")
        return self.reply(200, DATA)

    def overloaded(self):
        self.reply(503, b"")

    def moved(self):
        self.reply(302, b"", Location="/ranges")

    def missing(self):
        self.reply(404, b"")


@pytest.fixture
def mirror():
    with serve(Mirror) as server:
        server.seen, server.encodings = [], set()
        yield server


@pytest.fixture
def get(mirror, tmp_path):
    """Download from paths of the mirror or from URLs, without waiting between attempts."""

    def get(*paths, md5=MD5, retries=5):
        urls = [path if "://" in path else f"{mirror.url}/{path}" for path in paths]
        download(urls, tmp_path / "sub" / "file", md5, retries=retries, backoff=0)

    return get


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sub" / "file"


def begin(path, data):
    path.parent.mkdir()
    path.with_name("file.part").write_bytes(data)


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# ------------------------------------------------------------------------------------- downloading


def test_downloads_uncompressed(get, mirror, path):
    get("ranges")
    assert path.read_bytes() == DATA
    assert files(path.parent) == ["file"]
    assert mirror.seen == [("/ranges", None)]
    assert mirror.encodings == {"identity"}


def test_follows_redirections(get, path):
    get("moved")
    assert path.read_bytes() == DATA


def test_first_mirror_is_dead(get, mirror, path):
    get(CLOSED, "missing", "page", "ranges", retries=0)
    assert path.read_bytes() == DATA
    assert [seen for seen, _ in mirror.seen] == ["/missing", "/page", "/ranges"]


@pytest.mark.parametrize(
    ("existing", "server", "ranges"),
    [
        (DATA[:1_234_567], "ranges", ["bytes=1234567-"]),
        (b"x" * 5000, "whole", ["bytes=5000-"]),
        (b"x" * 5000, "ranges", ["bytes=5000-", None]),
    ],
    ids=["is resumed", "starts again without ranges", "starts again if its bytes differ"],
)
def test_an_earlier_download(get, mirror, path, existing, server, ranges):
    begin(path, existing)
    get(server)
    assert path.read_bytes() == DATA
    assert mirror.seen == [(f"/{server}", one) for one in ranges]


@pytest.mark.parametrize("existing", [DATA, DATA + b"x"], ids=["whole", "too long"])
def test_all_bytes_exist_already(get, mirror, path, existing):
    begin(path, existing)
    get("ranges")
    assert path.read_bytes() == DATA
    assert len(mirror.seen) == (1 if existing == DATA else 2)


def test_resumes_after_the_connection_broke(get, mirror, path):
    get("breaking")
    assert path.read_bytes() == DATA
    starts = [int((seen or "bytes=0-")[6:-1]) for _, seen in mirror.seen]
    assert starts == [0, SENT, 2 * SENT]


def test_a_download_without_progress_is_stopped(get, mirror, path):
    with pytest.raises(DownloadError) as caught:
        get("stuck")
    assert str(caught.value) == (
        f"file could not be downloaded: {mirror.url}/stuck: the connection breaks."
    )
    assert len(mirror.seen) == 1
    assert files(path.parent) == []


def test_received_bytes_are_kept_for_the_next_run(get, mirror, path):
    with pytest.raises(DownloadError) as caught:
        get("breaking", retries=1)
    assert str(caught.value) == (
        f"file could not be downloaded: {mirror.url}/breaking: the connection breaks again and "
        "again."
    )
    assert path.with_name("file.part").read_bytes() == DATA[: 2 * SENT]
    get("ranges")
    assert path.read_bytes() == DATA


def test_a_request_to_a_busy_mirror_is_repeated(get, mirror, path):
    get("busy")
    assert path.read_bytes() == DATA
    assert len(mirror.seen) == 3


def test_the_message_has_the_reason_of_each_mirror(get, mirror, path):
    with pytest.raises(DownloadError) as caught:
        get(CLOSED, "missing", "page", "overloaded", "other", retries=1)
    assert str(caught.value) == (
        f"file could not be downloaded: {CLOSED}: Failed to establish a new connection: "
        f"[Errno 111] Connection refused; {mirror.url}/missing: 404 Not Found; "
        f"{mirror.url}/page: the response is a web page; "
        f"{mirror.url}/overloaded: 503 Service Unavailable; "
        f"{mirror.url}/other: its md5 is 795f3202b17cb6bc3d4b771d8c6c9eaf, expected {MD5}."
    )
    assert files(path.parent) == []


def test_two_processes_do_not_write_one_file(get, mirror, path):
    begin(path, DATA[:10])
    part = path.with_name("file.part")
    lock = "import fcntl, sys; file = open(sys.argv[1], 'ab'); fcntl.flock(file, fcntl.LOCK_EX)"
    other = subprocess.Popen(
        [sys.executable, "-c", f"{lock}; print('locked', flush=True); sys.stdin.read()", str(part)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(DataError, match=f"^another process is downloading {part}: wait for it"):
            get("ranges")
    finally:
        other.communicate(timeout=30)
    assert not mirror.seen
    get("ranges")


def test_missing_packages(get, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(progress, "tqdm", None)
    message = refusal(md5_of, tmp_path / "file")
    assert message == "tqdm is not installed: run `pip install 'gluon-amp[data]'`."
    monkeypatch.setattr(downloads, "requests", None)
    assert refusal(get, "ranges") == (
        "downloads need requests, which is not installed: run `pip install 'gluon-amp[data]'`."
    )


def test_md5_of_blocks(tmp_path):
    (tmp_path / "file").write_bytes(DATA)
    assert md5_of(tmp_path / "file") == MD5


# -------------------------------------------------------------------------------------- extracting


def entry(name, data=b"data", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(data) if fields.get("type", tarfile.REGTYPE) == tarfile.REGTYPE else 0
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def tar_bytes(*entries, mode="w"):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def zip_bytes(**contents):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped:
        for name, data in contents.items():
            zipped.writestr(name, data)
    return file.getvalue()


GOOD = (
    entry("top", type=tarfile.DIRTYPE, mode=0o700),
    entry("top/a.jpg", DATA),
    entry("top/deep/b.jpg", b"b", mode=0o4777),
    entry("./top/./c.jpg", b"c"),
    entry("top/empty/inside", type=tarfile.DIRTYPE),
)
EXTRACTED = ["top", "top/a.jpg", "top/c.jpg", "top/deep", "top/deep/b.jpg", "top/empty"]
EXTRACTED += ["top/empty/inside"]


def unpack(folder, data, inner=None):
    """Extract an archive of these bytes."""
    (folder / "archive").write_bytes(data)
    extract(folder / "archive", folder / "out", inner)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_tar(tmp_path, mode):
    unpack(tmp_path, tar_bytes(*GOOD, mode=mode))
    assert files(tmp_path / "out") == EXTRACTED
    assert (tmp_path / "out/top/a.jpg").read_bytes() == DATA
    assert not (tmp_path / "out/top/deep/b.jpg").stat().st_mode & 0o4111
    assert files(tmp_path)[0] == "archive"


def test_zip(tmp_path):
    unpack(tmp_path, zip_bytes(**{"top/a": DATA, "top/dir/": b"", "b": b"b"}))
    assert files(tmp_path / "out") == ["b", "top", "top/a", "top/dir"]
    assert (tmp_path / "out/top/a").read_bytes() == DATA


def test_tar_in_zip(tmp_path):
    inner = tar_bytes(*GOOD, mode="w:gz")
    unpack(tmp_path, zip_bytes(**{"c/x.tar.gz": inner, "c/notes.m": b"no"}), inner="c/x.tar.gz")
    assert files(tmp_path / "out") == EXTRACTED
    assert (tmp_path / "out/top/a.jpg").read_bytes() == DATA


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (entry("../evil"), "../evil leads outside the folder it is extracted to"),
        (entry("top/../../evil"), "top/../../evil leads outside the folder it is extracted to"),
        (entry("/tmp/evil"), "/tmp/evil leads outside the folder it is extracted to"),
        (entry("..\\evil"), "..\\evil leads outside the folder it is extracted to"),
        (entry("../dir", type=tarfile.DIRTYPE), "../dir leads outside the folder"),
        (entry("l", type=tarfile.SYMTYPE, linkname="/etc"), "l is a link or a device"),
        (entry("l", type=tarfile.LNKTYPE, linkname="top/a.jpg"), "l is a link or a device"),
        (entry("fifo", type=tarfile.FIFOTYPE), "fifo is a link or a device"),
        (entry("null", type=tarfile.CHRTYPE), "null is a link or a device"),
    ],
)
def test_unsafe_tar(tmp_path, bad, why):
    root = tmp_path / "a" / "b"
    root.mkdir(parents=True)
    (root / "archive.tar").write_bytes(tar_bytes(*GOOD, bad))
    message = refusal(extract, root / "archive.tar", root / "out")
    assert message.startswith(f"{root}/archive.tar is not safe to extract: {why}")
    assert files(tmp_path) == ["a", "a/b", "a/b/archive.tar"]


def test_a_link_is_refused_before_anything_is_written_through_it(tmp_path):
    link = entry("top", type=tarfile.SYMTYPE, linkname=str(tmp_path / "victim"))
    (tmp_path / "victim").mkdir()
    with pytest.raises(DataError, match="top is a link or a device"):
        unpack(tmp_path, tar_bytes(link, entry("top/evil")))
    assert files(tmp_path) == ["archive", "victim"]


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "..\\evil"])
def test_unsafe_zip(tmp_path, name):
    assert refusal(unpack, tmp_path, zip_bytes(**{"a": b"", name: b"evil"})) == (
        f"{tmp_path}/archive is not safe to extract: {name} leads outside the folder it is "
        "extracted to."
    )
    assert files(tmp_path) == ["archive"]


def test_link_in_a_zip(tmp_path):
    info = zipfile.ZipInfo("link")
    info.external_attr = 0o120777 << 16
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped:
        zipped.writestr(info, "/etc")
    with pytest.raises(DataError, match="link is a link or a device"):
        unpack(tmp_path, file.getvalue())
    assert files(tmp_path) == ["archive"]


def test_unsafe_tar_in_a_zip(tmp_path):
    inner = tar_bytes(entry("../evil"))
    with pytest.raises(DataError, match="not safe to extract: ../evil leads outside"):
        unpack(tmp_path, zip_bytes(inner=inner), inner="inner")
    assert files(tmp_path) == ["archive"]


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"no archive at all",
        tar_bytes(*GOOD)[:-2_000_000],
        tar_bytes(*GOOD, mode="w:gz")[:3000],
        zip_bytes(a=DATA)[:-10],
        zip_bytes(a=DATA).replace(DATA[:100], b"x" * 100, 1),
    ],
    ids=["empty", "text", "tar", "tar.gz", "zip", "zip with other bytes"],
)
def test_damaged_archive(tmp_path, damaged):
    message = refusal(unpack, tmp_path, damaged)
    assert message.startswith(f"{tmp_path}/archive is damaged or not an archive (")
    assert message.endswith("): remove it and download it again.")
    assert files(tmp_path) == ["archive"]


SMALL = tuple(entry(f"top/{number}", bytes([number]) * 2000) for number in range(8))


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz", "zip"])
def test_a_flipped_bit_never_changes_a_file_silently(tmp_path, mode):
    def contents():
        paths = (tmp_path / "out").rglob("*")
        return {path.name: path.read_bytes() for path in paths if path.is_file()}

    if mode == "zip":
        whole = zip_bytes(**{f"top/{number}": bytes([number]) * 2000 for number in range(8)})
    else:
        whole = tar_bytes(*SMALL, mode=mode)
    archive, random, damaged = tmp_path / "archive", np.random.default_rng(0), 0
    archive.write_bytes(whole)
    extract(archive, tmp_path / "out")
    expected = contents()
    assert len(expected) == 8
    for _ in range(100):
        data = bytearray(whole)
        data[random.integers(len(data))] ^= 1 << random.integers(8)
        archive.write_bytes(data)
        try:
            extract(archive, tmp_path / "out")
        except DataError as error:
            assert str(error).startswith(str(archive)) and "\n" not in str(error)
            damaged += 1
        else:  # a bit without effect, for example of a time
            assert contents() == expected
    assert damaged > 50


def test_a_damaged_header_in_the_middle_is_not_the_end(tmp_path):
    data = bytearray(tar_bytes(*SMALL))
    for header in (512 * 5, 512 * 10):  # of the second and third file: five blocks each
        broken = data.copy()
        broken[header] ^= 1
        with pytest.raises(DataError, match=f"is damaged .* at byte {header}"):
            unpack(tmp_path, broken)
    data[512 * 5 : 512 * 7] = bytes(1024)  # as at the end
    with pytest.raises(DataError, match="there are bytes after its end"):
        unpack(tmp_path, data)
    assert files(tmp_path) == ["archive"]


LONG = "x" * 300


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ([entry("a", b"1"), entry("a/b", b"2")], "holds a/b both as a file and as a folder."),
        ([entry("a/b", b"2"), entry("a", b"1")], "holds a both as a file and as a folder."),
        ([entry("a", b"1"), entry("a", type=tarfile.DIRTYPE)], "holds a both as a file and as"),
        ([entry(".", b"1")], "holds . both as a file and as a folder."),
        ([entry(LONG, b"1")], f"is too long for this file system: {'x' * 99}…."),
        ([entry(f"a/{LONG}/b", b"1")], f"is too long for this file system: a/{'x' * 97}…."),
    ],
)
def test_impossible_names_are_one_sentence(tmp_path, members, sentence):
    as_zip = {info.name + "/" * info.isdir(): data for info, data in members}
    for archive in (tar_bytes(*members), zip_bytes(**as_zip)):
        with pytest.raises(DataError) as caught:
            unpack(tmp_path, archive)
        assert sentence in str(caught.value).replace("holds a/ both", "holds a both")
        assert files(tmp_path) == ["archive"]


def test_an_encrypted_zip(tmp_path):
    data = bytearray(zip_bytes(secret=b"1"))
    data[data.index(b"PK\1\2") + 8] |= 1  # of the flags in the directory
    with pytest.raises(DataError, match=r"is encrypted \(secret\): extract it with its password."):
        unpack(tmp_path, data)
    assert files(tmp_path) == ["archive"]


def test_a_tar_that_ends_with_a_zip_is_a_tar(tmp_path):
    unpack(tmp_path, tar_bytes(entry("a.zip", zip_bytes(inside=b"1"))))
    assert files(tmp_path / "out") == ["a.zip"]


def test_a_fifo_is_not_an_archive_and_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "archive")
    with pytest.raises(DataError, match="archive was not found, or is not a file"):
        extract(tmp_path / "archive", tmp_path / "out")


def test_another_zip(tmp_path):
    message = refusal(unpack, tmp_path, zip_bytes(a=b""), inner="b/c.tar")
    assert message == f"{tmp_path}/archive does not hold b/c.tar: it is another archive."
    assert files(tmp_path) == ["archive"]
