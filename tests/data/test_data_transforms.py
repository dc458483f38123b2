"""Decoding and augmentation: against OpenCV and MXNet's own transforms, and laws of the draws."""

import math

import cv2
import numpy as np
import pytest

import gluon_amp  # noqa: F401
from gluon_amp.data import DataError, decode
from gluon_amp.data.decode import DecodeError, decode_box, jpeg_size
from gluon_amp.data.imagenet_transforms import (
    AREA,
    ASPECT,
    GREY,
    MEAN,
    STD,
    Look,
    TrainingTransform,
    ValidationTransform,
    normalisation,
    random_box,
    random_colour,
)
from tests.images import picture, png

import mxnet as mx
from mxnet.gluon.data.vision import transforms


def smooth(height, width, seed=0):
    """Return a uint8 (H, W, 3) image without sharp edges, blue first."""
    colours = np.random.RandomState(seed).uniform(0, 255, (4, 4, 3))
    return np.clip(cv2.resize(colours, (width, height)), 0, 255).astype(np.uint8)


def jpeg(image, quality=95):
    return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()


def exif(encoded, orientation):
    """Return a JPEG with an Exif orientation: 6 means turn it by 90 degrees."""
    tiff = b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01" + bytes([0, orientation]) + bytes(6)
    body = b"Exif\0\0" + tiff
    return encoded[:2] + b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body + encoded[2:]


def whole(size):
    return (0, 0, *size)


# --------------------------------------------------------------------------- decoding


@pytest.mark.parametrize("progressive", [0, 1])
@pytest.mark.parametrize("size", [(1, 1), (37, 50), (300, 200)])
def test_jpeg_size(size, progressive):
    options = [cv2.IMWRITE_JPEG_PROGRESSIVE, progressive]
    encoded = cv2.imencode(".jpg", smooth(*size), options)[1].tobytes()
    assert jpeg_size(encoded) == jpeg_size(exif(encoded, 6)) == size


@pytest.mark.parametrize("encoded", [b"", b"\xff\xd8", b"\xff\xd8\xff\xe0\0\x10", png(picture(0))])
def test_what_has_no_jpeg_header_has_no_size(encoded):
    assert jpeg_size(encoded) is None


def test_decode_is_opencvs():
    for encoded in (jpeg(smooth(30, 40)), png(picture(0))):
        assert np.array_equal(decode.decode(encoded), cv2.imdecode(np.frombuffer(encoded, "u1"), 1))


def test_a_grey_image_gets_three_colours():
    grey = cv2.imencode(".jpg", smooth(16, 16)[..., 0])[1].tobytes()
    image = decode.decode(grey)
    assert image.shape == (16, 16, 3) and np.array_equal(image[..., 0], image[..., 2])


@pytest.mark.parametrize(
    "encoded",
    [b"", b"no image", b"\xff\xd8\xff\xd9", jpeg(smooth(64, 64))[:-40], jpeg(smooth(64, 64))[:9]],
    ids=["empty", "text", "nothing inside", "cut short", "header only"],
)
def test_what_is_no_whole_image_is_refused(encoded):
    with pytest.raises(DecodeError):
        decode.decode(encoded)


def test_bytes_after_the_end_of_a_jpeg_are_allowed():
    assert decode.decode(jpeg(smooth(20, 20)) + bytes(500)).shape == (20, 20, 3)


@pytest.mark.parametrize(
    "side, reduction", [(63, 1), (64, 2), (127, 2), (128, 4), (255, 4), (256, 8), (600, 8)]
)
def test_a_jpeg_is_decoded_at_the_fraction_that_is_enough(side, reduction):
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


@pytest.mark.parametrize("orientation, turn", [(1, None), (6, cv2.ROTATE_90_CLOCKWISE)])
def test_a_part_of_a_turned_jpeg_lies_inside_it(orientation, turn):
    image = smooth(40, 80)
    encoded = exif(jpeg(image), orientation)
    upright = decode.decode(encoded)
    expected = image if turn is None else cv2.rotate(image, turn)
    assert np.abs(upright.astype(int) - expected).mean() < 2
    part = decode_box(encoded, lambda _: (0, 20, 40, 60), target=400)
    assert np.array_equal(part, upright[:, 20:80] if turn is None else upright[20:80])


def test_without_opencv_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(decode, "cv2", None)
    with pytest.raises(DataError, match=r"OpenCV, which is not installed: run `pip install"):
        TrainingTransform(Look(24))


# --------------------------------------------------------------------------- random parts


@pytest.mark.parametrize("size", [(256, 256), (375, 500), (1, 1), (2, 300), (500, 20)])
def test_a_random_part_lies_inside(size):
    for seed in range(200):
        top, left, height, width = random_box(size, np.random.default_rng(seed))
        assert top >= 0 and left >= 0 and height >= 1 and width >= 1
        assert top + height <= size[0] and left + width <= size[1]


