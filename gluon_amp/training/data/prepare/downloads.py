"""Downloads the archives of data sets, checks them and extracts them."""

import contextlib
import hashlib
import os
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, Any, Dict, Iterator, Optional, Sequence

from gluon_amp.base.locks import lock
from gluon_amp.base.messages import from_extra
from gluon_amp.files import atomic
from gluon_amp.training.command_line import tqdm
from gluon_amp.training.data.source import DataError

BLOCK = 1 << 20  # bytes
TIMEOUT = (10, 60)  # seconds to connect, and between two packets
ATTEMPTS = 2  # requests to each mirror
# The server must not compress the file, or a .tar.gz would arrive as a .tar.
HEADERS = {"Accept-Encoding": "identity"}

# Python's security releases since June 2023 have this filter; 3.12 warns where it is not named.
# `_checked` refuses all that it refuses.
FILTER: Dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


class DownloadError(DataError):
    """A file could not be downloaded from any mirror."""


def md5_of(path: Path) -> str:
    """Return the md5 of a file, as hexadecimal digits."""
    digest = hashlib.md5()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(BLOCK), b""):
            digest.update(block)
    return digest.hexdigest()


def download(urls: Sequence[str], path: Path, md5: str) -> None:
    """Download a file from the first mirror that has it, with its md5; ask each at most twice."""
    with from_extra("data", "requests is not installed"):
        import requests  # type: ignore[import-untyped]  # its stubs are another package
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    reasons = {}
    with _alone_in(path.parent), requests.Session() as session:
        for url in [*urls] * ATTEMPTS:
            try:
                actual = _fetch(session, url, part)
            except requests.RequestException as error:
                reasons[url] = _reason(error)
                continue
            if actual == md5:
                os.replace(part, path)
                return
            reasons[url] = f"its md5 is {actual}, expected {md5}"
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
    listed = "; ".join(f"{url}: {reason}" for url, reason in reasons.items())
    raise DownloadError(f"{path.name} could not be downloaded: {listed}.")


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes from downloading into a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if lock(descriptor) is False:
            raise atomic.InUseError(f"another process is downloading into {folder}")
        yield
    finally:
        os.close(descriptor)


def _fetch(session: Any, url: str, part: Path) -> str:
    """Write what a URL returns to a file, and flush it to the disk; return its md5."""
    digest = hashlib.md5()
    bytes_ = {"unit": "B", "unit_scale": True, "unit_divisor": 1024}
    with session.get(url, headers=HEADERS, stream=True, timeout=TIMEOUT) as response:
        response.raise_for_status()
        total = int(response.headers.get("Content-Length", 0)) or None
        label = f"loading {part.stem}"
        with open(part, "wb") as file, tqdm()(
            desc=label, total=total, leave=False, disable=None, **bytes_
        ) as bar:
            for block in response.iter_content(BLOCK):
                file.write(block)
                digest.update(block)
                bar.update(len(block))
            file.flush()
            os.fsync(file.fileno())
    return digest.hexdigest()


def _reason(error: Any) -> str:
    """Return the innermost reason of a failed request in a few words."""
    if error.response is not None:
        return f"{error.response.status_code} {error.response.reason}"
    text = str(getattr(error.args[0], "reason", error) if error.args else error)
    return text.split(": ", 1)[-1].strip("()'\"> ")


def extract(archive: Path, folder: Path, inner: Optional[str] = None) -> None:
    """Extract a tar archive, or the `inner` one of a zip archive, but no modes, owners or times."""
    try:
        with atomic.folder(folder) as into, _opened(archive, inner) as file, tarfile.open(
            fileobj=file,
            mode="r|*",  # without seeking, as in a member of a zip archive
        ) as tar:
            for member in tar:
                tar.extract(_checked(member, archive), into, set_attrs=False, **FILTER)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise DataError(
            f"{archive} is damaged or not the expected archive ({error}): remove it and download "
            "it again."
        ) from None


@contextlib.contextmanager
def _opened(archive: Path, inner: Optional[str]) -> Iterator[IO[bytes]]:
    if inner is None:
        with open(archive, "rb") as file:
            yield file
    else:
        with zipfile.ZipFile(archive) as zipped, zipped.open(inner) as file:
            yield file


def _checked(member: tarfile.TarInfo, archive: Path) -> tarfile.TarInfo:
    """Return a member that may be extracted; raise `DataError` for any other."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        why = "leads outside the folder it is extracted to"
    elif not member.isfile() and not member.isdir():
        why = "is a link or a device"
    else:
        return member
    raise DataError(f"{archive} is not safe to extract: {member.name} {why}.")
