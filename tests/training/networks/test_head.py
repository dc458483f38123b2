"""The head of a network, trained alone."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.training.data import TrainingBatches
from gluon_amp.training.networks.head import freeze_features, freeze_statistics, head_of
from gluon_amp.training.networks.models import MXNET_MODELS, build
from gluon_amp.training.runs.engines.gluon import GluonEngine
from gluon_amp.training.runs.loop import Loop
from gluon_amp.training.runs.objective import Objective
from gluon_amp.training.runs.schedule import Schedule

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon.data import SimpleDataset


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


def small_images(name):
    return 224 if name.startswith(("dense", "squ")) else 64  # their last pooling takes it all


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        n
        for n in MXNET_MODELS
        if n
        in (
            "alexnet",
            "densenet121",
            "mobilenet0.25",
            "mobilenetv2_0.25",
            "resnet18_v1",
            "resnet18_v2",
            "squeezenet1.1",
            "vgg11_bn",
        )
    ],
)
def test_a_float16_step_of_the_head_of_each_family(name):
    take_a_step(name)


def learn_statistics(net, images):
    """Let BatchNorm know these images, as it does in a pretrained network."""
    norms = []
    net.apply(lambda block: norms.append(block) if isinstance(block, gluon.nn.BatchNorm) else None)
    for norm in norms:
        norm._kwargs["momentum"] = 0.0
    with autograd.record():
        loss = net(images).sum()
    loss.backward()


def take_a_step(name):
    """One float16 step with frozen features: the head moves, and nothing else, masters included."""
    mx.random.seed(0)
    net = build(name, 7)
    net.initialize(mx.init.Xavier())
    size = small_images(name)
    learn_statistics(net, nd.random.normal(shape=(2, 3, size, size)))
    head = head_of(net, build(name, 8))
    freeze_features(net, head)
    amp.cast(net, "float16")
    images, labels = nd.random.normal(shape=(2, 3, size, size)), nd.array([1, 6])
    with autograd.train_mode():
        assert net(images).shape == (2, 7)
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, loss_scale=8)

    def values():
        own = {n: p.data() for n, p in net.collect_params().items()}
        held = {f"master of {n}": m for n, m in trainer.master_params().items()}
        return {n: array.asnumpy().tobytes() for n, array in {**own, **held}.items()}

    before = values()
    with autograd.record():
        loss = gluon.loss.SoftmaxCrossEntropyLoss()(net(images), labels)
    trainer.backward(loss)
    assert trainer.step(2).applied
    after = values()
    moved = {n for n in before if before[n] != after[n]}
    kept = {param.name for param in head}
    assert moved <= kept | {f"master of {n}" for n in kept}
    assert any(n.endswith("weight") for n in moved)


def test_frozen_statistics_stay_while_all_layers_learn():
    mx.random.seed(0)
    net = build("cifar_resnet8_v1", 3)
    net.initialize(mx.init.Xavier())
    images = nd.random.normal(shape=(4, 3, 32, 32))
    learn_statistics(net, images)
    freeze_statistics(net)
    amp.cast(net, "bfloat16")
    before = {n: p.data().asnumpy() for n, p in net.collect_params().items()}
    predicted = net(images).asnumpy()
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    with autograd.record():
        outputs = net(images)
        loss = gluon.loss.SoftmaxCrossEntropyLoss()(outputs, nd.array([0, 1, 2, 0]))
    np.testing.assert_array_equal(outputs.asnumpy(), predicted)
    trainer.backward(loss)
    assert trainer.step(4).applied
    after = {n: p.data().asnumpy() for n, p in net.collect_params().items()}
    moved = {n for n in before if (before[n] != after[n]).any()}
    statistics = {n for n in before if "running" in n}
    assert statistics and not moved & statistics
    assert any("conv" in n for n in moved) and any("gamma" in n for n in moved)
