"""MobileNet with mixup, after GluonCV's scripts/classification/imagenet/train_imagenet.py."""

import numpy as np

from experiments.clients.shared import STEPS, batches, losses, report, seed_all

import gluoncv
import mxnet as mx
from gluoncv.utils import LRScheduler, LRSequential
from mxnet import autograd, gluon

seed_all()

PIXELS, BATCH, CLASSES = 32, 32, 4


def make_batch():
    """Return images of noise whose classes have colours."""
    labels = np.random.randint(0, CLASSES, BATCH)
    images = np.random.normal(0, 0.5, (BATCH, 3, PIXELS, PIXELS))
    images += np.eye(CLASSES, 3)[labels].reshape((BATCH, 3, 1, 1))
    return mx.nd.array(images), mx.nd.array(labels)


def mixup_transform(label, classes, lam=1, eta=0.0):
    """Return soft labels, smoothed by eta and mixed with those of the reversed batch."""
    result = []
    for part in label:
        y1 = part.one_hot(classes, on_value=1 - eta + eta / classes, off_value=eta / classes)
        y2 = part[::-1].one_hot(classes, on_value=1 - eta + eta / classes, off_value=eta / classes)
        result.append(lam * y1 + (1 - lam) * y2)
    return result


ctx = [mx.cpu()]
net = gluoncv.model_zoo.get_model("mobilenet0.25", classes=CLASSES)
net.initialize(mx.init.MSRAPrelu(), ctx=ctx)
net.hybridize(static_alloc=True, static_shape=True)
for parameter in net.collect_params(".*beta|.*gamma|.*bias").values():
    parameter.wd_mult = 0.0
warmup = STEPS // 3
lr_scheduler = LRSequential(
    [
        LRScheduler("linear", base_lr=0, target_lr=0.02, niters=warmup),
        LRScheduler("cosine", base_lr=0.02, target_lr=0, niters=STEPS - warmup),
    ]
)
optimizer_params = {"wd": 0.0001, "momentum": 0.9, "lr_scheduler": lr_scheduler}
trainer = gluon.Trainer(net.collect_params(), "nag", optimizer_params)
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=False)

for data, label in batches(make_batch() for _ in range(STEPS)):
    data = gluon.utils.split_and_load(data, ctx_list=ctx, batch_axis=0)
    label = gluon.utils.split_and_load(label, ctx_list=ctx, batch_axis=0)
    lam = np.random.beta(0.2, 0.2)
    data = [lam * X + (1 - lam) * X[::-1] for X in data]
    label = mixup_transform(label, CLASSES, lam, 0.1)
    with autograd.record():
        outputs = [net(X) for X in data]
        loss = [loss_fn(yhat, y) for yhat, y in zip(outputs, label)]
    for part in loss:
        part.backward()
    trainer.step(BATCH)
    losses.append(sum(part.sum().asscalar() for part in loss) / BATCH)

report()
