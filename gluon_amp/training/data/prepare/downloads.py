"""Downloads, checks and extracts the archives of data sets. Every step can be interrupted."""

import bz2
import contextlib
import errno
import gzip
import hashlib
import lzma
import os
import shutil
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Iterator, List, Optional, Sequence, Tuple

from gluon_amp.base.locks import lock
from gluon_amp.files import atomic
from gluon_amp.training.data.prepare.progress import bar
from gluon_amp.training.data.source import DataError

try:
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3.util.retry import Retry
except ImportError:
    requests = None

if TYPE_CHECKING:
    import tqdm

BLOCK = 1 << 20  # bytes read from disk at once
CHUNK = 1 << 16  # bytes written at once; an interrupted download loses at most so many
TIMEOUT = (10, 60)  # seconds to connect, and between two packets
RETRIES = 5  # of a request, and of a download whose connection breaks
CONNECT_RETRIES = 2  # fewer, as there are other mirrors
BACKOFF = 1.0  # seconds before the second attempt; doubles with each
BUSY = (429, 500, 502, 503, 504)  # status codes after which a retry may succeed

ZIP_START = b"PK"
ENCRYPTED = 1  # a bit of a zip member's flags
DECOMPRESSORS = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ": lzma.LZMAFile,
}
LONGEST_START = max(map(len, DECOMPRESSORS))
# what the standard library raises for bytes that are not an archive
DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    ValueError,
    OverflowError,
    NotImplementedError,
)


# ---------------------------------------------------------------------------------------- checking


def md5_of(path: Path) -> str:
    """Return the md5 of a file, as hexadecimal digits."""
    digest = hashlib.md5()
    size = path.stat().st_size
    with open(path, "rb") as file, bar(f"checking {path.name}", size, in_bytes=True) as progress:
        for block in iter(lambda: file.read(BLOCK), b""):
            digest.update(block)
            progress.update(len(block))
    return digest.hexdigest()


# ------------------------------------------------------------------------------------- downloading


class DownloadError(DataError):
    """A file could not be downloaded from any mirror."""


class _FailedError(Exception):
    """A file could not be downloaded from one mirror; the message is the reason."""


