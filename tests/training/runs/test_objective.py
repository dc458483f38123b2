"""Label smoothing and mixup: what they make of literal numbers."""

import numpy as np
import pytest

from gluon_amp.training.runs.objective import Objective

from mxnet import nd


def test_labels_stay_labels_without_smoothing():
    images, labels = nd.ones((2, 3)), nd.array([1, 0])
    assert Objective(4).mixed(images, labels, 1.0) == (images, labels)
    assert Objective(4).weight(0, 0) == 1.0


def test_smoothed_shares_are_gluoncvs():
    """1 - 0.1 + 0.1/4 and 0.1/4, as GluonCV's script has them."""
    shares = Objective(4, smoothing=0.1).shares(nd.array([2, 0])).asnumpy()
    assert shares == pytest.approx(
        np.array([[0.025, 0.025, 0.925, 0.025], [0.925, 0.025, 0.025, 0.025]])
    )
    assert shares.sum(axis=1) == pytest.approx([1, 1])


def test_mixup_mixes_each_image_with_its_opposite():
    objective = Objective(2, mixup=0.2, mixup_epochs=1)
    images, shares = objective.mixed(nd.array([[1.0], [3.0], [9.0]]), nd.array([0, 1, 1]), 0.75)
    assert images.asnumpy().ravel().tolist() == [0.75 + 2.25, 3.0, 6.75 + 0.25]
    assert shares.asnumpy().tolist() == [[0.75, 0.25], [0, 1], [0.25, 0.75]]
    (losses,) = objective.losses([nd.array([[0, 0], [0, 1], [0, 0]])], [shares])
    assert losses.asnumpy() == pytest.approx(np.log([2, 1 + np.exp(-1), 2]), rel=1e-5)


def test_mixup_weights_depend_on_seed_epoch_and_batch_alone():
    objective = Objective(2, mixup=0.2, mixup_epochs=3, seed=5)
    weights = [objective.weight(epoch, batch) for epoch in range(3) for batch in range(200)]
    assert weights == [objective.weight(e, b) for e in range(3) for b in range(200)]
    assert len(set(weights)) == 600
    # Beta(0.2, 0.2): mean 1/2, variance 1/4 / 1.4
    assert np.mean(weights) == pytest.approx(0.5, abs=0.06)
    assert np.var(weights) == pytest.approx(0.25 / 1.4, abs=0.02)
    assert objective.weight(3, 0) == 1.0  # the last epochs are not mixed
