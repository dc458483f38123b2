"""Accuracy."""

import numpy as np

from gluon_amp.training.runs.meters import TopK

from mxnet import nd


def test_top_k_counts_as_numpy_does():
    outputs = np.random.randn(50, 12).astype("float32")
    labels = np.random.randint(0, 12, 50)
    best = np.argsort(-outputs, axis=1)
    for k in (1, 5):
        meter = TopK(k)
        for at in (0, 20, 40):
            part = slice(at, at + 20)
            meter.update(nd.array(labels[part], dtype="int32"), nd.array(outputs[part]))
        assert meter.images == 50
        assert meter.right == (best[:, :k] == labels[:, None]).sum()
    meter = TopK(5)  # of three classes
    meter.update(nd.array([0, 1, 2]), nd.random.normal(shape=(3, 3)))
    assert meter.share == 1
    assert np.isnan(TopK().share)


def test_top_k_is_exact_past_2048_classes():
    outputs = nd.zeros((1, 4096))
    outputs[0, 2049] = 1
    meter = TopK()
    meter.update(nd.array([2049]), outputs)
    meter.update(nd.array([2048]), outputs)
    assert (meter.right, meter.share) == (1, 0.5)
