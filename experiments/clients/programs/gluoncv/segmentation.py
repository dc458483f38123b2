"""DeepLabV3 with an auxiliary head, after GluonCV's scripts/segmentation/train.py."""

import numpy as np

from experiments.clients import shared

import gluoncv
import mxnet as mx
from gluoncv.loss import MixSoftmaxCrossEntropyLoss
from gluoncv.model_zoo import DeepLabV3
from gluoncv.utils.parallel import DataParallelCriterion, DataParallelModel
from mxnet import autograd, gluon
from mxnet.gluon.data.vision import transforms

shared.seed_all()

PIXELS, BATCH = 32, 4


def make_image():
    """Return an image of noise with a bright rectangle, and the class of each pixel."""
    image = np.random.randint(0, 150, (PIXELS, PIXELS, 3))
    target = np.zeros((PIXELS, PIXELS), "int32")
    y, x = np.random.randint(0, PIXELS // 2, 2)
    height, width = np.random.randint(PIXELS // 4, PIXELS // 2, 2)
    image[y : y + height, x : x + width] += 100
    target[y : y + height, x : x + width] = 1
    target[:2] = -1  # not labelled
    return transform(mx.nd.array(image, dtype="uint8")), target


class Trainer:
    """The training loop of the script."""

    def __init__(self):
        ctx = [mx.cpu()]
        dataset = gluon.data.SimpleDataset([make_image() for _ in range(BATCH * shared.STEPS)])
        self.train_data = gluon.data.DataLoader(dataset, BATCH, shuffle=True)
        model = DeepLabV3(2, backbone="resnet50", crop_size=PIXELS, pretrained_base=False)
        model.initialize(ctx=ctx)
        model.hybridize()
        self.net = DataParallelModel(model, ctx)
        self.criterion = DataParallelCriterion(
            MixSoftmaxCrossEntropyLoss(True, aux_weight=0.5), ctx
        )
        scheduler = gluoncv.utils.LRScheduler(
            mode="poly", base_lr=0.001, niters=2 * shared.STEPS, power=0.9
        )
        optimizer_params = {"lr_scheduler": scheduler, "wd": 1e-4, "momentum": 0.9}
        params = self.net.module.collect_params()
        self.optimizer = gluon.Trainer(params, "sgd", optimizer_params)

    def training(self):
        for data, target in shared.batches(self.train_data):
            with autograd.record(True):
                outputs = self.net(data)
                losses = self.criterion(outputs, target)
                mx.nd.waitall()
                autograd.backward(losses)
            self.optimizer.step(BATCH)
            shared.losses.append(sum(loss.mean().asscalar() for loss in losses) / len(losses))


transform = transforms.Compose(
    [
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]
)
Trainer().training()

shared.report()
