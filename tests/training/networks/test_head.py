"""The head of a network, trained alone."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.training.networks.head import freeze_features, freeze_statistics, head_of
from gluon_amp.training.networks.models import build

import mxnet as mx
from mxnet import autograd, gluon, nd


@pytest.mark.parametrize(
    "name", ["resnet18_v1", "densenet121", "squeezenet1.1", "mobilenetv2_0.25"]
)
def test_the_head_is_what_follows_the_classes(name):
    """A dense layer, or a 1×1 convolution within a sequence."""
    net = build(name, 7)
    head = head_of(net, build(name, 8))
    assert {param.shape[0] for param in head} == {7}
    assert {param.name for param in head} == set(net.output.collect_params())


def bits(net, trainer):
    """Return the bytes of all parameters and masters, by name."""
    own = {n: p.data() for n, p in net.collect_params().items()}
    held = {f"master of {n}": m for n, m in trainer.master_params().items()}
    return {n: array.asnumpy().tobytes() for n, array in {**own, **held}.items()}


def learn_statistics(net, images):
    """Let BatchNorm know these images, as it does in a pretrained network."""
    norms = []
    net.apply(lambda block: norms.append(block) if isinstance(block, gluon.nn.BatchNorm) else None)
    for norm in norms:
        norm._kwargs["momentum"] = 0.0
    with autograd.record():
        loss = net(images).sum()
    loss.backward()


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("cifar_resnet8_v1", 32),
        pytest.param("squeezenet1.1", 224, marks=pytest.mark.slow),
        pytest.param("mobilenetv2_0.25", 64, marks=pytest.mark.slow),
        pytest.param("vgg11_bn", 64, marks=pytest.mark.slow),
    ],
)
def test_frozen_features_do_not_move_and_the_head_learns(name, size):
    """One float16 step: the head moves, and nothing else, masters included."""
    net = build(name, 7)
    net.initialize(mx.init.Xavier())
    images, labels = nd.random.normal(shape=(2, 3, size, size)), nd.array([1, 6])
    learn_statistics(net, nd.random.normal(shape=images.shape))
    head = head_of(net, build(name, 8))
    freeze_features(net, head)
    amp.cast(net, "float16")
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, loss_scale=8)
    predicted = net(images).asnumpy()
    before = bits(net, trainer)
    with autograd.record():
        outputs = net(images)
        loss = gluon.loss.SoftmaxCrossEntropyLoss()(outputs, labels)
    if "mobilenet" in name or "resnet" in name:  # the others have dropout
        np.testing.assert_array_equal(outputs.asnumpy(), predicted)
    trainer.backward(loss)
    assert trainer.step(2).applied
    after = bits(net, trainer)
    moved = {n for n in before if before[n] != after[n]}
    weights = {param.name for param in head if param.name.endswith("weight")}
    assert moved >= weights
    assert moved <= {n for param in head for n in (param.name, f"master of {param.name}")}


def test_frozen_statistics_stay_while_all_layers_learn():
    net = build("cifar_resnet8_v1", 3)
    net.initialize(mx.init.Xavier())
    images = nd.random.normal(shape=(4, 3, 32, 32))
    learn_statistics(net, images)
    freeze_statistics(net)
    amp.cast(net, "bfloat16")
    predicted = net(images).asnumpy()
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    before = bits(net, trainer)
    with autograd.record():
        outputs = net(images)
        loss = gluon.loss.SoftmaxCrossEntropyLoss()(outputs, nd.array([0, 1, 2, 0]))
    np.testing.assert_array_equal(outputs.asnumpy(), predicted)
    trainer.backward(loss)
    assert trainer.step(4).applied
    after = bits(net, trainer)
    moved = {n for n in before if before[n] != after[n]}
    assert any("running" in n for n in before) and not any("running" in n for n in moved)
    assert any("conv" in n for n in moved) and any("gamma" in n for n in moved)
