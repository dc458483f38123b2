"""The rendered shapes: their areas, their margins, and what depends on the seed."""

import numpy as np
import pytest

from gluon_amp.training.data.shapes import RADIUS, SHAPES, ShapeImages, open_shapes, render


def test_each_shape_has_its_area():
    labels, size = np.arange(len(SHAPES)), 300
    shapes = render(labels, np.random.default_rng(0), size)
    share = np.random.default_rng(0).random((4, len(labels)), np.float32)[0]
    radius = size * (RADIUS[0] + (RADIUS[1] - RADIUS[0]) * share)
    corners, notch = np.array(list(SHAPES.values())).T
    # twice as many triangles as corners, between the centre, a corner and a notch
    areas = corners * notch * np.sin(np.pi / corners) * radius**2
    assert shapes.sum(axis=(1, 2)) == pytest.approx(areas, rel=0.01)
    assert areas[1] == pytest.approx(2 * radius[1] ** 2)  # of a square with this half diagonal
    border = np.concatenate([shapes[:, [0, -1]].ravel(), shapes[:, :, [0, -1]].ravel()])
    assert border.max() <= 0.5 and shapes.min() == 0 and shapes.max() == 1


def test_no_two_shapes_are_the_same():
    assert len({(corners, round(notch, 3)) for corners, notch in SHAPES.values()}) == 10


def test_the_source(monkeypatch):
    monkeypatch.setattr("gluon_amp.training.data.shapes.TRAIN_IMAGES", 2500)
    monkeypatch.setattr("gluon_amp.training.data.shapes.VAL_IMAGES", 1500)
    one, again, other = map(open_shapes, (0, 0, 1))
    assert (one.name, one.classes, one.image_shape) == ("shapes", 10, (3, 12, 12))
    assert (one.train_images, one.val_images) == (2500, 1500)
    first = [source.train[7][0].asnumpy() for source in (one, again, other)]
    assert np.array_equal(first[0], first[1]) and not np.array_equal(first[0], first[2])
    assert np.array_equal(one.val[1400][0].asnumpy(), other.val[1400][0].asnumpy())
    assert one.train[2500 + 7][1] == one.train[7][1]  # the next epoch
    assert np.array_equal(first[0][0], first[0][2])  # three equal colours


def test_noise_is_around_the_background_and_the_shape():
    images = ShapeImages(2000, seed=0)
    pixels = np.stack([images[index][0].asnumpy()[0] for index in range(2000)])
    corners = pixels[:, 0, 0]  # background
    assert abs(corners.mean()) < 0.02 and corners.std() == pytest.approx(0.2, abs=0.02)
    # the pixel in the middle is the most often covered
    assert pixels[:, 5:7, 5:7].mean() > 0.8
    labels = [images[index][1] for index in range(2000)]
    assert np.bincount(labels).min() > 150 and len(set(labels)) == 10
