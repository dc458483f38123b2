"""SSD with targets made by the data loader, after GluonCV's scripts/detection/ssd/train_ssd.py."""

from experiments.clients.shared import batches, image_of_a_box, losses, report, seed_all

import gluoncv
import mxnet as mx
from gluoncv.data.batchify import Stack, Tuple
from gluoncv.data.transforms.presets.ssd import SSDDefaultTrainTransform
from gluoncv.model_zoo.ssd import SSD
from mxnet import autograd, gluon

seed_all()

PIXELS, BATCH, CLASSES = 96, 8, ["square", "bar"]


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
dataset = gluon.data.SimpleDataset([image_of_a_box(PIXELS, 24, 49) for _ in range(64)])
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

for batch in batches(train_data):
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

report()
