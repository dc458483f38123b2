"""What a recipe describes: its network, its optimizer and its statistics."""

from types import SimpleNamespace

import numpy as np
import pytest

from gluon_amp.training.networks.models import build
from gluon_amp.training.runs import building
from gluon_amp.training.runs.building import build_engine, build_trainer, loss_scale_option
from gluon_amp.training.runs.history import Counts
from gluon_amp.training.runs.recipe import read, read_fine_tuning
from gluon_amp.training.workers.group import Workers
from tests.training.runs.engines.small import dense_net

import mxnet as mx
from mxnet import nd
from mxnet.gluon import nn


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
