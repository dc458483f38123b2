"""The engine of Gluon: accumulation and clipping."""

import numpy as np
import pytest

from gluon_amp.training.data import TrainingBatches
from gluon_amp.training.runs.loop import Loop
from gluon_amp.training.runs.schedule import Schedule
from tests.training.runs.engines.small import batches, dense_net, engine_of, points

from mxnet.gluon import nn


def trained(size, accumulate=1, dtype="float32", **options):
    net = dense_net()
    engine = engine_of(net, dtype, accumulates=accumulate > 1, **options)
    loop = Loop(engine, Schedule(0.5, 2, 24 // size, "constant"), accumulate=accumulate)
    results = [loop.train(batches(size), epoch) for epoch in range(2)]
    weights = [param.data().asnumpy() for param in net.collect_params().values()]
    return weights, results, loop


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_accumulated_batches_are_one_large_one(dtype):
    whole, whole_results, _ = trained(8, dtype=dtype)
    parts, part_results, loop = trained(2, accumulate=4, dtype=dtype)
    assert loop.steps == 6
    for a, b in zip(whole, parts):
        np.testing.assert_allclose(a, b, rtol=1e-5 if dtype == "float32" else 4e-3, atol=1e-4)
    for a, b in zip(whole_results, part_results):
        assert (a.images, a.accuracy) == (b.images, b.accuracy)
        assert b.loss == pytest.approx(a.loss, rel=1e-5 if dtype == "float32" else 1e-2)


def test_a_batch_that_is_left_out_does_not_enter_the_mean_loss():
    bad = points()
    bad.points[0] = 1e30
    net = nn.Dense(3, in_units=4)  # a ReLU would turn NaN into 0
    net.initialize()
    engine = engine_of(net, "float16", accumulates=True)
    loop = Loop(engine, Schedule(0.5, 1, 3, "constant"), accumulate=2)
    result = loop.train(TrainingBatches(bad, 4), 0)
    assert np.isfinite(result.loss) and engine.trainer.skips.total == 0


def test_clipped_gradients_move_the_weights_less():
    net = dense_net()
    before = [param.data().asnumpy() for param in net.collect_params().values()]
    engine = engine_of(net, rate=1.0, clip=0.01)
    loop = Loop(engine, Schedule(1.0, 1, 1, "constant"))
    loop.train(batches(24), 0)
    after = [param.data().asnumpy() for param in net.collect_params().values()]
    moved = np.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(after, before)))
    assert moved == pytest.approx(0.01, rel=1e-3)  # the norm of the mean loss's gradient, times lr
