"""SGD and NAG: what the formulas of test_optimizer.py do not show."""

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
