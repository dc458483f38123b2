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


def step_of(net, images, policy):
    """Train one step; return the names of what is there, and of what moved, masters included.

    Training predicts what inference does, as BatchNorm uses its running statistics; oneDNN's
    kernels for the two may add in another order.
    """
    amp.cast(net, policy)
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, loss_scale=8)
    predicted, before = net(images).asnumpy(), bits(net, trainer)
    labels = nd.array([0, 1, 2, 0])
    with autograd.record():
        outputs = net(images)
        loss = gluon.loss.SoftmaxCrossEntropyLoss()(outputs, labels)
    np.testing.assert_allclose(outputs.asnumpy(), predicted, rtol=2**-8, atol=2**-8)
    trainer.backward(loss)
    assert trainer.step(4).applied
    after = bits(net, trainer)
    return set(before), {n for n in before if before[n] != after[n]}


def learned_net(name, side):
    net = build(name, 7)
    net.initialize(mx.init.Xavier())
    images = nd.random.normal(shape=(4, 3, side, side))
    learn_statistics(net, nd.random.normal(shape=images.shape))
    return net, images


@pytest.mark.parametrize(
    "name, side",
    [
        ("cifar_resnet8_v1", 32),
        pytest.param("mobilenetv2_0.25", 64, marks=pytest.mark.slow),
    ],
)
def test_frozen_features_do_not_move_and_the_head_learns(name, side):
    net, images = learned_net(name, side)
    head = head_of(net, build(name, 8))
    freeze_features(net, head)
    _, moved = step_of(net, images, "float16")
    assert moved >= {param.name for param in head if param.name.endswith("weight")}
    assert moved <= {n for param in head for n in (param.name, f"master of {param.name}")}


def test_frozen_statistics_stay_while_all_layers_learn():
    net, images = learned_net("cifar_resnet8_v1", 32)
    freeze_statistics(net)
    there, moved = step_of(net, images, "bfloat16")
    assert any("running" in n for n in there) and not any("running" in n for n in moved)
    assert any("conv" in n for n in moved) and any("gamma" in n for n in moved)
