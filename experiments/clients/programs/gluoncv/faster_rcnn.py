"""Faster R-CNN, after GluonCV's scripts/detection/faster_rcnn/train_faster_rcnn.py.

As in the script, GluonCV's own `ForwardBackwardTask` computes the losses, in a thread.
"""

from experiments.clients.shared import STEPS, batches, image_of_a_box, losses, report, seed_all

import gluoncv
import mxnet as mx
from gluoncv.data.batchify import FasterRCNNTrainBatchify
from gluoncv.data.transforms.presets.rcnn import FasterRCNNDefaultTrainTransform
from gluoncv.model_zoo.rcnn.faster_rcnn import FasterRCNN
from gluoncv.model_zoo.rcnn.faster_rcnn.data_parallel import ForwardBackwardTask
from gluoncv.utils.parallel import Parallel
from mxnet import gluon

seed_all()

PIXELS, CLASSES = 96, ["square", "bar"]


def split_and_load(batch, ctx_list):
    """Return each part of a batch as a list, with an array for each device."""
    parts = [part if isinstance(part, (list, tuple)) else [part] for part in batch]
    return [[x.as_in_context(ctx) for x, ctx in zip(part, ctx_list)] for part in parts]


def train(net, train_data, ctx):
    net.collect_params().setattr("grad_req", "null")
    net.collect_train_params().setattr("grad_req", "write")
    optimizer_params = {"learning_rate": 0.005, "wd": 5e-4, "momentum": 0.9}
    params = net.collect_train_params()
    trainer = gluon.Trainer(params, "sgd", optimizer_params, kvstore="device")
    rcnn_task = ForwardBackwardTask(
        net,
        trainer,
        gluon.loss.SigmoidBinaryCrossEntropyLoss(from_sigmoid=False),
        gluon.loss.HuberLoss(rho=1 / 9),
        gluon.loss.SoftmaxCrossEntropyLoss(),
        gluon.loss.HuberLoss(),
        mix_ratio=1,
        amp_enabled=False,
    )
    executor = Parallel(1, rcnn_task)
    net.hybridize(static_alloc=True)

    for batch in batches(train_data):
        for data in zip(*split_and_load(batch, ctx)):
            executor.put(data)
        results = [executor.get() for _ in ctx]
        trainer.step(len(ctx))
        losses.append(sum(part.asscalar() for result in results for part in result[:4]))


ctx = [mx.cpu()]
base = gluoncv.model_zoo.resnet18_v1b(dilated=False, use_global_stats=True)
features, top_features = gluon.nn.HybridSequential(), gluon.nn.HybridSequential()
for layer in ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3"):
    features.add(getattr(base, layer))
top_features.add(base.layer4)
net = FasterRCNN(
    features,
    top_features,
    CLASSES,
    short=PIXELS,
    max_size=PIXELS,
    train_patterns=".*dense|.*rpn|.*down(2|3|4)_conv|.*layers(2|3|4)_conv",
    roi_size=(8, 8),
    strides=16,
    rpn_channel=128,
    scales=(2, 3, 4),
    alloc_size=(32, 32),
    rpn_train_pre_nms=200,
    rpn_train_post_nms=60,
    num_sample=32,
    max_num_gt=1,
)
net.initialize(mx.init.Xavier(magnitude=2))
net.collect_params().reset_ctx(ctx)
transform = FasterRCNNDefaultTrainTransform(net.short, net.max_size, net, ashape=net.ashape)
dataset = gluon.data.SimpleDataset([image_of_a_box(PIXELS, 32, 65) for _ in range(STEPS)])
train_data = gluon.data.DataLoader(
    dataset.transform(transform),
    len(ctx),
    shuffle=True,
    batchify_fn=FasterRCNNTrainBatchify(net, len(ctx)),
)
train(net, train_data, ctx)

report()
