"""A small network, its data and its engine."""

import numpy as np

import gluon_amp as amp
from gluon_amp.training.data import TrainingBatches
from gluon_amp.training.data.datasets import Augmented
from gluon_amp.training.runs.engines.gluon import GluonEngine
from gluon_amp.training.runs.objective import Objective

import mxnet as mx
from mxnet.gluon import nn
from mxnet.gluon.data import SimpleDataset


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
    return SimpleDataset(list(zip(data, labels)))


def engine_of(net, dtype="float32", rate=0.5, **options):
    amp.cast(net, dtype)
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": rate}, loss_scale=8)
    return GluonEngine(net, trainer, Objective(3), [mx.cpu()], **options)


def batches(size):
    return TrainingBatches(Augmented(points(), lambda image, _: image, 0), size)
