"""Law 8: casting back after training loses no bit of the masters."""

import numpy as np

import gluon_amp as amp
from tests.laws.training import Training


def test_the_masters_come_back():
    training = Training("adam")
    for index in range(3):
        training.step(index)
    masters = {name: m.asnumpy() for name, m in training.trainer.master_params().items()}
    low = [p for p in training.params.values() if np.dtype(p.dtype) == np.float16]
    assert len(low) == 4  # weights and biases of the two dense layers
    assert any((masters[p.name] != p.data().asnumpy()).any() for p in low)
    amp.cast(training.net, "float32")
    for p in low:
        assert np.dtype(p.dtype) == np.float32
        np.testing.assert_array_equal(p.data().asnumpy(), masters[p.name])
