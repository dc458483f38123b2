"""Files with a correct digest that gluon_amp would not write: anybody can compute a digest."""

import hashlib
import io
import json
import zipfile


def signed(data: bytes) -> bytes:
    """Return bytes with their correct digest at the end."""
    return data[:-64] + hashlib.sha256(data[:-64]).hexdigest().encode()


def members(data: bytes) -> dict:
    """Return names and contents of an archive, the header first."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def archive(contents, compression=zipfile.ZIP_STORED) -> bytes:
    """Return an archive of these (name, content) pairs."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name, content in contents:
            file.writestr(zipfile.ZipInfo(name), content, compression)
        file.comment = b" " * 64
    return signed(buffer.getvalue())


def with_header(data: bytes, header) -> bytes:
    """Return an archive with another header, JSON or text."""
    (name, _), *arrays = members(data).items()
    text = header if isinstance(header, (str, bytes)) else json.dumps(header)
    return archive([(name, text), *arrays])


def header_of(data: bytes) -> dict:
    """Return the header of an archive."""
    return json.loads(next(iter(members(data).values())))
