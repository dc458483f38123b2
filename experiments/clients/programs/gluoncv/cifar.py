"""CIFAR-10 with a small ResNet, after GluonCV's scripts/classification/cifar/train_cifar10.py."""

import numpy as np

from experiments.clients.shared import STEPS, batches, losses, report, seed_all

import mxnet as mx
from gluoncv.model_zoo import get_model
from mxnet import autograd, gluon
from mxnet.gluon.data import ArrayDataset, DataLoader
from mxnet.gluon.data.vision import transforms

seed_all()

BATCH, CLASSES = 16, 4


def make_dataset(count):
    """Images of 32×32 whose brightest quarter is their class; one label of five is random."""
    labels = np.random.randint(0, CLASSES, count)
    images = np.random.uniform(0, 200, (count, 32, 32, 3))
    for image, label in zip(images, labels):
        row, column = divmod(label, 2)
        image[16 * row : 16 * row + 16, 16 * column : 16 * column + 16] += 20
    random_ones = np.random.uniform(size=count) < 0.2
    labels[random_ones] = np.random.randint(0, CLASSES, random_ones.sum())
    return ArrayDataset(images.astype("uint8"), labels.astype("float32"))


transform = transforms.Compose(
    [
        transforms.ToTensor(),
        transforms.Normalize([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]),
    ]
)
dataset = make_dataset(BATCH * STEPS).transform(lambda x, y: (transform(mx.nd.array(x)), y))
train_data = DataLoader(dataset, BATCH, shuffle=True, last_batch="discard")

ctx = [mx.cpu()]
net = get_model("cifar_resnet20_v1", classes=CLASSES)
net.initialize(mx.init.Xavier(), ctx=ctx)
net.hybridize()
optimizer_params = {"learning_rate": 0.05, "momentum": 0.9, "wd": 0.0001}
trainer = gluon.Trainer(net.collect_params(), "nag", optimizer_params)
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()

for batch in batches(train_data):
    data = gluon.utils.split_and_load(batch[0], ctx_list=ctx, batch_axis=0)
    label = gluon.utils.split_and_load(batch[1], ctx_list=ctx, batch_axis=0)
    with autograd.record():
        output = [net(x) for x in data]
        loss = [loss_fn(yhat, y) for yhat, y in zip(output, label)]
    for part in loss:
        part.backward()
    trainer.step(BATCH)
    losses.append(sum(part.sum().asscalar() for part in loss) / BATCH)

report()
