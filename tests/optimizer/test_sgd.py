"""SGD and NAG: what the formulas of test_optimizer.py do not show."""

import numpy as np
import pytest

from gluon_amp import optimizer

import mxnet as mx
from mxnet import nd


def test_nesterov_needs_a_momentum_and_nag_without_one_is_plain_sgd():
    with pytest.raises(ValueError, match="momentum must be above 0 for nesterov"):
        optimizer.SGD(nesterov=True)
    with pytest.raises(ValueError, match=r"momentum must be at least 0, received -0\.5"):
        optimizer.SGD(momentum=-0.5)
    results = []
    for name in ("nag", "sgd"):
        updater = mx.optimizer.get_updater(optimizer.create(name, momentum=0.0, wd=0.1))
        weight = nd.ones((3,), dtype="float16")
        updater(0, nd.ones((3,), dtype="float16"), weight)
        results.append(updater.states[0][0].asnumpy().tolist())
    assert results[0] == results[1]


def test_a_csr_weight():
    values = np.float32([[1, 0, 2], [0, 3, 0]])
    results = []
    for source in (optimizer, mx.optimizer):
        updater = mx.optimizer.get_updater(source.create("sgd", momentum=0.9, wd=0.1))
        weight = nd.array(values).tostype("csr")
        for _ in range(2):
            updater(0, nd.array(values[:, ::-1]).tostype("csr"), weight)
        results.append(weight.asnumpy())
    np.testing.assert_array_equal(*results)
