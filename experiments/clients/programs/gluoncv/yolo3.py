"""YOLOv3 with prefetched targets, after GluonCV's scripts/detection/yolo/train_yolo3.py."""

from experiments.clients.shared import batches, image_of_a_box, losses, report, seed_all

import gluoncv
import mxnet as mx
from gluoncv.data.batchify import Pad, Stack, Tuple
from gluoncv.data.transforms.presets.yolo import YOLO3DefaultTrainTransform
from gluoncv.utils import LRScheduler
from mxnet import autograd, gluon

seed_all()

PIXELS, BATCH, CLASSES = 96, 8, ["square", "bar"]


ctx = [mx.cpu()]
net = gluoncv.model_zoo.yolo3_mobilenet0_25_custom(CLASSES, pretrained_base=False)
net.initialize()
dataset = gluon.data.SimpleDataset([image_of_a_box(PIXELS, 24, 49) for _ in range(64)])
train_data = gluon.data.DataLoader(
    dataset.transform(YOLO3DefaultTrainTransform(PIXELS, PIXELS, net)),
    BATCH,
    shuffle=True,
    batchify_fn=Tuple(*[Stack() for _ in range(6)], Pad(axis=0, pad_val=-1)),
    last_batch="rollover",
)

net.collect_params().reset_ctx(ctx)
lr_scheduler = LRScheduler("linear", base_lr=0, target_lr=0.001, niters=10)
optimizer_params = {"wd": 0.0005, "momentum": 0.9, "lr_scheduler": lr_scheduler}
trainer = gluon.Trainer(net.collect_params(), "sgd", optimizer_params)
net.hybridize()

for batch in batches(train_data):
    data = gluon.utils.split_and_load(batch[0], ctx_list=ctx, batch_axis=0)
    fixed_targets = [
        gluon.utils.split_and_load(batch[part], ctx_list=ctx, batch_axis=0) for part in range(1, 6)
    ]
    gt_boxes = gluon.utils.split_and_load(batch[6], ctx_list=ctx, batch_axis=0)
    sum_losses = []
    with autograd.record():
        for i, x in enumerate(data):
            obj_loss, center_loss, scale_loss, cls_loss = net(
                x, gt_boxes[i], *[targets[i] for targets in fixed_targets]
            )
            sum_losses.append(obj_loss + center_loss + scale_loss + cls_loss)
        autograd.backward(sum_losses)
    trainer.step(BATCH)
    losses.append(sum(loss.mean().asscalar() for loss in sum_losses))

report()
