"""SSD with targets made by the data loader, after GluonCV's scripts/detection/ssd/train_ssd.py."""

import json
import os
import time

import numpy as np

import gluoncv
import mxnet as mx
from gluoncv.data.batchify import Stack, Tuple
from gluoncv.data.transforms.presets.ssd import SSDDefaultTrainTransform
from gluoncv.model_zoo.ssd import SSD
from mxnet import autograd, gluon

SEED, STEPS = int(os.environ["SEED"]), int(os.environ["STEPS"])
gluoncv.utils.random.seed(SEED)

PIXELS, BATCH, CLASSES = 96, 8, ["square", "bar"]


def make_image():
    """Return an image of noise with a bright square or bar, and its label: a box and a class."""
    image = np.random.randint(0, 100, (PIXELS, PIXELS, 3))
    kind = np.random.randint(2)
    size = np.random.randint(24, 49)
    width, height = (size, size) if kind == 0 else (size, size // 2)
    x, y = np.random.randint(0, PIXELS - width), np.random.randint(0, PIXELS - height)
    image[y : y + height, x : x + width] += 150
    return mx.nd.array(image, dtype="uint8"), np.array([[x, y, x + width, y + height, kind]])


ctx = [mx.cpu()]
net = SSD(
    network="mobilenet0.25",
    base_size=PIXELS,
    features=["relu22_fwd", "relu26_fwd"],
    num_filters=[64],
    sizes=[24, 40, 60, 90],
    ratios=[[1, 2, 0.5]] * 3,
    steps=[16, 32, 48],
    classes=CLASSES,
    pretrained=False,
)
net.initialize()
with autograd.train_mode():
    _, _, anchors = net(mx.nd.zeros((1, 3, PIXELS, PIXELS)))
dataset = gluon.data.SimpleDataset([make_image() for _ in range(64)])
train_data = gluon.data.DataLoader(
    dataset.transform(SSDDefaultTrainTransform(PIXELS, PIXELS, anchors)),
    BATCH,
    shuffle=True,
    batchify_fn=Tuple(Stack(), Stack(), Stack()),
    last_batch="rollover",
)

net.collect_params().reset_ctx(ctx)
optimizer_params = {"learning_rate": 0.01, "wd": 0.0005, "momentum": 0.9}
trainer = gluon.Trainer(net.collect_params(), "sgd", optimizer_params)
mbox_loss = gluoncv.loss.SSDMultiBoxLoss()
net.hybridize(static_alloc=True, static_shape=True)

losses, seconds = [], []
while len(losses) < STEPS:
    for batch in train_data:
        start = time.time()
        data = gluon.utils.split_and_load(batch[0], ctx_list=ctx, batch_axis=0)
        cls_targets = gluon.utils.split_and_load(batch[1], ctx_list=ctx, batch_axis=0)
        box_targets = gluon.utils.split_and_load(batch[2], ctx_list=ctx, batch_axis=0)
        with autograd.record():
            cls_preds, box_preds = [], []
            for x in data:
                cls_pred, box_pred, _ = net(x)
                cls_preds.append(cls_pred)
                box_preds.append(box_pred)
            sum_loss, cls_loss, box_loss = mbox_loss(cls_preds, box_preds, cls_targets, box_targets)
            autograd.backward(sum_loss)
        trainer.step(1)  # the loss is normalized already
        losses.append(sum(loss.mean().asscalar() for loss in sum_loss))
        seconds.append(time.time() - start)
        if len(losses) == STEPS:
            break

print(json.dumps({"losses": [float(x) for x in losses], "step_seconds": np.median(seconds[3:])}))
