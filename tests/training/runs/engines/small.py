"""A small network, its data and its engine."""

import numpy as np

import gluon_amp as amp
from gluon_amp.training.data import TrainingBatches
from gluon_amp.training.data.source import Images
from gluon_amp.training.runs.engines.gluon import GluonEngine
from gluon_amp.training.runs.objective import Objective

import mxnet as mx
from mxnet.gluon import nn


class Points(Images):
    """Labelled points of four coordinates, the same in every epoch."""

    shape = (4,)

    def __init__(self, points, labels):
        self.points, self.labels = points, labels

    def __len__(self):
        return len(self.labels)

    def write(self, position, out):
        out[...] = self.points[position % len(self)]
        return self.labels[position % len(self)]


def dense_net(devices=None):
    mx.random.seed(3)
    net = nn.HybridSequential()
    net.add(nn.Dense(8, activation="relu", in_units=4), nn.Dense(3, in_units=8))
    net.initialize(mx.init.Xavier(), ctx=devices or mx.cpu())
    return net


def points(count=24):
    random = np.random.RandomState(0)
    labels = (np.arange(count) % 3).astype(np.int32)
    data = random.randn(count, 4).astype(np.float32) + np.eye(4, dtype=np.float32)[labels]
    return Points(data, labels)


def engine_of(net, dtype="float32", rate=0.5, **options):
    amp.cast(net, dtype)
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": rate}, loss_scale=8)
    return GluonEngine(net, trainer, [mx.cpu()], Objective(3), **options)


def batches(size):
    return TrainingBatches(points(), size)
