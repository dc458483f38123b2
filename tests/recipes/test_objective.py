"""Label smoothing, mixup, accumulation and clipping: what they make of literal numbers."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.command_line import UsageError
from gluon_amp.data import TrainingBatches
from gluon_amp.data.augment import Augmented
from gluon_amp.recipes import initial
from gluon_amp.recipes.engine import GluonEngine
from gluon_amp.recipes.heads import freeze_features, head_of
from gluon_amp.recipes.loop import Loop
from gluon_amp.recipes.models import MXNET_MODELS, build
from gluon_amp.recipes.module_engine import ModuleEngine
from gluon_amp.recipes.objective import Objective
from gluon_amp.recipes.schedule import Schedule

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


def test_a_module_is_the_twin_of_a_gluon_network():
    """The same weights, batches and rate, in float32: the same network after an epoch."""
    rates = Schedule(0.5, 1, 3, "constant")
    batches = TrainingBatches(Augmented(points(), lambda image, _: image, 0), 8)
    net = dense_net()
    gluon_result = Loop(engine_of(net), rates).train(batches, 0)
    twin = dense_net()
    module = ModuleEngine(
        twin, Objective(3), [mx.cpu()], 8, (4,), "sgd", {"learning_rate": 0.5, "wd": 0.0},
        policy="float32", loss_scale=8,
    )  # fmt: skip
    module_result = Loop(module, rates).train(batches, 0)
    values, _ = module.module.get_params()
    for ours, its in zip(net.collect_params().values(), twin.collect_params()):
        np.testing.assert_allclose(
            values[its].asnumpy(), ours.data().asnumpy(), rtol=1e-5, atol=1e-6
        )
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
            net, Objective(3), [mx.cpu()], 8, (4,), optimizer, settings, kvstore, workers,
            policy=policy, loss_scale=8,
        )  # fmt: skip
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
    module = ModuleEngine(
        twin, smooth, [mx.cpu()], 24, (4,), "sgd", {"learning_rate": 0.5, "wd": 0.0},
        policy="float32",
    )  # fmt: skip
    module_result = Loop(module, Schedule(0.5, 1, 1, "constant")).train(batches, 0)
    values, _ = module.module.get_params()
    for ours, its in zip(net.collect_params().values(), twin.collect_params()):
        np.testing.assert_allclose(
            values[its].asnumpy(), ours.data().asnumpy(), rtol=1e-5, atol=1e-6
        )
    assert module_result.loss == pytest.approx(gluon_result.loss, rel=1e-5)


# ---------------------------------------------------------------------------- what it begins with


@pytest.mark.parametrize(
    "name, blocks",
    [("resnet18_v1", 8), ("resnet50_v1", 16), ("resnet50_v1b", 16), ("cifar_resnet8_v1", 3)],
)
def test_last_gammas_are_zero_and_others_one(name, blocks):
    net = build(name, 10)
    assert initial.zero_last_gammas(net, name) == blocks
    net.initialize()
    gammas = [p for n, p in net.collect_params().items() if n.endswith("gamma")]
    size = 32 if name.startswith("cifar") else 64
    net(nd.zeros((1, 3, size, size)))
    zeros = [gamma for gamma in gammas if not gamma.data().asnumpy().any()]
    assert len(zeros) == blocks
    others = [gamma for gamma in gammas if gamma not in zeros]
    assert all((gamma.data().asnumpy() == 1).all() for gamma in others)


@pytest.mark.parametrize("name", ["alexnet", "resnet18_v2", "mobilenet0.25"])
def test_networks_without_such_blocks_are_refused(name):
    with pytest.raises(UsageError, match=f"--last-gamma: {name} has no residual blocks"):
        initial.zero_last_gammas(build(name, 10), name)


def test_no_decay_of_biases_and_norms():
    net = build("resnet18_v1", 10)
    initial.without_decay(net)
    for name, param in net.collect_params().items():
        assert param.wd_mult == (1.0 if name.endswith(("weight", "mean", "var")) else 0.0)


@pytest.mark.parametrize("name", MXNET_MODELS)
def test_the_head_of_every_zoo_network_follows_the_classes(name):
    net = build(name, 7)
    head = head_of(net, build(name, 8))
    assert {param.shape[0] for param in head} == {7}
    output = set(net.output.collect_params())
    assert {param.name for param in head} == output


def test_frozen_features_do_not_move_and_the_head_learns():
    mx.random.seed(1)
    net = build("resnet18_v1", 7)
    net.initialize(mx.init.Xavier())
    head = head_of(net, build("resnet18_v1", 8))
    freeze_features(net, head)
    amp.cast(net, "float16")
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5}, loss_scale=128)
    images, labels = nd.random.normal(shape=(4, 3, 32, 32)), nd.array([0, 1, 2, 6])
    net(images)
    kept = {param.name for param in head}

    def values():
        held = {f"master of {n}": m for n, m in trainer.master_params().items()}
        own = {n: p.data() for n, p in net.collect_params().items()}
        return {n: array.asnumpy().tobytes() for n, array in {**own, **held}.items()}

    before = values()
    engine = GluonEngine(net, trainer, Objective(7), [mx.cpu()])
    loop = Loop(engine, Schedule(0.5, 1, 1, "constant"))
    data = SimpleDataset(list(zip(images.asnumpy(), labels.asnumpy().astype(np.int32))))
    loop.train(TrainingBatches(data, 4, num_workers=0), 0)
    after = values()
    moved = {name for name in before if before[name] != after[name]}
    assert moved == kept | {f"master of {name}" for name in kept}


# ------------------------------------------------------------------------------------ weight files


def saved(tmp_path, name="resnet18_v1", classes=10):
    net = build(name, classes)
    net.initialize(mx.init.Xavier())
    net(nd.zeros((1, 3, 32, 32)))
    path = tmp_path / "net.params"
    net.save_parameters(str(path))
    return net, path


def test_weights_for_other_classes_leave_the_head_alone(tmp_path):
    source, path = saved(tmp_path)
    net = build("resnet18_v1", 7)
    net.initialize(mx.init.Xavier())
    net(nd.zeros((1, 3, 32, 32)))
    assert initial.load_matching(net, path) == ["output.weight", "output.bias"]
    ours, its = net.features.collect_params(), source.features.collect_params()
    for a, b in zip(ours.values(), its.values()):
        assert a.data().asnumpy().tobytes() == b.data().asnumpy().tobytes()


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda folder: folder / "none.params", "none.params cannot be read as parameters"),
        (lambda folder: (folder / "a.params", (folder / "a.params").write_bytes(b"x"))[0],
         "a.params cannot be read as parameters"),
        (lambda folder: _list_file(folder),
         "holds arrays without names"),
    ],
)  # fmt: skip
def test_files_that_are_no_parameters(tmp_path, make, sentence):
    net = build("resnet18_v1", 7)
    net.initialize()
    with pytest.raises(UsageError, match=sentence):
        initial.load_matching(net, make(tmp_path))


def _list_file(folder):
    nd.save(str(folder / "list.params"), [nd.zeros(1)])
    return folder / "list.params"


def test_weights_of_another_network_are_refused(tmp_path):
    _, path = saved(tmp_path)
    net = build("mobilenet0.25", 10)
    net.initialize()
    with pytest.raises(UsageError, match="is of another network: only 1 of 28 layers fit"):
        initial.load_matching(net, path)


def test_a_dead_host_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("MXNET_GLUON_REPO", "http://127.0.0.1:9/")
    with pytest.raises(UsageError, match="cannot be downloaded .*MXNET_GLUON_REPO to a mirror"):
        initial.zoo_file("resnet18_v1", tmp_path)
    with pytest.raises(UsageError, match="no zoo has weights of cifar_resnet8_v1"):
        initial.zoo_file("cifar_resnet8_v1", tmp_path)
