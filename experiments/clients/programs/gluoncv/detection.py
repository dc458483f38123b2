"""Detectors with targets made by the data loader, after GluonCV's scripts/detection.

The case is `ssd`, after ssd/train_ssd.py, or `yolo3`, after yolo/train_yolo3.py.
"""

from experiments.clients.shared import CASE, batches, image_of_a_box, losses, report, seed_all

import gluoncv
import mxnet as mx
from gluoncv.data.batchify import Pad, Stack, Tuple
from gluoncv.data.transforms.presets.ssd import SSDDefaultTrainTransform
from gluoncv.data.transforms.presets.yolo import YOLO3DefaultTrainTransform
from gluoncv.model_zoo.ssd import SSD
from gluoncv.utils import LRScheduler
from mxnet import autograd, gluon

seed_all()
PIXELS, BATCH, CLASSES = 96, 8, ["square", "bar"]


def ssd_losses(data, cls_targets, box_targets):
    cls_preds, box_preds = [], []
    for x in data:
        cls_pred, box_pred, _ = net(x)
        cls_preds.append(cls_pred)
        box_preds.append(box_pred)
    sum_loss, _, _ = mbox_loss(cls_preds, box_preds, cls_targets, box_targets)
    return sum_loss


def yolo3_losses(data, *targets):
    sum_losses = []
    for i, x in enumerate(data):
        *fixed_targets, gt_boxes = (target[i] for target in targets)
        obj_loss, center_loss, scale_loss, cls_loss = net(x, gt_boxes, *fixed_targets)
        sum_losses.append(obj_loss + center_loss + scale_loss + cls_loss)
    return sum_losses


ctx = [mx.cpu()]
optimizer_params = {"wd": 0.0005, "momentum": 0.9}
if CASE == "ssd":
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
    transform, parts = SSDDefaultTrainTransform(PIXELS, PIXELS, anchors), [Stack()] * 3
    mbox_loss = gluoncv.loss.SSDMultiBoxLoss()
    optimizer_params["learning_rate"] = 0.01
    forward, normalized = ssd_losses, True
else:
    net = gluoncv.model_zoo.yolo3_mobilenet0_25_custom(CLASSES, pretrained_base=False)
    net.initialize()
    transform = YOLO3DefaultTrainTransform(PIXELS, PIXELS, net)
    parts = [*[Stack()] * 6, Pad(axis=0, pad_val=-1)]
    optimizer_params["lr_scheduler"] = LRScheduler("linear", 0, 0.001, niters=10)
    forward, normalized = yolo3_losses, False

dataset = gluon.data.SimpleDataset([image_of_a_box(PIXELS, 24, 49) for _ in range(64)])
train_data = gluon.data.DataLoader(
    dataset.transform(transform),
    BATCH,
    shuffle=True,
    batchify_fn=Tuple(*parts),
    last_batch="rollover",
)
net.collect_params().reset_ctx(ctx)
trainer = gluon.Trainer(net.collect_params(), "sgd", optimizer_params)
net.hybridize(static_alloc=normalized, static_shape=normalized)

for batch in batches(train_data):
    arrays = [gluon.utils.split_and_load(part, ctx_list=ctx, batch_axis=0) for part in batch]
    with autograd.record():
        sum_losses = forward(*arrays)
        autograd.backward(sum_losses)
    trainer.step(1 if normalized else BATCH)
    losses.append(sum(loss.mean().asscalar() for loss in sum_losses))

report()
