"""Downloads from mirrors that fail, and archives that must not be extracted."""

import fcntl
import hashlib
import http.server
import io
import os
import sys
import tarfile
import threading
import zipfile

import pytest

from gluon_amp.base.messages import UsageError
from gluon_amp.files.atomic import InUseError
from gluon_amp.training.data.prepare import downloads
from gluon_amp.training.data.prepare.downloads import DownloadError, download, extract, md5_of
from tests.training.data.prepare.archives import entry, tar_bytes
from tests.training.data.refusal import refusal

DATA = bytes(range(256)) * 9_000  # 2.3 MB: more than one block
MD5 = hashlib.md5(DATA).hexdigest()
CLOSED = "http://127.0.0.1:9/file"  # no server listens on this port


class Mirror(http.server.BaseHTTPRequestHandler):
    """Serves DATA in the way that the path names."""

    def do_GET(self):
        kind = self.path[1:]
        self.server.seen.append(kind)
        assert self.headers["Accept-Encoding"] == "identity"
        if kind == "busy" and self.server.seen.count("busy") == 1:
            kind = "missing"
        body = {"other": b"other", "missing": b""}.get(kind, DATA)
        self.send_response(404 if kind == "missing" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if kind == "breaking" else body)

    def log_message(self, *_):
        pass


@pytest.fixture
def mirror():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mirror) as server:
        server.url, server.seen = f"http://127.0.0.1:{server.server_port}", []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def path(tmp_path):
    (tmp_path / "sub").mkdir()
    return tmp_path / "sub" / "file"


def get(mirror, path, kinds):
    """Download from paths of the mirror or from URLs."""
    download([k if "://" in k else f"{mirror.url}/{k}" for k in kinds.split()], path, MD5)


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("mirrors", "seen"),
    [
        (f"{CLOSED} missing other breaking whole", "missing other breaking whole"),
        ("busy missing", "busy missing busy"),
    ],
    ids=["from the last mirror", "at the second attempt"],
)
def test_a_file_is_downloaded(mirror, path, mirrors, seen):
    path.with_name("file.part").write_bytes(b"x" * 2 * len(DATA))  # of a killed process
    get(mirror, path, mirrors)
    assert path.read_bytes() == DATA and md5_of(path) == MD5
    assert files(path.parent) == ["file"]
    assert mirror.seen == seen.split()


def test_the_message_has_the_reason_of_each_mirror(mirror, path):
    with pytest.raises(DownloadError) as caught:
        get(mirror, path, f"{CLOSED} missing other")
    refused = "Failed to establish a new connection: [Errno 111] Connection refused"
    assert str(caught.value) == (
        f"file could not be downloaded: {CLOSED}: {refused}; {mirror.url}/missing: 404 Not Found; "
        f"{mirror.url}/other: its md5 is {hashlib.md5(b'other').hexdigest()}, expected {MD5}."
    )
    assert mirror.seen == ["missing", "other"] * 2
    assert files(path.parent) == []


def test_two_processes_do_not_write_one_file(mirror, path):
    other = os.open(path.parent, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(InUseError, match=f"another process is downloading into {path.parent}"):
        get(mirror, path, "whole")
    os.close(other)
    assert mirror.seen == []


def test_without_requests(mirror, path, monkeypatch):
    monkeypatch.setitem(sys.modules, "requests", None)
    with pytest.raises(UsageError, match=r"requests is not installed: run `pip install -c constr"):
        get(mirror, path, "whole")


def zip_bytes(**contents):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped:
        for name, data in contents.items():
            zipped.writestr(name, data)
    return file.getvalue()


GOOD = (
    entry("top", kind=tarfile.DIRTYPE, mode=0o700),
    entry("top/a.jpg", DATA),
    entry("top/deep/b.jpg", b"b", mode=0o4777),
)
GZIPPED = tar_bytes(*GOOD, mode="w:gz")
OUTSIDE = "leads outside the folder it is extracted to"


def unpack(folder, data, inner=None):
    """Extract an archive of these bytes."""
    (folder / "archive").write_bytes(data)
    extract(folder / "archive", folder / "out", inner)


@pytest.mark.parametrize(
    ("data", "inner"),
    [(tar_bytes(*GOOD), None), (zip_bytes(x=b"no", tar=GZIPPED), "tar")],
    ids=["tar", "tar.gz in a zip"],
)
def test_an_archive_is_extracted(tmp_path, data, inner):
    unpack(tmp_path, data, inner)
    assert files(tmp_path / "out") == ["top", "top/a.jpg", "top/deep", "top/deep/b.jpg"]
    assert (tmp_path / "out/top/a.jpg").read_bytes() == DATA
    assert not (tmp_path / "out/top/deep/b.jpg").stat().st_mode & 0o4111


@pytest.mark.parametrize("data_filter", [True, False])
@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (entry("top/../../evil"), f"top/../../evil {OUTSIDE}"),
        (entry("/tmp/evil"), f"/tmp/evil {OUTSIDE}"),
        (entry("l", kind=tarfile.SYMTYPE), "l is a link or a device"),
        (entry("l", kind=tarfile.LNKTYPE), "l is a link or a device"),
        (entry("null", kind=tarfile.CHRTYPE), "null is a link or a device"),
    ],
)
def test_what_is_not_safe_is_refused(tmp_path, monkeypatch, bad, why, data_filter):
    """By the older Pythons too, whose tarfile has no filter."""
    if not data_filter:
        monkeypatch.setattr(downloads, "FILTER", {})
    message = refusal(unpack, tmp_path, tar_bytes(*GOOD, bad))
    assert message == f"{tmp_path}/archive is not safe to extract: {why}."
    assert files(tmp_path) == ["archive"]


@pytest.mark.parametrize(
    ("data", "inner"),
    [(b"no archive at all", None), (GZIPPED[:3000], None), (zip_bytes(x=b""), "tar"), (b"", "tar")],
    ids=["text", "cut short", "another zip", "no zip"],
)
def test_another_archive_is_refused(tmp_path, data, inner):
    message = refusal(unpack, tmp_path, data, inner)
    assert message.startswith(f"{tmp_path}/archive is damaged or not the expected archive (")
    assert files(tmp_path) == ["archive"]