def download(
    urls: Sequence[str],
    path: Path,
    md5: str,
    retries: int = RETRIES,
    backoff: float = BACKOFF,
) -> None:
    """Download a file from the first mirror that has it. Resume a download that was interrupted.

    Parameters
    ----------
    urls : sequence of str
        Mirrors, best first.
    path : Path
        The new file. Until it is complete and its md5 is correct, it is called ``path.part``.
    md5 : str
        Expected md5, as hexadecimal digits.
    retries : int
        How often to repeat a request to a busy or silent mirror, and to resume after the connection
        broke.
    backoff : float
        Seconds before the second attempt; they double with each.

    Raises
    ------
    DownloadError
        No mirror has it; the message has the reason of each.
    DataError
        Another process is downloading the file.
    """
    if requests is None:
        raise DataError(
            "downloads need requests, which is not installed: run `pip install 'gluon-amp[data]'`."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    reasons: List[str] = []
    with _locked(part), _session(retries, backoff) as session:
        for url in urls:
            try:
                _download(session, url, part, md5, retries)
            except _FailedError as error:
                reasons.append(f"{url}: {error}")
            else:
                os.replace(part, path)
                return
        if not part.stat().st_size:
            part.unlink()
    raise DownloadError(f"{path.name} could not be downloaded: {'; '.join(reasons)}.")


@contextlib.contextmanager
def _locked(part: Path) -> Iterator[None]:
    """Prevent other processes from writing the same file."""
    with open(part, "ab") as file:
        if lock(file) is False:
            raise DataError(f"another process is downloading {part}: wait for it.")
        yield


def _session(retries: int, backoff: float) -> "requests.Session":
    retry = Retry(
        total=retries,
        connect=min(retries, CONNECT_RETRIES),
        backoff_factor=backoff,
        status_forcelist=BUSY,
        raise_on_status=False,
    )
    session = requests.Session()
    session.mount("http://", HTTPAdapter(max_retries=retry))
    session.mount("https://", HTTPAdapter(max_retries=retry))
    # The server must not compress the file, or a .tar.gz would arrive as a .tar.
    session.headers["Accept-Encoding"] = "identity"
    return session


def _download(session: "requests.Session", url: str, part: Path, md5: str, retries: int) -> None:
    """Download the rest of `part` from one mirror."""
    resumed = part.stat().st_size > 0
    for _ in range(1 + retries):
        before = part.stat().st_size
        if _fetch(session, url, part):
            break
        if part.stat().st_size <= before:
            raise _FailedError("the connection breaks")
    else:
        raise _FailedError("the connection breaks again and again")
    actual = md5_of(part)
    if actual == md5:
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        return
    os.truncate(part, 0)
    if resumed:  # the part that existed may have had other bytes
        _download(session, url, part, md5, retries)
        return
    raise _FailedError(f"its md5 is {actual}, expected {md5}")


def _fetch(session: "requests.Session", url: str, part: Path) -> bool:
    """Append the missing bytes to `part`; return whether it is complete."""
    done = part.stat().st_size
    headers = {"Range": f"bytes={done}-"} if done else {}
    try:
        with session.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
            if response.status_code == requests.codes.requested_range_not_satisfiable:
                return True  # there are no more bytes; the md5 is checked later
            if response.status_code not in (requests.codes.ok, requests.codes.partial_content):
                raise _FailedError(f"{response.status_code} {response.reason}")
            if response.headers.get("Content-Type", "").startswith("text/html"):
                raise _FailedError("the response is a web page")
            if response.status_code == requests.codes.ok:  # the server does not support ranges
                done = 0
            length = response.headers.get("Content-Length")
            total = done + int(length) if length else None
            label = f"loading {part.stem}"
            with open(part, "r+b") as file, bar(label, total, done, in_bytes=True) as progress:
                file.seek(done)
                file.truncate()
                for block in response.iter_content(CHUNK):
                    file.write(block)
                    progress.update(len(block))
            return total in (None, part.stat().st_size)
    except (requests.exceptions.ChunkedEncodingError, requests.exceptions.ContentDecodingError):
        return False
    except requests.RequestException as error:
        if isinstance(error, requests.ConnectionError) and part.stat().st_size > done:
            return False
        raise _FailedError(_reason(error)) from None


def _reason(error: Exception) -> str:
    """Return the innermost reason of a failed request in a few words."""
    text = str(getattr(error.args[0], "reason", error) if error.args else error)
    return text.split(": ", 1)[-1].strip("()'\"> ")


# -------------------------------------------------------------------------------------- extracting


def extract(archive: Path, folder: Path, inner: Optional[str] = None) -> None:
    """Extract a tar or zip archive into a new folder. If that fails, remove the folder.

    Parameters
    ----------
    archive : Path
        A zip or tar file, or a tar file compressed with gzip, bzip2 or xz. Its content decides.
    folder : Path
        Created, or replaced, when everything is extracted.
    inner : str, optional
        Name of an archive within the archive, which is extracted instead.

    Raises
    ------
    DataError
        The file is damaged, encrypted or not an archive, or has no member `inner`. Or a member is
        outside the folder, has too long a name, is a link or a device, or is both a file and a
        folder.
    InUseError
        Another process is extracting into this folder.
    OSError
        The archive cannot be read, or the folder cannot be written.
    """
    if not archive.is_file():
        raise DataError(f"{archive} was not found, or is not a file.")
    try:
        with open(archive, "rb") as file, atomic.folder(folder) as into, bar(
            f"extracting {archive.name}", archive.stat().st_size, in_bytes=True
        ) as progress:
            is_zip = file.read(len(ZIP_START)) == ZIP_START
            reader = _ProgressReader(file, progress)
            for name, content in _zip_members(reader, inner) if is_zip else _tar_members(reader):
                _write(name, content, into)
    except _RefusedError as error:
        raise DataError(f"{archive} {error}.") from None
    except DataError:
        raise
    except (*DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        # gzip and bz2 raise an OSError without a number for damaged data
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"{archive} is damaged or not an archive ({reason}): remove it and download it again."
        ) from None


class _RefusedError(Exception):
    """An archive is not extracted; the message is the reason, after the name of the archive."""


class _ProgressReader:
    """Reads a file and shows the position in a progress bar."""

    def __init__(self, file: IO[bytes], progress: "tqdm.tqdm"):
        self._file, self._progress = file, progress
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._progress.update(self._file.tell() - self._progress.n)
        return data


class _StrictHeader(tarfile.TarInfo):
    """A member whose damaged header is an error. tarfile treats one as the end of the archive."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> tarfile.TarInfo:
        try:
            return super().fromtarfile(tar)
        except tarfile.EOFHeaderError:  # the blocks of zeros at the end
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"{error} at byte {tar.offset}") from None


Member = Tuple[str, Optional[IO[bytes]]]  # name and content; a folder has none


def _tar_members(file: IO[bytes]) -> Iterator[Member]:
    file.seek(0)
    start = file.read(LONGEST_START)
    file.seek(0)
    # tarfile's own decompression does not check the checksums
    openers = (opener for magic, opener in DECOMPRESSORS.items() if start.startswith(magic))
    opener = next(openers, None)
    decompressed = opener(file) if opener else file
    # "|" reads without seeking, so the file may be a member of a zip archive
    with tarfile.open(fileobj=decompressed, mode="r|", tarinfo=_StrictHeader) as tar:
        for member in tar:
            if not member.isdir() and not member.isfile():
                raise _unsafe(member.name, "is a link or a device")
            yield member.name, tar.extractfile(member)
        for block in iter(lambda: tar.fileobj.read(BLOCK), b""):
            if block.strip(b"\0"):
                raise tarfile.ReadError("there are bytes after its end")


def _zip_members(file: IO[bytes], inner: Optional[str]) -> Iterator[Member]:
    with zipfile.ZipFile(file) as zipped:
        if inner is not None:
            if inner not in zipped.namelist():
                raise _RefusedError(f"does not hold {inner}: it is another archive")
            with _open_member(zipped, zipped.getinfo(inner)) as nested:
                yield from _tar_members(nested)
            return
        for member in zipped.infolist():
            kind = member.external_attr >> 28  # upper bits of a Unix mode: 4 is a folder, 8 a file
            if kind not in (0, 4, 8):
                raise _unsafe(member.filename, "is a link or a device")
            if member.is_dir():
                yield member.filename, None
            else:
                with _open_member(zipped, member) as content:
                    yield member.filename, content


def _open_member(zipped: zipfile.ZipFile, member: zipfile.ZipInfo) -> IO[bytes]:
    if member.flag_bits & ENCRYPTED:
        raise _RefusedError(f"is encrypted ({member.filename}): extract it with its password")
    return zipped.open(member)


def _unsafe(name: str, why: str) -> _RefusedError:
    return _RefusedError(f"is not safe to extract: {name} {why}")


def _write(name: str, content: Optional[IO[bytes]], into: Path) -> None:
    """Write a member to a folder; its mode, owner and time in the archive are not restored."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise _unsafe(name, "leads outside the folder it is extracted to")
    target = into / path
    try:
        if content is None:
            target.mkdir(parents=True, exist_ok=True)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        file = open(target, "wb")  # noqa: SIM115 (copying may fail for other reasons)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise _RefusedError(f"holds {name} both as a file and as a folder") from None
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        shown = name if len(name) < 100 else f"{name[:99]}…"
        raise _RefusedError(
            f"holds a name that is too long for this file system: {shown}"
        ) from None
    with file:
        shutil.copyfileobj(content, file, BLOCK)
