"""Decodes images with OpenCV, which releases Python's global lock."""

import contextlib
import importlib.metadata
import struct
from typing import Any, Callable, Optional, Tuple

import numpy as np

from gluon_amp.base.messages import UsageError, from_extra

cv2: Any = None
_unloadable: Optional[ImportError] = None  # why OpenCV cannot be loaded, though it is installed
try:
    cv2 = importlib.import_module("cv2")
except ModuleNotFoundError:
    pass
except ImportError as error:
    _unloadable = error

Size = Tuple[int, int]  # height, width
Box = Tuple[int, int, int, int]  # top, left, height, width

JPEG_START, JPEG_END = b"\xff\xd8", b"\xff\xd9"
# Start-of-frame markers hold the size; DHT, JPG and DAC lie between them (ITU T.81, table B.1).
FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
PNG_START = b"\x89PNG\r\n\x1a\n"
PNG_COLOUR_TYPE, WITH_ALPHA = 25, (4, 6)  # offset in a PNG; grey with alpha, colour with alpha
END_WITHIN = 1024  # some cameras and tools write up to so many bytes after the end of the image


class DecodeError(ValueError):
    """The bytes are not a whole image."""


def require_opencv() -> None:
    """Raise `UsageError` if OpenCV is not installed, or lacks the libraries of a screen."""
    if _unloadable:
        headless = "opencv-python-headless"  # of the same version, which fits this numpy
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            headless += f"=={importlib.metadata.version('opencv-python')}"
        raise UsageError(
            f"OpenCV cannot be loaded ({_unloadable}): on a machine without a screen run "
            f"`pip uninstall opencv-python`, then `pip install {headless}`; otherwise, on Debian "
            "or Ubuntu, `apt-get install libgl1 libglib2.0-0`."
        )
    if cv2 is None:
        with from_extra("data", "images are decoded with OpenCV, which is not installed"):
            raise ImportError
    # Images are decoded in parallel. OpenCV's own threads would only compete for the cores.
    cv2.setNumThreads(1)


def jpeg_size(encoded: bytes) -> Optional[Size]:
    """Return the height and width in the header of a JPEG, or None if it has none."""
    offset = 2
    while encoded.startswith(JPEG_START) and offset + 9 <= len(encoded) and encoded[offset] == 0xFF:
        marker, length = encoded[offset + 1], struct.unpack_from(">H", encoded, offset + 2)[0]
        if marker in FRAMES:
            return struct.unpack_from(">HH", encoded, offset + 5)
        offset += 1 if marker == 0xFF else 2 + length  # 0xFF may be repeated as padding
    return None


def is_transparent(encoded: bytes) -> bool:
    """Return whether an image is a PNG with transparency: an alpha channel or a tRNS chunk."""
    if not encoded.startswith(PNG_START) or len(encoded) <= PNG_COLOUR_TYPE:
        return False
    before_pixels = encoded[: encoded.find(b"IDAT")]
    return encoded[PNG_COLOUR_TYPE] in WITH_ALPHA or b"tRNS" in before_pixels


def on_white(image: np.ndarray) -> np.ndarray:
    """Return a blue, green, red, alpha image over white, as browsers show it: uint8 (H, W, 3)."""
    image = image.astype(np.float32) / np.iinfo(image.dtype).max
    alpha = image[..., 3:]
    return np.rint(255 * (image[..., :3] * alpha + 1 - alpha)).astype(np.uint8)


def decode(encoded: bytes, reduction: int = 1) -> np.ndarray:
    """Decode to uint8 (H, W, 3), blue first, rotated upright according to its Exif data.

    A transparent PNG is shown on white: its hidden colours are arbitrary, often black. Of a JPEG
    that ends too early, OpenCV would return the missing part in grey; here it is an error. With a
    `reduction` of 2, 4 or 8, a JPEG of this fraction of the size skips most of the work.
    """
    if encoded.startswith(JPEG_START) and JPEG_END not in encoded[-END_WITHIN:]:
        raise DecodeError("the JPEG ends too early")
    if is_transparent(encoded):
        image = _decode_with(cv2.IMREAD_UNCHANGED, encoded)
        if image.shape[2:] == (4,):  # OpenCV ignores the transparency of a grey PNG
            return on_white(image)
    flags = {
        1: cv2.IMREAD_COLOR,
        2: cv2.IMREAD_REDUCED_COLOR_2,
        4: cv2.IMREAD_REDUCED_COLOR_4,
        8: cv2.IMREAD_REDUCED_COLOR_8,
    }
    return _decode_with(flags[reduction], encoded)


def _decode_with(flag: int, encoded: bytes) -> np.ndarray:
    try:
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), flag)
    except cv2.error:  # an empty buffer, an absurd size
        image = None
    if image is None:
        raise DecodeError("not an image that OpenCV can decode")
    return image


def decode_box(encoded: bytes, choose: Callable[[Size], Box], target: int) -> np.ndarray:
    """Decode the part that ``choose((height, width))`` returns; a JPEG at no more than it needs."""
    size = jpeg_size(encoded)
    if size is None or 0 in size:
        image = decode(encoded)
        size = (image.shape[0], image.shape[1])
        box, reduction = choose(size), 1
    else:
        box = choose(size)
        reduction = next(n for n in (8, 4, 2, 1) if n == 1 or min(box[2:]) >= n * target)
        image = decode(encoded, reduction)
    top, left, height, width = (length // reduction for length in box)
    if (image.shape[0] < image.shape[1]) != (size[0] < size[1]):  # rotated by its Exif data
        top, left, height, width = left, top, width, height
    return image[top : top + height, left : left + width]