def test_random_parts_have_the_areas_and_sides_of_the_recipe():
    size = (1000, 1000)
    boxes = np.array([random_box(size, np.random.default_rng(seed)) for seed in range(2000)])
    areas = boxes[:, 2] * boxes[:, 3] / 1e6
    aspects = boxes[:, 3] / boxes[:, 2]
    assert AREA[0] - 0.002 < areas.min() < 0.09 and 0.9 < areas.max() <= 1
    assert ASPECT[0] - 0.01 < aspects.min() < 0.77 and 1.3 < aspects.max() < ASPECT[1] + 0.01
    assert abs(np.log(aspects).mean()) < 0.02  # wide and high are equally likely
    spare = boxes[:, 2] < 1000
    assert abs((boxes[spare, 0] / (1000 - boxes[spare, 2])).mean() - 0.5) < 0.03


def test_a_strip_gives_its_middle():
    assert random_box((10, 1000), np.random.default_rng(0)) == (0, 493, 10, 13)
    assert random_box((1000, 9), np.random.default_rng(0)) == (494, 0, 12, 9)


# --------------------------------------------------------------------------- colours


def apply(matrix, image):
    """Return a 3×4 matrix of (H, W, 3) colours."""
    return image @ matrix[:, :3].T + matrix[:, 3]


class Fixed:
    """A generator whose draws are given."""

    def __init__(self, factors=(1, 1, 1), order=(0, 1, 2), light=(0, 0, 0)):
        self._factors, self._order, self._light = factors, order, light

    def uniform(self, low, high, size):
        assert (low, high, size) == (0.6, 1.4, 3)
        return np.array(self._factors, float)

    def permutation(self, size):
        return np.array(self._order)

    def normal(self, mean, spread, size):
        assert (mean, spread, size) == (0, 0.1, 3)
        return np.array(self._light, float)


@pytest.fixture
def colours():
    """A float RGB image far enough from 0 and 255 that nothing is clipped."""
    return np.random.RandomState(0).uniform(110, 140, (6, 5, 3))


def mean(image):
    return image.reshape(-1, 3).mean(axis=0)


def test_no_jitter_is_no_change(colours):
    assert np.allclose(apply(random_colour(mean(colours), Fixed()), colours), colours)


def test_brightness_scales(colours):
    matrix = random_colour(mean(colours), Fixed(factors=(1.3, 1, 1)))
    assert np.allclose(apply(matrix, colours), 1.3 * colours)


def test_contrast_scales_the_distance_to_the_mean_grey(colours):
    matrix = random_colour(mean(colours), Fixed(factors=(1, 0.7, 1)))
    grey = (colours @ GREY).mean()
    assert np.allclose(apply(matrix, colours), grey + 0.7 * (colours - grey))


def test_saturation_scales_the_distance_to_the_grey_of_the_pixel(colours):
    matrix = random_colour(mean(colours), Fixed(factors=(1, 1, 0.8)))
    grey = (colours @ GREY)[..., None]
    assert np.allclose(apply(matrix, colours), grey + 0.8 * (colours - grey))


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (1, 2, 0)])
def test_the_matrix_is_one_step_after_the_other(colours, order):
    factors = (1.2, 0.7, 1.4)
    expected = colours
    for kind in order:
        one = np.ones(3)
        one[kind] = factors[kind]
        expected = apply(random_colour(mean(expected), Fixed(factors=one)), expected)
    at_once = apply(random_colour(mean(colours), Fixed(factors, order)), colours)
    assert np.allclose(at_once, expected)


def test_lighting_is_that_of_mxnet(colours):
    alphas = (0.1, -0.05, 0.2)
    ours = apply(random_colour(mean(colours), Fixed(light=alphas)), colours)
    theirs = mx.nd.image.adjust_lighting(mx.nd.array(colours), alpha=alphas).asnumpy()
    assert np.allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize("kind, name", [(0, "Brightness"), (1, "Contrast")])
def test_brightness_and_contrast_are_those_of_mxnet(colours, kind, name):
    """MXNet draws the factor, so it is found from the result: one number explains every pixel."""
    mx.random.seed(3)
    theirs = getattr(transforms, f"Random{name}")(0.4)(mx.nd.array(colours)).asnumpy()
    factors = np.ones(3)
    factors[kind] = 0  # the image at factor 0; at any other it lies on the line to the original
    zero = apply(random_colour(mean(colours), Fixed(factors)), colours)
    factors[kind] = ((theirs - zero) * (colours - zero)).sum() / ((colours - zero) ** 2).sum()
    assert 0.6 <= factors[kind] <= 1.4 and abs(factors[kind] - 1) > 0.01
    ours = apply(random_colour(mean(colours), Fixed(factors)), colours)
    assert np.allclose(ours, theirs, atol=1e-3)


