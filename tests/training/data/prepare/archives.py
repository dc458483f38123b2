"""Archives for tests."""

import io
import tarfile


def entry(name, data=b"data", kind=tarfile.REGTYPE, mode=0o644):
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname = kind, mode, "top/a.jpg"
    info.size = len(data) if kind == tarfile.REGTYPE else 0
    return info, data


def tar_bytes(*entries, mode="w"):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()
