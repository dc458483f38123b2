"""The engine of Module: the twin of that of Gluon."""

import numpy as np
import pytest

from gluon_amp.training.data import ValidationBatches
from gluon_amp.training.runs.engines.module import ModuleEngine
from gluon_amp.training.runs.loop import Loop
from gluon_amp.training.runs.objective import Objective
from gluon_amp.training.runs.schedule import Schedule
from tests.training.runs.engines.small import batches, dense_net, engine_of, points

import mxnet as mx
from mxnet.kvstore import KVStoreBase


def module_of(net, objective):
    settings = {"learning_rate": 0.5, "wd": 0.0}
    options = {"policy": "float32", "loss_scale": 8}
    return ModuleEngine(net, objective, [mx.cpu()], 8, (4,), "sgd", settings, **options)


@pytest.mark.parametrize("objective", [Objective(3), Objective(3, smoothing=0.3)])
def test_a_module_is_the_twin_of_a_gluon_network(objective):
    """The same weights, batches and rate, in float32: the same network after an epoch."""
    net, twin = dense_net(), dense_net()
    engine, module = engine_of(net), module_of(twin, objective)
    engine.objective = objective
    loops = [Loop(each, Schedule(0.5, 1, 3, "constant")) for each in (engine, module)]
    ours, its = (loop.train(batches(8), 0) for loop in loops)
    values, _ = module.module.get_params()
    for param, name in zip(net.collect_params().values(), twin.collect_params()):
        expected = param.data().asnumpy()
        np.testing.assert_allclose(values[name].asnumpy(), expected, rtol=1e-5, atol=1e-6)
    assert its.loss == pytest.approx(ours.loss, rel=1e-5)
    assert its.accuracy == ours.accuracy
    # that of the labels, not smoothed
    ours, its = (loop.validate(ValidationBatches(points(), 8), 24, 0) for loop in loops)
    assert its.cross_entropy == pytest.approx(ours.cross_entropy, rel=1e-5)


class TwoEqualWorkers(KVStoreBase):
    """A kvstore as one of two workers with the same weights and the same batch sees it."""

    type, rank, num_workers = "two", 0, 2

    def broadcast(self, key, value, out, priority=0):
        """Leave the weights as they are: both have them."""

    def pushpull(self, key, value, out=None, priority=0):
        for array in value if isinstance(value, list) else [value]:
            array *= 2

    @staticmethod
    def is_capable(capability):
        return False


@pytest.mark.parametrize("policy, optimizer", [("float32", "adam"), ("float16", "sgd")])
def test_a_module_with_two_workers_divides_by_the_images_of_both(policy, optimizer):
    """Two workers with the same images move the weights as one does."""
    weights = []
    for workers, kvstore in [(1, "device"), (2, TwoEqualWorkers())]:
        # an epsilon as large as the gradient, or Adam would not see its length
        settings = {"learning_rate": 0.5, **({"epsilon": 0.1} if optimizer == "adam" else {})}
        net = dense_net()
        for param in net.collect_params().values():  # workers begin with the weights, not masters
            param.set_data(param.data().astype("float16").astype("float32"))
        options = {"policy": policy, "loss_scale": 8}
        about = (8, (4,), optimizer, settings, kvstore, workers)
        engine = ModuleEngine(net, Objective(3), [mx.cpu()], *about, **options)
        # until the first step, the module's own default
        assert engine.module.optimizer.rescale_grad == 1 / (8 * workers)
        Loop(engine, Schedule(0.5, 1, 3, "constant")).train(batches(8), 0)
        values, _ = engine.module.get_params()
        weights.append([value.asnumpy() for value in values.values()])
    for alone, together in zip(*weights):
        np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-6)
