"""D2L's LeNet with BatchNorm on images of 28×28, after the chapter on batch normalization."""

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

BATCH, CLASSES = 32, 10


def make_data(count):
    """Noise with a bright bar, whose place is the class; one label of ten is random."""
    labels = numpy.random.randint(0, CLASSES, count)
    images = numpy.random.normal(0, 1, (count, 1, 28, 28))
    for image, label in zip(images, labels):
        row, column = divmod(label, 5)
        image[0, 14 * row : 14 * row + 14, 5 * column : 5 * column + 5] += 3
    random_ones = numpy.random.uniform(size=count) < 0.1
    labels[random_ones] = numpy.random.randint(0, CLASSES, random_ones.sum())
    return np.array(images, dtype="float32"), np.array(labels, dtype="float32")


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
device = d2l.try_gpu()
net.initialize(force_reinit=True, ctx=device, init=init.Xavier())
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1})

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
