"""Label smoothing, mixup, accumulation and clipping: what they make of literal numbers."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.training.data import TrainingBatches, ValidationBatches
from gluon_amp.training.data.datasets import Augmented
from gluon_amp.training.runs.engines.gluon import GluonEngine
from gluon_amp.training.runs.engines.module import ModuleEngine
from gluon_amp.training.runs.loop import Loop
from gluon_amp.training.runs.objective import Objective
from gluon_amp.training.runs.schedule import Schedule

import mxnet as mx
from mxnet import nd
from mxnet.gluon import nn
from mxnet.gluon.data import SimpleDataset
from mxnet.kvstore import KVStoreBase

# --------------------------------------------------------------------------------------- targets


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


def test_mixup_weights_depend_on_seed_epoch_and_batch_alone():
    objective = Objective(2, mixup=0.2, mixup_epochs=3, seed=5)
    weights = [objective.weight(epoch, batch) for epoch in range(3) for batch in range(200)]
    assert weights == [objective.weight(e, b) for e in range(3) for b in range(200)]
    assert len(set(weights)) == 600
    # Beta(0.2, 0.2): mean 1/2, variance 1/4 / 1.4
    assert np.mean(weights) == pytest.approx(0.5, abs=0.06)
    assert np.var(weights) == pytest.approx(0.25 / 1.4, abs=0.02)
    assert objective.weight(3, 0) == 1.0  # the last epochs are not mixed


def test_losses_of_shares_are_cross_entropies():
    outputs = nd.array([[2.0, 0.0, 1.0]])
    logs = np.log(np.exp([2, 0, 1]) / np.exp([2, 0, 1]).sum())
    smooth = Objective(3, smoothing=0.3)
    (loss,) = smooth.losses([outputs], [smooth.shares(nd.array([0]))])
    wanted = -(0.8 * logs[0] + 0.1 * logs[1] + 0.1 * logs[2])
    assert loss.asscalar() == pytest.approx(wanted, rel=1e-5)
    (plain,) = Objective(3).losses([outputs], [nd.array([0])])
    assert plain.asscalar() == pytest.approx(-logs[0], rel=1e-5)


# ------------------------------------------------------------------------------------- the engine


def dense_net(devices=None):
    mx.random.seed(3)
    net = nn.HybridSequential()
    net.add(nn.Dense(8, activation="relu", in_units=4), nn.Dense(3, in_units=8))
    net.initialize(mx.init.Xavier(), ctx=devices or mx.cpu())
    return net


def points(count=24):
    random = np.random.RandomState(0)
    labels = (np.arange(count) % 3).astype(np.int32)
    data = random.randn(count, 4).astype(np.float32) + np.eye(4, dtype=np.float32)[labels]
    return SimpleDataset(list(zip(data, labels)))


def engine_of(net, dtype="float32", rate=0.5, **options):
    amp.cast(net, dtype)
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": rate}, loss_scale=8)
    return GluonEngine(net, trainer, Objective(3), [mx.cpu()], **options)


def trained(size, accumulate=1, dtype="float32", **options):
    net = dense_net()
    if accumulate > 1:
        for param in net.collect_params().values():
            param.grad_req = "add"
    engine = engine_of(net, dtype, **options)
    loop = Loop(engine, Schedule(0.5, 2, 24 // size, "constant"), accumulate=accumulate)
    batches = TrainingBatches(Augmented(points(), lambda image, _: image, 0), size)
    results = [loop.train(batches, epoch) for epoch in range(2)]
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


def test_clipped_gradients_move_the_weights_less():
    net = dense_net()
    before = [param.data().asnumpy() for param in net.collect_params().values()]
    engine = engine_of(net, rate=1.0, clip=0.01)
    loop = Loop(engine, Schedule(1.0, 1, 1, "constant"))
    loop.train(TrainingBatches(Augmented(points(), lambda image, _: image, 0), 24), 0)
    after = [param.data().asnumpy() for param in net.collect_params().values()]
    moved = np.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(after, before)))
    assert moved == pytest.approx(0.01, rel=1e-3)  # the norm of the mean loss's gradient, times lr


def module_of(net, objective=None, size=8, **options):
    settings = {"learning_rate": 0.5, "wd": 0.0}
    objective = objective or Objective(3)
    options["policy"] = "float32"
    return ModuleEngine(net, objective, [mx.cpu()], size, (4,), "sgd", settings, **options)


def assert_same_values(net, twin, module):
    values, _ = module.module.get_params()
    for ours, its in zip(net.collect_params().values(), twin.collect_params()):
        np.testing.assert_allclose(
            values[its].asnumpy(), ours.data().asnumpy(), rtol=1e-5, atol=1e-6
        )


def test_a_module_is_the_twin_of_a_gluon_network():
    """The same weights, batches and rate, in float32: the same network after an epoch."""
    rates = Schedule(0.5, 1, 3, "constant")
    batches = TrainingBatches(Augmented(points(), lambda image, _: image, 0), 8)
    net = dense_net()
    gluon_result = Loop(engine_of(net), rates).train(batches, 0)
    twin = dense_net()
    module = module_of(twin, loss_scale=8)
    module_result = Loop(module, rates).train(batches, 0)
    assert_same_values(net, twin, module)
    assert module_result.loss == pytest.approx(gluon_result.loss, rel=1e-5)
    assert module_result.accuracy == gluon_result.accuracy


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


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("policy", ["float32", "float16"])
def test_a_module_with_two_workers_divides_by_the_images_of_both(policy, optimizer):
    """Two workers with the same images move the weights as one does."""
    batches = TrainingBatches(Augmented(points(), lambda image, _: image, 0), 8)
    weights = []
    for workers, kvstore in [(1, "device"), (2, TwoEqualWorkers())]:
        # an epsilon as large as the gradient, or Adam would not see its length
        settings = {"learning_rate": 0.5, **({"epsilon": 0.1} if optimizer == "adam" else {})}
        net = dense_net()
        for param in net.collect_params().values():  # workers begin with the weights, not masters
            param.set_data(param.data().astype("float16").astype("float32"))
        engine = ModuleEngine(
            net,
            Objective(3),
            [mx.cpu()],
            8,
            (4,),
            optimizer,
            settings,
            kvstore,
            workers,
            policy=policy,
            loss_scale=8,
        )
        # until the first step, the module's own default
        assert engine.module.optimizer.rescale_grad == 1 / (8 * workers)
        Loop(engine, Schedule(0.5, 1, 3, "constant")).train(batches, 0)
        values, _ = engine.module.get_params()
        weights.append([value.asnumpy() for value in values.values()])
    for alone, together in zip(*weights):
        np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-6)


def test_a_modules_smoothing_is_that_of_gluon():
    smooth = Objective(3, smoothing=0.3)
    batches = TrainingBatches(Augmented(points(), lambda image, _: image, 0), 24)
    net = dense_net()
    engine = engine_of(net)
    engine.objective = smooth
    gluon_result = Loop(engine, Schedule(0.5, 1, 1, "constant")).train(batches, 0)
    twin = dense_net()
    module = module_of(twin, smooth, 24)
    module_result = Loop(module, Schedule(0.5, 1, 1, "constant")).train(batches, 0)
    assert_same_values(net, twin, module)
    assert module_result.loss == pytest.approx(gluon_result.loss, rel=1e-5)
    validation = ValidationBatches(points(), 24)
    losses = [
        Loop(each, Schedule(0.5, 1, 1, "constant")).validate(validation, 24, 0).cross_entropy
        for each in (engine, module)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)  # that of the labels, not smoothed
