"""Decoding: against OpenCV, at reduced sizes, and files that are not whole images."""

import io
import runpy
import sys

import cv2
import numpy as np
import pytest
from PIL import Image

from gluon_amp.base.messages import UsageError
from gluon_amp.training.data import decode
from gluon_amp.training.data.decode import DecodeError, decode_box, jpeg_size
from tests.images import picture, png
from tests.training.data.jpegs import jpeg, smooth


def exif(encoded, orientation):
    """Return a JPEG with an Exif orientation; 6 is a rotation by 90 degrees."""
    tiff = b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01" + bytes([0, orientation]) + bytes(6)
    body = b"Exif\0\0" + tiff
    return encoded[:2] + b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body + encoded[2:]


def whole(size):
    return (0, 0, *size)


@pytest.mark.parametrize(("size", "progressive"), [((1, 1), 0), ((37, 50), 0), ((300, 200), 1)])
def test_jpeg_size(size, progressive):
    options = [cv2.IMWRITE_JPEG_PROGRESSIVE, progressive]
    encoded = cv2.imencode(".jpg", smooth(*size), options)[1].tobytes()
    assert jpeg_size(encoded) == jpeg_size(exif(encoded, 6)) == size
    assert jpeg_size(encoded[:6]) is None


def test_decode_is_that_of_opencv():
    grey = cv2.imencode(".jpg", smooth(16, 16)[..., 0])[1].tobytes()
    for encoded in (jpeg(smooth(30, 40)), png(picture(0)), grey):
        assert np.array_equal(decode.decode(encoded), cv2.imdecode(np.frombuffer(encoded, "u1"), 1))


@pytest.mark.parametrize(
    "encoded",
    [b"", b"no image", b"\xff\xd8\xff\xd9", jpeg(smooth(64, 64))[:-40]],
    ids=["empty", "text", "nothing inside", "cut short"],
)
def test_an_incomplete_image_is_refused(encoded):
    with pytest.raises(DecodeError):
        decode.decode(encoded)


def test_bytes_after_the_end_of_a_jpeg_are_allowed():
    assert decode.decode(jpeg(smooth(20, 20)) + bytes(500)).shape == (20, 20, 3)


@pytest.mark.parametrize(
    "side, reduction", [(63, 1), (64, 2), (127, 2), (128, 4), (255, 4), (600, 8)]
)
def test_a_jpeg_is_decoded_at_the_smallest_sufficient_fraction(side, reduction):
    part = decode_box(jpeg(smooth(side, side)), whole, target=32)
    assert part.shape == (side // reduction, side // reduction, 3)
    assert min(part.shape[:2]) >= 32 or reduction == 1


def test_a_reduced_part_is_the_same_part():
    image = smooth(160, 240)
    box = (40, 80, 100, 120)
    part = decode_box(jpeg(image), lambda _: box, target=40)
    assert part.shape == (50, 60, 3)
    expected = cv2.resize(image[40:140, 80:200], (60, 50), interpolation=cv2.INTER_AREA)
    assert np.abs(part.astype(int) - expected).max() <= 4


def test_a_png_is_decoded_whole():
    image = picture(0, 64)
    part = decode_box(png(image), lambda _: (2, 3, 50, 60), target=8)
    assert np.array_equal(part[..., ::-1], image[2:52, 3:63])


def test_a_part_of_a_rotated_jpeg_is_inside_it():
    image = smooth(40, 80)
    encoded = exif(jpeg(image), 6)
    upright = decode.decode(encoded)
    expected = cv2.rotate(image, cv2.ROTATE_90_CLOCKWISE)
    assert np.abs(upright.astype(int) - expected).mean() < 2
    part = decode_box(encoded, lambda _: (0, 20, 40, 60), target=400)
    assert np.array_equal(part, upright[20:80])


def palette_png(indices, colours, **alphas):
    """Encode an image of indices into a palette of (red, green, blue)."""
    image, file = Image.fromarray(indices.astype("u1"), "P"), io.BytesIO()
    image.putpalette(np.ravel(colours).tolist())
    image.save(file, "PNG", **alphas)
    return file.getvalue()


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_a_transparent_png_is_shown_on_white(dtype):
    most = np.iinfo(dtype).max
    pixels = np.array([[[0, 0, 0, 0], [0, most, 0, most], [most, 0, 0, most / 5]]], dtype)
    encoded = cv2.imencode(".png", pixels)[1].tobytes()
    assert decode.is_transparent(encoded)
    # blue, green, red: white, green, and a fifth of blue on white
    assert decode.decode(encoded)[0].tolist() == [[255] * 3, [0, 255, 0], [255, 204, 204]]


def test_a_palette_may_be_transparent():
    colours = [(10, 20, 30), (200, 100, 50)]
    indices = np.array([[0, 1]])
    opaque, transparent = (
        palette_png(indices, colours, **a) for a in ({}, {"transparency": b"\0"})
    )
    assert decode.decode(opaque).tolist() == [[[30, 20, 10], [50, 100, 200]]]
    assert decode.decode(transparent).tolist() == [[[255, 255, 255], [50, 100, 200]]]


def test_a_png_with_a_damaged_header_is_refused():
    with pytest.raises(DecodeError):
        decode.decode(decode.PNG_START + bytes(13) + b"\6tRNS")


def test_without_opencv_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(decode, "cv2", None)
    with pytest.raises(UsageError, match=r"OpenCV, which is not installed: run `pip install"):
        decode.require_opencv()


def test_where_opencv_lacks_libraries_of_a_screen_it_names_the_wheel_without_one(
    monkeypatch, tmp_path
):
    (tmp_path / "cv2.py").write_text("raise ImportError('libxcb.so.1: cannot open it')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cv2")
    with pytest.raises(
        UsageError, match=r"\(libxcb.so.1: .*headless(==[\d.]+)?`;.*apt-get install"
    ):
        runpy.run_path(decode.__file__)["require_opencv"]()
