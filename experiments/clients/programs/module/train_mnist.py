"""Symbols trained with `mx.mod.Module`, after MXNet's example/image-classification.

The case is what the example's option `--network` chooses: mlp, lenet or resnet.
"""

import numpy as np

from experiments.clients.shared import CASE, STEPS, losses, report, seed_all, step_ended

import mxnet as mx

seed_all()

BATCH, CLASSES = 32, 10


def mlp():
    data = mx.sym.Flatten(mx.sym.Variable("data"))
    fc1 = mx.sym.FullyConnected(data, name="fc1", num_hidden=128)
    act1 = mx.sym.Activation(fc1, name="relu1", act_type="relu")
    fc2 = mx.sym.FullyConnected(act1, name="fc2", num_hidden=64)
    act2 = mx.sym.Activation(fc2, name="relu2", act_type="relu")
    fc3 = mx.sym.FullyConnected(act2, name="fc3", num_hidden=CLASSES)
    return mx.sym.SoftmaxOutput(fc3, name="softmax")


def lenet():
    body = mx.sym.Variable("data")
    for filters in (20, 50):
        body = mx.sym.Convolution(body, kernel=(5, 5), num_filter=filters)
        body = mx.sym.Activation(body, act_type="tanh")
        body = mx.sym.Pooling(body, pool_type="max", kernel=(2, 2), stride=(2, 2))
    body = mx.sym.FullyConnected(mx.sym.Flatten(body), num_hidden=500)
    body = mx.sym.Activation(body, act_type="tanh")
    body = mx.sym.FullyConnected(body, num_hidden=CLASSES)
    return mx.sym.SoftmaxOutput(body, name="softmax")


def residual_unit(data, filters, stride, dim_match, name):
    options = {"kernel": (3, 3), "pad": (1, 1), "num_filter": filters, "no_bias": True}
    bn1 = mx.sym.BatchNorm(data, fix_gamma=False, momentum=0.9, eps=2e-5, name=name + "_bn1")
    act1 = mx.sym.Activation(bn1, act_type="relu", name=name + "_relu1")
    conv1 = mx.sym.Convolution(act1, stride=stride, name=name + "_conv1", **options)
    bn2 = mx.sym.BatchNorm(conv1, fix_gamma=False, momentum=0.9, eps=2e-5, name=name + "_bn2")
    act2 = mx.sym.Activation(bn2, act_type="relu", name=name + "_relu2")
    conv2 = mx.sym.Convolution(act2, stride=(1, 1), name=name + "_conv2", **options)
    if dim_match:
        return conv2 + data
    options.update(kernel=(1, 1), pad=(0, 0))
    return conv2 + mx.sym.Convolution(act1, stride=stride, name=name + "_sc", **options)


def resnet():
    """Return ResNet-20 with pre-activation."""
    data = mx.sym.identity(mx.sym.Variable("data"), name="id")
    body = mx.sym.BatchNorm(data, fix_gamma=True, eps=2e-5, momentum=0.9, name="bn_data")
    options = {"kernel": (3, 3), "pad": (1, 1), "num_filter": 16, "no_bias": True}
    body = mx.sym.Convolution(body, name="conv0", **options)
    for stage, filters in enumerate((16, 32, 64)):
        for unit in range(3):
            stride = (2, 2) if stage and not unit else (1, 1)
            name = f"stage{stage + 1}_unit{unit + 1}"
            body = residual_unit(body, filters, stride, unit > 0, name)
    body = mx.sym.BatchNorm(body, fix_gamma=False, eps=2e-5, momentum=0.9, name="bn1")
    body = mx.sym.Activation(body, act_type="relu", name="relu1")
    body = mx.sym.Pooling(body, global_pool=True, kernel=(7, 7), pool_type="avg", name="pool1")
    body = mx.sym.FullyConnected(mx.sym.Flatten(body), num_hidden=CLASSES, name="fc1")
    return mx.sym.SoftmaxOutput(body, name="softmax")


def get_mnist_iter():
    """Return an iterator over images of ten patterns with noise; one label of ten is random."""
    labels = np.random.randint(0, CLASSES, BATCH * STEPS)
    patterns = np.random.uniform(size=(CLASSES, 1, 28, 28))
    images = patterns[labels] + np.random.uniform(-1, 0, size=(len(labels), 1, 28, 28))
    random_ones = np.random.uniform(size=len(labels)) < 0.1
    labels[random_ones] = np.random.randint(0, CLASSES, random_ones.sum())
    return mx.io.NDArrayIter(images, labels, BATCH, shuffle=True)


def fit(network, train):
    """Train the network as the example's common/fit.py."""

    def log(parameters):
        losses.append(dict(parameters.eval_metric.get_name_value())["cross-entropy"])
        parameters.eval_metric.reset()
        step_ended()

    devs = mx.cpu()
    lr_scheduler = mx.lr_scheduler.MultiFactorScheduler(step=[STEPS // 2], factor=0.5)
    model = mx.mod.Module(context=devs, symbol=network)
    model.fit(
        train,
        num_epoch=1,
        eval_metric=["accuracy", "ce"],
        kvstore=mx.kvstore.create("device"),
        optimizer="sgd",
        optimizer_params={
            "learning_rate": 0.02,
            "momentum": 0.9,
            "wd": 0.0001,
            "lr_scheduler": lr_scheduler,
        },
        initializer=mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2),
        batch_end_callback=[log],
    )


fit({"mlp": mlp, "lenet": lenet, "resnet": resnet}[CASE](), get_mnist_iter())

report()
