"""Train a network with the Estimator of `gluon.contrib`, its metrics, checkpoints and validation.

The images are generated: noise, and a brighter bar in one of ten places.
"""

import numpy as np

from experiments.clients.shared import STEPS, losses, report, seed_all, step_ended

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.contrib.estimator import BatchEnd, CheckpointHandler, Estimator

seed_all()

BATCH, SIZE = 32, 10


def dataset(count):
    images = np.random.normal(0, 1, (count, 1, SIZE, SIZE)).astype(np.float32)
    labels = np.random.randint(SIZE, size=count).astype(np.float32)
    for image, label in zip(images, labels):
        image[0, int(label)] += 1
    return gluon.data.ArrayDataset(images, labels)


train_data = gluon.data.DataLoader(dataset(STEPS * BATCH), BATCH)
val_data = gluon.data.DataLoader(dataset(4 * BATCH), BATCH)

net = nn.HybridSequential()
net.add(
    nn.Conv2D(8, 3, padding=1, use_bias=False),
    nn.BatchNorm(),
    nn.Activation("relu"),
    nn.Conv2D(16, 3, strides=2, padding=1, use_bias=False),
    nn.BatchNorm(),
    nn.Activation("relu"),
    nn.Dropout(0.1),
    nn.Dense(SIZE),
)
net.initialize(mx.init.Xavier())
net.hybridize()


class Record(BatchEnd):
    """Keeps the loss and the time of each batch."""

    def batch_end(self, estimator, *args, **kwargs):
        losses.append(kwargs["loss"][0].mean().asscalar())
        step_ended()


loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.003})
estimator = Estimator(
    net,
    loss_fn,
    train_metrics=mx.metric.Accuracy(),
    trainer=trainer,
)
handlers = [Record(), CheckpointHandler("models", epoch_period=1)]
estimator.fit(train_data, val_data=val_data, epochs=1, event_handlers=handlers)
accuracy = {metric.get()[0]: float(metric.get()[1]) for metric in estimator.val_metrics}
report({"accuracy": accuracy["validation accuracy"]})
