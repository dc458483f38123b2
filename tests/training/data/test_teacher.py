"""The teacher's labels, and what depends on the seed."""

import numpy as np

from gluon_amp.training.data import teacher
from gluon_amp.training.data.teacher import label, open_taught, taught


def test_labels_are_those_of_the_teacher_for_every_seed():
    images = taught(2000, seed=5)
    inputs = np.stack([images[index][0].asnumpy().ravel() for index in range(2000)])
    labels = [images[index][1] for index in range(2000)]
    assert labels == label(inputs).tolist() == label(inputs).tolist()
    counts = np.bincount(labels, minlength=10)
    assert counts.min() > 60 and counts.max() < 500  # no class is rare, none is most of all
    # The labels are no linear function of the inputs: least squares finds less than the teacher.
    weights = np.linalg.lstsq(inputs, np.eye(10)[labels], rcond=None)[0]
    linear = taught(2000, seed=6)
    others = np.stack([linear[index][0].asnumpy().ravel() for index in range(2000)])
    right = (others @ weights).argmax(axis=1) == label(others)
    assert 0.3 < right.mean() < 0.75


def test_the_source(monkeypatch):
    monkeypatch.setattr(teacher, "TRAIN_IMAGES", 25)
    monkeypatch.setattr(teacher, "VAL_IMAGES", 15)
    one, again, other = map(open_taught, (0, 0, 1))
    assert (one.name, one.classes, one.image_shape) == ("teacher", 10, (1, 8, 8))
    assert (one.train_images, one.val_images) == (25, 15)
    first = [source.train[7][0].asnumpy() for source in (one, again, other)]
    assert np.array_equal(first[0], first[1]) and not np.array_equal(first[0], first[2])
    assert np.array_equal(one.val[14][0].asnumpy(), other.val[14][0].asnumpy())
    assert np.array_equal(one.train[25 + 7][0].asnumpy(), first[0])  # in the next epoch