def test_mxnet_takes_a_part_of_blue_for_the_grey_of_saturation(colours):
    """Why ours is another: theirs darkens or brightens the image besides."""
    mx.random.seed(3)
    theirs = transforms.RandomSaturation(0.4)(mx.nd.array(colours)).asnumpy()
    blue = 0.114 * colours[..., 2:] + np.zeros(3)
    factor = ((theirs - blue) * (colours - blue)).sum() / ((colours - blue) ** 2).sum()
    assert np.allclose(theirs, blue + factor * (colours - blue), atol=1e-3)
    assert abs(theirs.mean() / colours.mean() - 1) > 0.005
    ours = random_colour(mean(colours), Fixed((1, 1, factor)))
    assert abs((apply(ours, colours) @ GREY).mean() - (colours @ GREY).mean()) < 1e-6


def test_random_colours_stay_in_their_range(colours):
    matrices = [
        random_colour(np.full(3, 128.0), np.random.default_rng(seed)) for seed in range(500)
    ]
    brightness = np.array([matrix[:, :3].sum(axis=1).mean() for matrix in matrices])
    assert 0.36 <= brightness.min() < 0.5 and 1.6 < brightness.max() <= 1.96
    assert abs(brightness.mean() - 1) < 0.05


def test_normalisation_is_the_published_one():
    bgr = np.array([[[10.0, 100.0, 250.0]]])
    expected = (np.array([250, 100, 10]) / 255 - MEAN) / STD
    assert np.allclose(apply(normalisation(Look()), bgr), expected, atol=1e-5)


# --------------------------------------------------------------------------- whole transforms


@pytest.mark.parametrize("size", [(256, 256), (300, 400), (1200, 700), (100, 60)])
def test_validation_is_what_gluon_does(size):
    encoded = jpeg(smooth(*size))
    out = np.empty((3, 224, 224), np.float32)
    ValidationTransform(Look(224))(encoded, None, out)
    gluon = transforms.Compose(
        [
            transforms.Resize(256, keep_ratio=True),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    theirs = gluon(mx.image.imdecode(encoded)).asnumpy()
    assert np.abs(out - theirs).max() < 3 / 255 / min(STD)  # two JPEG decoders: 3 of 256 levels


def test_validation_crops_in_the_middle():
    image = np.zeros((256, 512, 3), np.uint8)
    image[:, 144:368] = 255  # exactly what is left of it
    out = np.empty((3, 224, 224), np.float32)
    ValidationTransform(Look(224))(png(image), None, out)
    assert np.allclose(out, ((1 - np.array(MEAN)) / STD)[:, None, None], atol=1e-5)


def test_training_writes_every_pixel_and_depends_on_the_generator_alone():
    transform, encoded = TrainingTransform(Look(50)), jpeg(smooth(80, 90))
    outs = [np.full((3, 50, 50), np.nan, np.float32) for _ in range(3)]
    for out, seed in zip(outs, (1, 1, 2)):
        transform(encoded, np.random.default_rng(seed), out)
    assert all(np.isfinite(out).all() for out in outs)
    assert np.array_equal(outs[0], outs[1]) and not np.array_equal(outs[0], outs[2])


def test_half_of_the_images_are_mirrored():
    """Left black, right white: the side of the light says which."""
    image = np.zeros((64, 64, 3), np.uint8)
    image[:, 32:] = 255
    transform, encoded = TrainingTransform(Look(16)), png(image)
    out, rises, falls = np.empty((3, 16, 16), np.float32), 0, 0
    for seed in range(400):
        transform(encoded, np.random.default_rng(seed), out)
        step = out[1, :, -1].mean() - out[1, :, 0].mean()
        rises, falls = rises + (step > 0.5), falls + (step < -0.5)
    assert rises + falls > 200  # in the others only one half was cut out
    assert abs(rises - falls) < 4 * math.sqrt(rises + falls)


def test_a_mirrored_image_is_the_mirror_image():
    image = smooth(24, 24)
    transform = TrainingTransform(Look(24))
    plain = transform._split(image, mirrored=False).copy()
    assert np.array_equal(plain, image.transpose(2, 0, 1))
    assert np.array_equal(transform._split(image, mirrored=True), plain[:, :, ::-1])


@pytest.mark.parametrize("size", [1, 7, 150, 224])
def test_normalising_in_chunks_covers_every_pixel(size):
    transform = TrainingTransform(Look(size))
    image = smooth(size, size)
    out = np.empty((3, size, size), np.float32)
    transform._normalise(transform._split(image, False), normalisation(Look()), out)
    assert np.allclose(out, apply(normalisation(Look()), image).transpose(2, 0, 1), atol=1e-5)


def test_one_transform_serves_several_sizes_of_images():
    transform = TrainingTransform(Look(20))
    out = np.empty((3, 20, 20), np.float32)
    for size in [(10, 10), (500, 300), (20, 20)]:
        transform(jpeg(smooth(*size)), np.random.default_rng(0), out)
        assert np.isfinite(out).all()
