"""D2L's convolutional networks, after the chapters on batch normalization and modern networks.

The case is `lenet`, with BatchNorm, or `resnet`, of D2L's residual blocks.
"""

import numpy
from d2l import mxnet as d2l

from experiments.clients.shared import CASE, STEPS, batches, losses, report, seed_all

from mxnet import autograd, gluon, init, np, npx
from mxnet.gluon import nn

npx.set_np()
seed_all()

BATCH, CLASSES = {"lenet": 32, "resnet": 16}[CASE], 10


def make_data(count):
    """Noise with a bright bar, whose place is the class; one label of ten is random."""
    labels = numpy.random.randint(0, CLASSES, count)
    if CASE == "lenet":
        images, width, bright = numpy.random.normal(0, 1, (count, 1, 28, 28)), 5, 3
    else:
        images, width, bright = numpy.random.uniform(0, 1, (count, 1, 32, 32)), 6, 1
    height = images.shape[2] // 2
    for image, label in zip(images, labels):
        row, column = divmod(label, 5)
        image[0, height * row :, width * column : width * column + width][:height] += bright
    random_ones = numpy.random.uniform(size=count) < 0.1
    labels[random_ones] = numpy.random.randint(0, CLASSES, random_ones.sum())
    return np.array(images, dtype="float32"), np.array(labels, dtype="float32")


def lenet():
    net = nn.Sequential()
    net.add(
        nn.Conv2D(6, kernel_size=5),
        nn.BatchNorm(),
        nn.Activation("sigmoid"),
        nn.AvgPool2D(pool_size=2, strides=2),
        nn.Conv2D(16, kernel_size=5),
        nn.BatchNorm(),
        nn.Activation("sigmoid"),
        nn.AvgPool2D(pool_size=2, strides=2),
        nn.Dense(120),
        nn.BatchNorm(),
        nn.Activation("sigmoid"),
        nn.Dense(84),
        nn.BatchNorm(),
        nn.Activation("sigmoid"),
        nn.Dense(CLASSES),
    )
    return net


def resnet_block(num_channels, num_residuals, first_block=False):
    """Residual blocks, of which the first halves the image."""
    blk = nn.Sequential()
    for i in range(num_residuals):
        if i == 0 and not first_block:
            blk.add(d2l.Residual(num_channels, use_1x1conv=True, strides=2))
        else:
            blk.add(d2l.Residual(num_channels))
    return blk


def resnet():
    net = nn.Sequential()
    net.add(
        nn.Conv2D(16, kernel_size=5, strides=1, padding=2),
        nn.BatchNorm(),
        nn.Activation("relu"),
        nn.MaxPool2D(pool_size=3, strides=2, padding=1),
        resnet_block(16, 2, first_block=True),
        resnet_block(32, 2),
        nn.GlobalAvgPool2D(),
        nn.Dense(CLASSES),
    )
    return net


net, learning_rate = (lenet(), 1) if CASE == "lenet" else (resnet(), 0.05)
device = d2l.try_gpu()
net.initialize(force_reinit=True, ctx=device, init=init.Xavier())
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": learning_rate})

for X, y in batches(d2l.load_array(make_data(BATCH * STEPS), BATCH)):
    X, y = X.as_in_ctx(device), y.as_in_ctx(device)
    with autograd.record():
        y_hat = net(X)
        loss = loss_fn(y_hat, y)
    loss.backward()
    trainer.step(X.shape[0])
    losses.append(float(loss.mean()))

accuracy = d2l.evaluate_accuracy_gpu(net, d2l.load_array(make_data(256), BATCH, is_train=False))
report({"accuracy": accuracy})
