"""Packs image files into RecordIO.

The new folder has ``PART.rec`` and ``PART.idx`` for each part, which MXNet reads; ``PART.lst``,
im2rec's list of images; ``classes.json``, names by label; and ``manifest.json``, the options.
"""

import functools
import itertools
import json
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Callable, Deque, Dict, Iterator, Mapping, Optional, Sequence, Tuple

from gluon_amp.base.hardware import count_processors
from gluon_amp.base.messages import first_few
from gluon_amp.files import atomic
from gluon_amp.training.command_line import tqdm
from gluon_amp.training.data.decode import DecodeError, cv2, decode, require_opencv
from gluon_amp.training.data.source import DataError, read_file
from gluon_amp.training.data.splitting import Image, Split, write_classes

from mxnet import recordio

MANIFEST = "manifest.json"
LONGEST = 65_500  # pixels of a side, libjpeg's JPEG_MAX_DIMENSION


@dataclass(frozen=True)
class Encoding:
    """How an image is stored."""

    resize: int = 256  # pixels of the shorter side; 0 keeps the file's own bytes
    quality: int = 95  # of the JPEG, 1 to 100; unused if `resize` is 0

    def __call__(self, encoded: bytes) -> bytes:
        """Return the bytes to store, after decoding the image as a check."""
        image = decode(encoded)
        if not self.resize:
            return encoded
        height, width = image.shape[:2]
        short = min(height, width)
        if max(height, width) * self.resize // short > LONGEST:
            raise DecodeError(f"its {width}×{height} pixels cannot be a JPEG of that shorter side")
        if short != self.resize:
            size = (width * self.resize // short, height * self.resize // short)
            # for a smaller image, INTER_AREA averages; bilinear interpolation would cause aliasing
            method = cv2.INTER_AREA if self.resize < short else cv2.INTER_CUBIC
            image = cv2.resize(image, size, interpolation=method)
        _, jpeg = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, self.quality])
        return jpeg.tobytes()


@dataclass(frozen=True)
class Packing:
    """What to pack and how, for any data set."""

    split: Split = Split()  # which images are for training; its seed also determines their order
    without: Sequence[str] = ()  # classes to leave out, or images as 'CLASS/FILE'
    encoding: Encoding = Encoding()
    workers: Optional[int] = None  # threads; None is one for each processor
    overwrite: bool = False  # pack again what was packed with other options
    log: Callable[[str], None] = print  # called with each line for the user


@dataclass(frozen=True)
class Listing:
    """The images to pack."""

    folder: Path  # their names are relative to it
    classes: Sequence[str]  # names by label
    parts: Mapping[str, Sequence[Image]]  # of 'train' and 'val', in the order of the files
    ignored: Sequence[str] = ()  # names of other files


def pack(
    out: Path, listing: Listing, options: Mapping[str, Any], packing: Packing
) -> Dict[str, Any]:
    """Pack images into a new folder, the same for any number of workers; return the manifest."""
    if listing.ignored:
        packing.log(f"Ignored, as these are no images: {first_few(listing.ignored, 5)}.")
    packing.log(f"Packing into {out} ...")
    require_opencv()
    workers = packing.workers or count_processors()
    with atomic.folder(out) as folder, ThreadPoolExecutor(workers) as pool:
        for name, images in listing.parts.items():
            encode = functools.partial(_encode, listing.folder, packing.encoding)
            encoded = _in_order(pool, encode, images, 4 * workers)
            _write_part(folder / name, encoded, len(images))
        write_classes(folder, listing.classes)
        manifest = {
            "options": {**options, **asdict(packing.encoding)},
            "classes": len(listing.classes),
            "images": {name: len(images) for name, images in listing.parts.items()},
        }
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def packed_with(
    out: Path, options: Mapping[str, Any], packing: Packing
) -> Optional[Dict[str, Any]]:
    """Return the manifest of a folder packed with these options; None if it may be packed."""
    path = out / MANIFEST
    if not path.exists():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise DataError(
                f"{out} holds no {MANIFEST}, so it is not overwritten: choose another folder."
            )
        return None
    if packing.overwrite:
        return None
    again = "pass --overwrite to pack again"
    try:
        manifest = json.loads(read_file(path))
        before = dict(manifest["options"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise DataError(f"{path} is damaged: {again}.") from None
    now = {**options, **asdict(packing.encoding)}
    for name in [*now, *before]:
        if before.get(name) != now.get(name):
            raise DataError(
                f"{out} was packed with {name.replace('_', ' ')} {_text(before.get(name))}, not "
                f"{_text(now.get(name))}: {again}, or choose another folder."
            )
    packing.log(f"{out} is packed already, with these options.")
    return manifest


def _text(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


def _encode(folder: Path, encoding: Encoding, image: Image) -> bytes:
    path = folder / image.name
    try:
        return encoding(read_file(path))
    except DecodeError as error:
        raise DataError(
            f"{path} cannot be packed, {error}: replace it, or pass --without {image.name}."
        ) from None


def _write_part(stem: Path, encoded_images: Iterator[Tuple[Image, bytes]], total: int) -> None:
    writer = recordio.MXIndexedRecordIO(f"{stem}.idx", f"{stem}.rec", "w")
    try:
        with open(f"{stem}.lst", "w", encoding="utf-8", errors="surrogateescape") as lines, tqdm()(
            desc=f"packing {stem.name}", total=total, unit="img", leave=False, disable=None
        ) as progress:
            for number, (image, encoded) in enumerate(encoded_images):
                header = recordio.IRHeader(0, float(image.label), number, 0)
                writer.write_idx(number, recordio.pack(header, encoded))
                lines.write(f"{number}\t{image.label}\t{image.name}\n")
                progress.update()
    finally:
        writer.close()


def _in_order(
    pool: ThreadPoolExecutor,
    function: Callable[[Image], bytes],
    images: Sequence[Image],
    ahead: int,
) -> Iterator[Tuple[Image, bytes]]:
    """Map over images in parallel, in their order, at most `ahead` images before the caller."""
    remaining = iter(images)
    pending: Deque = deque()

    def submit(count: int) -> None:
        pending.extend(
            (image, pool.submit(function, image)) for image in itertools.islice(remaining, count)
        )

    submit(ahead)
    while pending:
        image, result = pending.popleft()
        yield image, result.result()
        submit(1)
