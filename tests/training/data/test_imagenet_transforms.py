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


@pytest.mark.parametrize("size", [(375, 500), (1, 1), (2, 300)])
def test_a_random_part_is_inside_the_image(size):
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


def test_random_parts_have_at_least_the_given_area():
    size = (1000, 1000)
    boxes = [random_box(size, np.random.default_rng(seed), 0.35) for seed in range(1000)]
    areas = [height * width / 1e6 for _, _, height, width in boxes]
    assert 0.348 < min(areas) < 0.36 and 0.9 < max(areas) <= 1


def test_the_part_of_a_strip_is_its_middle():
    assert random_box((10, 1000), np.random.default_rng(0)) == (0, 493, 10, 13)
    assert random_box((1000, 9), np.random.default_rng(0)) == (494, 0, 12, 9)


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


@pytest.fixture
def colours():
    """A float RGB image whose colours are too far from 0 and 255 to be clipped."""
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


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
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
    """MXNet draws the factor. It is computed from the result; one number explains every pixel."""
    mx.random.seed(3)
    theirs = getattr(transforms, f"Random{name}")(0.4)(mx.nd.array(colours)).asnumpy()
    factors = np.ones(3)
    factors[kind] = 0  # other factors interpolate between the original and this image
    zero = apply(random_colour(mean(colours), Fixed(factors)), colours)
    factors[kind] = ((theirs - zero) * (colours - zero)).sum() / ((colours - zero) ** 2).sum()
    assert 0.6 <= factors[kind] <= 1.4 and abs(factors[kind] - 1) > 0.01
    ours = apply(random_colour(mean(colours), Fixed(factors)), colours)
    assert np.allclose(ours, theirs, atol=1e-3)


def test_normalisation_is_the_published_one():
    bgr = np.array([[[10.0, 100.0, 250.0]]])
    expected = (np.array([250, 100, 10]) / 255 - MEAN) / STD
    assert np.allclose(apply(normalisation(Preprocessing()), bgr), expected, atol=1e-5)


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


def test_validation_crops_in_the_middle():
    image = np.zeros((256, 512, 3), np.uint8)
    image[:, 144:368] = 255  # exactly the part that remains
    out = np.empty((3, 224, 224), np.float32)
    ValidationTransform(Preprocessing(224))(png(image), None, out)
    assert np.allclose(out, ((1 - np.array(MEAN)) / STD)[:, None, None], atol=1e-5)


def test_training_writes_every_pixel_and_depends_on_the_generator_alone():
    transform, encoded = TrainingTransform(Preprocessing(50)), jpeg(smooth(80, 90))
    outs = [np.full((3, 50, 50), np.nan, np.float32) for _ in range(4)]
    for out, seed in zip(outs, (1, 1, 2)):
        transform(encoded, np.random.default_rng(seed), out)
    transform(jpeg(smooth(10, 10)), np.random.default_rng(1), outs[3])  # a smaller image
    assert all(np.isfinite(out).all() for out in outs)
    assert np.array_equal(outs[0], outs[1]) and not np.array_equal(outs[0], outs[2])


def test_half_of_the_images_are_mirrored():
    """The left half is black and the right half white, so the result shows its side."""
    image = np.zeros((64, 64, 3), np.uint8)
    image[:, 32:] = 255
    transform, encoded = TrainingTransform(Preprocessing(16)), png(image)
    out, originals, mirrored = np.empty((3, 16, 16), np.float32), 0, 0
    for seed in range(400):
        transform(encoded, np.random.default_rng(seed), out)
        step = out[1, :, -1].mean() - out[1, :, 0].mean()
        originals, mirrored = originals + (step > 0.5), mirrored + (step < -0.5)
    assert originals + mirrored > 200  # the other crops are within one half
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
