"""Augmentation: against MXNet's own transforms, and laws of the random draws."""

import math

import numpy as np
import pytest

from gluon_amp.training.data import Preprocessing
from gluon_amp.training.data.imagenet_transforms import (
    AREA,
    ASPECT,
    GREY,
    MEAN,
    STD,
    TrainingTransform,
    ValidationTransform,
    normalisation,
    random_box,
    random_colour,
)
from tests.images import png
from tests.training.data.jpegs import jpeg, smooth

import mxnet as mx
from mxnet.gluon.data.vision import transforms


def boxes(size, count, *area):
    """Return random parts of an image, each inside it."""
    drawn = [random_box(size, np.random.default_rng(seed), *area) for seed in range(count)]
    top, left, height, width = drawn = np.array(drawn).T
    assert top.min() >= 0 and left.min() >= 0 and height.min() >= 1 and width.min() >= 1
    assert (top + height).max() <= size[0] and (left + width).max() <= size[1]
    return drawn


def test_random_parts_have_the_areas_and_sides_of_the_recipe():
    top, left, height, width = boxes((1000, 1000), 2000)
    areas, aspects = height * width / 1e6, width / height
    assert AREA[0] - 0.002 < areas.min() < 0.09 and 0.9 < areas.max() <= 1
    assert ASPECT[0] - 0.01 < aspects.min() < 0.77 and 1.3 < aspects.max() < ASPECT[1] + 0.01
    assert abs(np.log(aspects).mean()) < 0.02  # wide and high are equally likely
    for start, length in ((top, height), (left, width)):
        spare = length < 1000
        assert abs((start[spare] / (1000 - length[spare])).mean() - 0.5) < 0.03
    _, _, height, width = boxes((1000, 1000), 1000, 0.35)
    assert 0.348 < (height * width).min() / 1e6 < 0.36


def test_the_part_of_a_strip_is_its_middle():
    boxes((2, 300), 100)
    assert random_box((10, 1000), np.random.default_rng(0)) == (0, 493, 10, 13)
    assert random_box((1000, 9), np.random.default_rng(0)) == (494, 0, 12, 9)
    assert random_box((1, 1), np.random.default_rng(0)) == (0, 0, 1, 1)


def apply(matrix, image):
    """Apply a 3×4 matrix to (H, W, 3) colours."""
    return image @ matrix[:, :3].T + matrix[:, 3]


class Fixed:
    """A random generator with fixed draws."""

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


# A float RGB image whose colours are too far from 0 and 255 to be clipped
COLOURS = np.random.RandomState(0).uniform(110, 140, (6, 5, 3))


def jittered(image, **draws):
    return apply(random_colour(image.reshape(-1, 3).mean(axis=0), Fixed(**draws)), image)


@pytest.mark.parametrize(
    ("factors", "towards"),
    [
        ((1, 1, 1), 0),
        ((1.3, 1, 1), 0),  # brightness
        ((1, 0.7, 1), (COLOURS @ GREY).mean()),  # contrast
        ((1, 1, 0.8), (COLOURS @ GREY)[..., None]),  # saturation
    ],
)
def test_a_factor_scales_the_distance(factors, towards):
    expected = towards + np.prod(factors) * (COLOURS - towards)
    assert np.allclose(jittered(COLOURS, factors=factors), expected)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_the_matrix_is_one_step_after_the_other(order):
    factors, expected = (1.2, 0.7, 1.4), COLOURS
    for kind in order:
        one = np.ones(3)
        one[kind] = factors[kind]
        expected = jittered(expected, factors=one)
    assert np.allclose(jittered(COLOURS, factors=factors, order=order), expected)


def test_lighting_is_that_of_mxnet():
    light = (0.1, -0.05, 0.2)
    theirs = mx.nd.image.adjust_lighting(mx.nd.array(COLOURS), alpha=light).asnumpy()
    assert np.allclose(jittered(COLOURS, light=light), theirs, atol=1e-4)


@pytest.mark.parametrize("size", [(256, 256), (300, 400), (100, 60)])
def test_validation_is_that_of_gluon(size):
    encoded = jpeg(smooth(*size))
    out = np.empty((3, 224, 224), np.float32)
    ValidationTransform(Preprocessing(224))(encoded, None, out)
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


def test_training_writes_every_pixel_and_depends_on_the_generator_alone():
    transform, encoded = TrainingTransform(Preprocessing(50)), jpeg(smooth(80, 90))
    outs = [np.full((3, 50, 50), np.nan, np.float32) for _ in range(4)]
    for out, seed in zip(outs, (1, 1, 2)):
        transform(encoded, np.random.default_rng(seed), out)
    transform(jpeg(smooth(10, 10)), np.random.default_rng(1), outs[3])  # a smaller image
    assert all(np.isfinite(out).all() for out in outs)
    assert np.array_equal(outs[0], outs[1]) and not np.array_equal(outs[0], outs[2])


def test_the_jitter_of_an_image_is_that_of_its_mean_colour():
    blue_green_red = np.array([200.0, 90.0, 30.0])
    image = np.tile(blue_green_red[::-1], (40, 40, 1)).astype(np.uint8)
    out, generator = np.empty((3, 16, 16), np.float32), np.random.default_rng(5)
    TrainingTransform(Preprocessing(16))(png(image), np.random.default_rng(5), out)
    random_box((40, 40), generator)
    generator.random()  # whether it is mirrored
    matrix = normalisation(Preprocessing(), random_colour(blue_green_red[::-1], generator))
    expected = apply(matrix, blue_green_red)
    assert np.allclose(out, expected[:, None, None], atol=1e-4)


def test_half_of_the_images_are_mirrored():
    """The left half is black and the right half white, so the result shows its side."""
    image = np.zeros((64, 64, 3), np.uint8)
    image[:, 32:] = 255
    transform, encoded = TrainingTransform(Preprocessing(16, min_area=1)), png(image)
    out, originals, mirrored = np.empty((3, 16, 16), np.float32), 0, 0
    for seed in range(400):
        transform(encoded, np.random.default_rng(seed), out)
        step = out[1, :, -1].mean() - out[1, :, 0].mean()
        originals, mirrored = originals + (step > 0.5), mirrored + (step < -0.5)
    assert originals + mirrored == 400  # smaller parts could lie within one half
    assert abs(originals - mirrored) < 4 * math.sqrt(originals + mirrored)


@pytest.mark.parametrize("size", [7, 150])
def test_planes_are_mirrored_and_normalised_in_chunks(size):
    image, transform = smooth(size, size), TrainingTransform(Preprocessing(size))
    plain = transform.split(image, mirrored=False).copy()
    assert np.array_equal(plain, image.transpose(2, 0, 1))
    assert np.array_equal(transform.split(image, mirrored=True), plain[:, :, ::-1])
    matrix, out = normalisation(Preprocessing()), np.empty((3, size, size), np.float32)
    transform.normalise(plain, matrix, out)
    assert np.allclose(out, apply(matrix, image).transpose(2, 0, 1), atol=1e-5)
