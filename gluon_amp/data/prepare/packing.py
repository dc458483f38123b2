"""Pack image files into RecordIO: ``.rec`` and ``.idx`` files with the classes' names beside them.

The folder written holds, for each part of the data set, ``PART.rec`` and ``PART.idx`` for MXNet's
readers and ``PART.lst``, im2rec's list of what lies where; ``classes.json``, the names by label;
and ``manifest.json``, the options it was packed with and the sizes of the files.
"""

import itertools
import json
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Callable, Deque, Dict, Iterator, Mapping, Optional, Sequence, Tuple

from gluon_amp.data.classes import write_classes
from gluon_amp.data.decode import DecodeError, cv2, decode, require_opencv
from gluon_amp.data.prepare.progress import bar
from gluon_amp.data.prepare.splitting import Image
from gluon_amp.data.source import DataError, read_file
from gluon_amp.files import atomic
from gluon_amp.hardware import count_processors

from mxnet import recordio

MANIFEST = "manifest.json"
LONGEST = 65_500  # pixels of a side, libjpeg's JPEG_MAX_DIMENSION


@dataclass(frozen=True)
class Encoding:
    """How an image is stored.

    Attributes
    ----------
    resize : int
        Pixels of the shorter side; 0 keeps the file's own bytes.
    quality : int
        Of the JPEG, 1 to 100; of no use where `resize` is 0.
    """

    resize: int = 256
    quality: int = 95

    def __call__(self, encoded: bytes) -> bytes:
        """Return the bytes to store, after decoding the image as a check.

        Raises
        ------
        DecodeError
            It is not a whole image, or its other side would be too long for a JPEG.
        """
        image = decode(encoded)
        if not self.resize:
            return encoded
        height, width = image.shape[:2]
        short = min(height, width)
        if max(height, width) * self.resize // short > LONGEST:
            raise DecodeError(f"its {width}×{height} pixels cannot be a JPEG of that shorter side")
        if short != self.resize:
            size = (width * self.resize // short, height * self.resize // short)
            # INTER_AREA averages what it shrinks, where bilinear samples would alias
            how = cv2.INTER_AREA if self.resize < short else cv2.INTER_CUBIC
            image = cv2.resize(image, size, interpolation=how)
        _, jpeg = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, self.quality])
        return jpeg.tobytes()


@dataclass(frozen=True)
class Part:
    """What becomes one ``.rec`` file.

    Attributes
    ----------
    folder : Path
        Holds the classes.
    images : sequence of Image
        In the order to write them.
    """

    folder: Path
    images: Sequence[Image]


def pack(
    out: Path,
    parts: Mapping[str, Part],
    classes: Sequence[str],
    encoding: Encoding,
    options: Mapping[str, Any],
    workers: Optional[int] = None,
) -> Dict[str, Any]:
    """Pack images into a new folder, which is there when everything is written, or not at all.

    The same images and options give the same bytes (with the same version of OpenCV), whatever the
    number of workers.

    Parameters
    ----------
    out : Path
        The folder; replaced if it exists.
    parts : mapping
        From 'train' or 'val' to its images.
    classes : sequence of str
        Names by label.
    encoding : Encoding
        How images are stored.
    options : mapping
        What decided the content, as JSON can hold it, for `packed_with`.
    workers : int, optional
        Threads; one for each processor if not given. OpenCV works outside Python's lock.

    Returns
    -------
    dict
        The manifest.

    Raises
    ------
    DataError
        A file is no whole image, or another process is packing into this folder.
    """
    require_opencv()
    workers = workers or count_processors()
    try:
        with atomic.folder(out) as folder, ThreadPoolExecutor(workers) as pool:
            for name, part in parts.items():
                _write_part(folder, name, part, encoding, pool, 4 * workers)
            write_classes(folder, classes)
            manifest = {
                "options": {**options, **asdict(encoding)},
                "classes": len(classes),
                "images": {name: len(part.images) for name, part in parts.items()},
                "bytes": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
            }
            (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
            for path in folder.iterdir():
                _sync(path)
    except atomic.InUseError as error:
        raise DataError(f"{error}: wait for it.") from None
    return manifest


def packed_with(
    out: Path, options: Mapping[str, Any], encoding: Encoding, overwrite: bool = False
) -> Optional[Dict[str, Any]]:
    """Return the manifest of what is packed with these options, None if there is packing to do.

    Parameters
    ----------
    out : Path
        The folder.
    options, encoding
        As for `pack`.
    overwrite : bool
        Pack again whatever is packed there.

    Raises
    ------
    DataError
        The folder was packed with other options or is damaged, and `overwrite` is false; or it
        holds something else, which is never overwritten.
    """
    path = out / MANIFEST
    if not path.exists():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise DataError(
                f"{out} holds no {MANIFEST}, so it stays as it is: choose another folder."
            )
        return None
    if overwrite:
        return None
    again = "pass --overwrite to pack again"
    try:
        manifest = json.loads(read_file(path))
        before, sizes = dict(manifest["options"]), dict(manifest["bytes"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise DataError(f"{path} is damaged: {again}.") from None
    now = {**options, **asdict(encoding)}
    for name in [*now, *before]:
        if before.get(name) != now.get(name):
            raise DataError(
                f"{out} was packed with {name.replace('_', ' ')} {_text(before.get(name))}, not "
                f"{_text(now.get(name))}: {again}, or choose another folder."
            )
    for name, size in sizes.items():
        file = out / name
        found = file.stat().st_size if file.is_file() else None
        if found != size:
            what = "is missing" if found is None else f"has {found} bytes, expected {size}"
            raise DataError(f"{file} {what}: {again}.")
    return manifest


def _text(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


def _write_part(
    folder: Path, name: str, part: Part, encoding: Encoding, pool: ThreadPoolExecutor, ahead: int
) -> None:
    def encode(image: Image) -> bytes:
        path = part.folder / image.name
        try:
            return encoding(read_file(path))
        except DecodeError as error:
            raise DataError(
                f"{path} cannot be packed, {error}: replace it, or pass --without {image.name}."
            ) from None

    stem = str(folder / name)
    writer = recordio.MXIndexedRecordIO(f"{stem}.idx", f"{stem}.rec", "w")
    try:
        with open(f"{stem}.lst", "w", encoding="utf-8", errors="surrogateescape") as listed, bar(
            f"packing {name}", len(part.images)
        ) as shown:
            encoded_images = _in_order(pool, encode, part.images, ahead)
            for number, (image, encoded) in enumerate(encoded_images):
                header = recordio.IRHeader(0, float(image.label), number, 0)
                writer.write_idx(number, recordio.pack(header, encoded))
                listed.write(f"{number}\t{image.label}\t{image.name}\n")
                shown.update()
    finally:
        writer.close()


def _in_order(
    pool: ThreadPoolExecutor,
    function: Callable[[Image], bytes],
    images: Sequence[Image],
    ahead: int,
) -> Iterator[Tuple[Image, bytes]]:
    """Map over images in parallel, in their order, at most `ahead` of them before the caller."""
    todo = iter(images)
    waiting: Deque = deque()
    while True:
        for image in itertools.islice(todo, ahead - len(waiting)):
            waiting.append((image, pool.submit(function, image)))
        if not waiting:
            return
        image, result = waiting.popleft()
        yield image, result.result()


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
