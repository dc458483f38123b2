"""What a recipe describes: its network, its optimizer, its statistics and its random numbers."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

from gluon_amp.training.networks.models import build
from gluon_amp.training.runs import building, log
from gluon_amp.training.runs.building import build_engine, build_trainer, loss_scale_option
from gluon_amp.training.runs.history import Counts
from gluon_amp.training.runs.loop import Loop
from gluon_amp.training.runs.objective import Objective
from gluon_amp.training.runs.recipe import read, read_fine_tuning
from gluon_amp.training.runs.schedule import Schedule
from gluon_amp.training.workers.group import Workers
from tests.training.runs.engines.small import dense_net

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import nn

pytestmark = pytest.mark.usefixtures("no_imagenet")


def network_of(*options, reader=read):
    recipe = reader(["--dataset", "digits", "--model", "cifar_resnet8_v1", *options])
    net = building.build_network(recipe, 5, 32, [mx.cpu()])
    net(nd.zeros((1, 3, 32, 32)))
    return net


def named(net):
    return {name[len(net.prefix) :]: param for name, param in net.collect_params().items()}


def test_features_are_copied_and_the_head_is_new(monkeypatch, caplog):
    """Both networks have five classes, so the shapes do not show which layers are the head."""
    source = build("cifar_resnet8_v1", 5)
    source.initialize(mx.init.Xavier())
    source(nd.zeros((1, 3, 32, 32)))
    monkeypatch.setattr(building, "digits_network", lambda *_: source)

    def copied(*options):
        own = named(network_of(*options, reader=read_fine_tuning))
        return {
            name: np.array_equal(own[name].data().asnumpy(), its.data().asnumpy())
            for name, its in named(source).items()
            if name.endswith("weight")
        }

    equal = copied()
    assert "training on the digits 0 to 4 first,\nfor 8 epochs" in caplog.text
    assert equal.pop("dense0_weight") is False
    assert all(equal.values()) and len(equal) > 5
    assert not any(copied("--from-scratch").values())


def test_options_of_parameters():
    plain = named(network_of())
    assert {param.wd_mult for param in plain.values()} == {1.0}
    changed = named(
        network_of(*"--no-wd --last-gamma --head-lr-mult 5 --freeze-statistics".split())
    )
    assert {name for name, param in changed.items() if param.wd_mult == 0} == {
        name for name in changed if name.endswith(("bias", "gamma", "beta"))
    }
    heads = {name for name, param in changed.items() if param.lr_mult == 5}
    assert heads == {"dense0_weight", "dense0_bias"}
    zero = [name for name, p in changed.items() if "gamma" in name and not p.data().asnumpy().any()]
    assert len(zero) == 3  # of the last BatchNorm of each residual block
    frozen = named(network_of("--freeze-features"))
    trained = {name for name, param in frozen.items() if param.grad_req != "null"}
    assert trained == {"dense0_weight", "dense0_bias"}


@pytest.mark.parametrize("mode, active", [("hybrid", True), ("imperative", False)])
def test_modes(mode, active):
    net = network_of("--mode", mode, "--dtype", "mixed_float16")
    assert (("static_alloc", True) in net._flags) is active


def test_each_optimizer_gets_its_own_options():
    for optimizer in ("sgd", "nag", "adam", "adamw", "lars", "lamb"):
        recipe = read([*"--momentum 0.5 --wd 0.25 --loss-scale 128 --optimizer".split(), optimizer])
        trainer = build_trainer(recipe, dense_net(), 0.125)
        assert (trainer.learning_rate, trainer.optimizer.wd) == (0.125, 0.25)
        assert getattr(trainer.optimizer, "momentum", 0.5) == 0.5
        assert trainer.loss_scale.scale == 128
    options = [loss_scale_option(read(words)) for words in (["--loss-scale", "none"], [])]
    assert options == [{"loss_scale": None}, {}]  # none, and the policy's own


class Noise(nn.HybridBlock):
    """Adds noise, by an operator other than Dropout."""

    def hybrid_forward(self, F, x):
        return x + F.random.normal_like(x) if autograd.is_training() else x


class Scaled(Objective):
    """A loss that draws from the generators of numpy and of Python."""

    def losses(self, outputs, targets):
        factor = np.random.uniform(0.5, 1) + random.uniform(0.5, 1)
        return [factor * loss for loss in super().losses(outputs, targets)]


def trained(mode, rank, disturbed=False):
    """Weights after two steps of one of several workers, all of which see the same images."""
    mx.random.seed(0)
    random_layer = nn.Dropout(0.5) if mode == "module" else Noise()
    with mx.name.NameManager():
        net = nn.HybridSequential()
        net.add(nn.Flatten(), random_layer, nn.Dense(3, in_units=32))
    net.initialize(mx.init.One())
    data = SimpleNamespace(classes=3, image_shape=(2, 4, 4))
    workers = Workers()
    workers.rank = rank
    recipe = read(["--seed", "7", "--mode", mode, "--batch-size", "4"])
    engine = build_engine(recipe, net, data, [mx.cpu()], 0.1, workers)
    if mode == "hybrid":
        engine.objective = Scaled(3)
    images, labels = nd.array(np.random.RandomState(1).rand(4, 2, 4, 4)), nd.array([0, 1, 2, 0])
    loop = Loop(engine, Schedule(0.1, 4, 2, "constant"), workers, log_interval=0, seed=7)
    batches = SimpleNamespace(images=8, batch_size=4, epoch=lambda *at: [(images, labels)] * 2)

    def disturb(done, counts):
        if disturbed:
            nd.random.uniform(shape=5), np.random.rand(), random.random()

    with log.silence():
        loop.train(batches, epoch=3, after_update=disturb)
    if mode == "module":
        return engine.module.get_params()[0]["dense0_weight"].asnumpy()
    return net[2].weight.data().asnumpy()


@pytest.mark.parametrize("mode", ["hybrid", "module"])
def test_each_worker_draws_its_own_random_numbers_and_draws_them_again(mode):
    """Those of Dropout, of any other operator, of numpy and of Python."""
    first, second = (trained(mode, rank) for rank in range(2))
    assert np.array_equal(trained(mode, 0, disturbed=True), first)
    assert np.array_equal(trained(mode, 1, disturbed=True), second)
    assert not np.array_equal(first, second)


def test_the_first_step_leaves_each_device_its_own_statistics():
    net = nn.HybridSequential()
    net.add(nn.BatchNorm(in_channels=2), nn.Flatten(), nn.Dense(3, in_units=32))
    devices = [mx.cpu(0), mx.cpu(1)]
    net.initialize(ctx=devices)
    data = SimpleNamespace(classes=3, image_shape=(2, 4, 4))
    recipe = read(["--seed", "7", "--batch-size", "2"])
    engine = build_engine(recipe, net, data, devices, 0.1, Workers())
    images = nd.concat(nd.zeros((2, 2, 4, 4)), nd.ones((2, 2, 4, 4)), dim=0)
    engine.step([(images, nd.array([0, 1, 2, 0]))], epoch=0, number=0, counts=Counts())
    means = [array.asnumpy() for array in net[0].running_mean.list_data()]
    np.testing.assert_allclose(means, [[0, 0], [0.1, 0.1]], rtol=1e-6)
