"""A small cast net, its trainer, and all that a step may change."""

import json
from typing import Optional

import numpy as np

import gluon_amp as amp
from tests import kinds

import mxnet as mx
from mxnet import autograd
from mxnet.gluon import nn

LOW_PRECISION = ("float16", "mixed_float16", "bfloat16")

OPTIMIZERS = {
    "sgd": {"momentum": 0.9, "wd": 1e-3},
    "nag": {"momentum": 0.9, "wd": 1e-3},
    "adam": {"wd": 1e-3},
    "adamw": {"wd": 0.1},
    "lars": {"momentum": 0.9, "wd": 1e-3},
    "lamb": {"wd": 1e-3},
    "rmsprop": {},
}


class Scheduled(amp.LossScale):
    """Reads its scales from a list, after finite steps and overflows alike."""

    def __init__(self, exponents):
        self.exponents, self.step = exponents, 0

    @property
    def scale(self):
        return 2.0 ** self.exponents[self.step % len(self.exponents)]

    def update(self, finite):
        self.step += 1


def batch(index: int, rows: int = 6):
    return kinds.array(np.random.RandomState(index).randn(rows, 4))


def dense_net():
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(8, in_units=4), nn.BatchNorm(in_channels=8), nn.Activation("relu"))
        net.add(nn.Dense(3, in_units=8))
    net.initialize(mx.init.Xavier())
    return net


class Training:
    """`step(i)` trains on batch i; with `overflow` its gradients are infinite."""

    def __init__(self, optimizer="sgd", loss_scale="dynamic", policy="float16", **options):
        mx.random.seed(7)
        np.random.seed(7)
        self.net = amp.cast(dense_net(), policy)
        self.params = self.net.collect_params()
        settings = {"learning_rate": 0.05, **OPTIMIZERS[optimizer]}
        options = {"loss_scale": loss_scale, **options}
        self.trainer = amp.Trainer(self.params, optimizer, settings, **options)

    def backward(self, index: int, overflow: bool = False) -> None:
        with autograd.record():
            loss = ((self.net(batch(index)) - 1) ** 2).mean(axis=1)
            if overflow:
                loss = loss * np.inf
        self.trainer.backward(loss)

    def step(self, index: int, overflow: bool = False, clip: Optional[float] = None):
        self.backward(index, overflow)
        if clip is not None:
            self.trainer.clip_global_norm(clip, 1)
        return self.trainer.step(6)

    def everything(self) -> dict:
        """Return all that a step may change, except the loss scale and the gradients."""
        found = {name: p.data().asnumpy().tobytes() for name, p in self.params.items()}
        for name, master in self.trainer.master_params().items():
            found[name, "master"] = master.asnumpy().tobytes()
        for index, state in self.trainer.updaters[0].states.items():
            for part, array in enumerate(state if isinstance(state, (list, tuple)) else [state]):
                if hasattr(array, "asnumpy"):
                    found[index, part] = array.asnumpy().tobytes()
        optimizer = self.trainer.optimizer
        found["counts"] = (optimizer.num_update, json.dumps(optimizer._index_update_count))
        return found
