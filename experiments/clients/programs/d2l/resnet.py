"""A ResNet of D2L's residual blocks, after the chapter on modern convolutional networks."""

import json
import os
import random
import time

import numpy
from d2l import mxnet as d2l

import mxnet as mx
from mxnet import autograd, gluon, init, np, npx
from mxnet.gluon import nn

npx.set_np()
SEED, STEPS = int(os.environ["SEED"]), int(os.environ["STEPS"])
random.seed(SEED)
numpy.random.seed(SEED)
mx.random.seed(SEED)

BATCH, CLASSES = 16, 10


def make_data(count):
    """Noise with a bright bar, whose place is the class; one label of ten is random."""
    labels = numpy.random.randint(0, CLASSES, count)
    images = numpy.random.uniform(0, 1, (count, 1, 32, 32))
    for image, label in zip(images, labels):
        row, column = divmod(label, 5)
        image[0, 16 * row : 16 * row + 16, 6 * column : 6 * column + 6] += 1
    random_ones = numpy.random.uniform(size=count) < 0.1
    labels[random_ones] = numpy.random.randint(0, CLASSES, random_ones.sum())
    return np.array(images, dtype="float32"), np.array(labels, dtype="float32")


def resnet_block(num_channels, num_residuals, first_block=False):
    """Residual blocks, of which the first halves the image."""
    blk = nn.Sequential()
    for i in range(num_residuals):
        if i == 0 and not first_block:
            blk.add(d2l.Residual(num_channels, use_1x1conv=True, strides=2))
        else:
            blk.add(d2l.Residual(num_channels))
    return blk


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
device = d2l.try_gpu()
net.initialize(force_reinit=True, ctx=device, init=init.Xavier())
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05})

losses, seconds = [], []
for X, y in d2l.load_array(make_data(BATCH * STEPS), BATCH):
    start = time.time()
    X, y = X.as_in_ctx(device), y.as_in_ctx(device)
    with autograd.record():
        y_hat = net(X)
        loss = loss_fn(y_hat, y)
    loss.backward()
    trainer.step(X.shape[0])
    losses.append(float(loss.mean()))
    seconds.append(time.time() - start)

accuracy = d2l.evaluate_accuracy_gpu(net, d2l.load_array(make_data(256), BATCH, is_train=False))
result = {"losses": losses, "step_seconds": numpy.median(seconds[3:])}
print(json.dumps({**result, "extra": {"accuracy": accuracy}}))
