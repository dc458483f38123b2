"""Small real image files and record files for tests, written without OpenCV."""

import struct
import zlib
from pathlib import Path
from typing import Optional, Sequence

import numpy as np

from gluon_amp.training.data import RecordFiles

from mxnet import recordio


def png(image: np.ndarray) -> bytes:
    """Encode a uint8 RGB image (H, W, 3)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    height, width, _ = image.shape
    rows = b"".join(b"\0" + row.tobytes() for row in image)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def picture(number: int, size: int = 40) -> np.ndarray:
    """Return an image that is different for each number."""
    return np.random.RandomState(number).randint(0, 256, (size, size, 3)).astype(np.uint8)


def write_records(
    folder: Path, name: str, labels: Sequence[float], contents: Optional[Sequence[bytes]] = None
) -> Path:
    """Write folder/name.rec and its index, one picture for each label, or these contents."""
    contents = contents or [png(picture(number)) for number in range(len(labels))]
    writer = recordio.MXIndexedRecordIO(
        str(folder / f"{name}.idx"), str(folder / f"{name}.rec"), "w"
    )
    for number, (label, content) in enumerate(zip(labels, contents)):
        header = recordio.IRHeader(0, float(label), number, 0)
        writer.write_idx(number, recordio.pack(header, content))
    writer.close()
    return folder / f"{name}.rec"


def record_files(folder: Path) -> RecordFiles:
    """Return the four files of a packed data set in a folder."""
    names = ("train.rec", "train.idx", "val.rec", "val.idx")
    return RecordFiles(*(folder / name for name in names))


def write_folders(root: Path, part: str, classes: Sequence[str], images: int = 2) -> Path:
    """Write root/part/CLASS/N.png."""
    for name in classes:
        folder = root / part / name
        folder.mkdir(parents=True)
        for number in range(images):
            (folder / f"{number}.png").write_bytes(png(picture(number)))
    return root
