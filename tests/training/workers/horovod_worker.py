"""What each worker of test_horovod.py runs: one of these functions, whose result it prints."""

import hashlib
import json
import os
import sys

import numpy as np

import gluon_amp as amp
from gluon_amp.base.messages import UsageError
from gluon_amp.training.runs.script import guarded
from gluon_amp.training.workers.group import connect, leave
from gluon_amp.training.workers.stores import HorovodStore
from tests.training.workers.agreement import agreement

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

SCALE = 2.0**15
LOUD = 4  # the step in which one worker overflows


def store():
    """Everything that workers agree on."""
    workers = connect("horovod", [mx.cpu()])
    own, out = nd.array([workers.rank + 1.0]), [nd.zeros(1), nd.zeros(1)]
    workers.kvstore.pushpull("out", own, out=out)
    return {
        **agreement(workers),
        "kept": own.asscalar().item() == workers.rank + 1,
        "out": [array.asscalar().item() for array in out],
    }


def deep_numpy():
    """What workers agree on under `npx.set_np()`."""
    mx.npx.set_np()
    workers = connect("horovod", [mx.cpu()])
    p = gluon.Parameter("p", shape=(2,), dtype="float16")
    p.initialize(mx.init.Constant(1 + workers.rank))
    trainer = amp.Trainer(
        [p], "sgd", {"learning_rate": 0.25}, kvstore=workers.kvstore, loss_scale=8
    )
    trainer.ready()
    with autograd.record():
        loss = (p.data().astype("float32") * (1 + workers.rank)).sum()
    trainer.backward(loss)
    trainer.step(1)
    return [type(p.data()).__name__, p.data().tolist(), workers.total([0.1]).tolist()]


# --------------------------------------------------------------------------------------- sums


def with_store(params, settings, **options):
    return amp.Trainer(params, "sgd", settings, kvstore=HorovodStore(), **options)


def with_horovod(params, settings, loss_scale, **options):
    import horovod.mxnet as hvd

    trainer = hvd.DistributedTrainer({p.name: p for p in params}, "sgd", settings, **options)
    amp.init_trainer(trainer, loss_scale=loss_scale)
    return trainer


def compression():
    import horovod.mxnet as hvd

    return hvd.Compression.fp16


# Each way to build a trainer: how, whether it averages, and the dtype of the parameter.
TRAINERS = {
    "store": (with_store, dict, False, "float16"),
    "horovod": (with_horovod, dict, True, "float16"),
    "divided": (with_horovod, lambda: {"gradient_predivide_factor": 2}, True, "float16"),
    "grouped": (with_horovod, lambda: {"num_groups": 1}, True, "float16"),
    "compressed": (with_horovod, lambda: {"compression": compression()}, True, "float32"),
}


def sums():
    """One step with gradients of 49,152 in every worker, and one that only the first sees fit."""
    workers = connect("horovod", [mx.cpu()])
    results = {}
    for name, (build, options, averages, dtype) in TRAINERS.items():
        p = gluon.Parameter(f"p_{name}", shape=(3,), dtype=dtype)
        p.initialize(mx.init.One())
        scale = amp.DynamicLossScale(init_scale=SCALE)
        trainer = build([p], {"learning_rate": 0.25}, loss_scale=scale, **options())
        steps = []
        for factor in (1.5, 1.5 + 2 * workers.rank, 1.5):
            with autograd.record():
                loss = (nd.cast(p.data(), "float32") * factor).sum()
            trainer.backward(loss)
            report = trainer.step(1 if averages else workers.count)
            steps.append([report.applied, report.loss_scale, p.data()[0].asscalar().item()])
        results[name] = steps
    return results


# ----------------------------------------------------------------------------------- training


def training():
    """Train alike in float16 and bfloat16; in one step, a single worker overflows."""
    import horovod.mxnet as hvd

    workers = connect("horovod", [mx.cpu()])
    results = {}
    for policy in ("float16", "mixed_float16", "bfloat16"):
        for kind in ("store", "horovod"):
            mx.random.seed(workers.rank)  # other weights everywhere, before they are sent
            net = nn.HybridSequential(prefix=f"{policy}_{kind}_")
            net.add(nn.Dense(8, activation="relu"), nn.BatchNorm(), nn.Dense(2))
            net.initialize(mx.init.Xavier())
            amp.cast(net, policy)
            net.hybridize()
            params = net.collect_params()
            if kind == "horovod":
                hvd.broadcast_parameters(params, root_rank=0, prefix=net.prefix)
                trainer = hvd.DistributedTrainer(
                    params, "sgd", {"learning_rate": 0.1, "momentum": 0.9}, prefix=net.prefix
                )
                amp.init_trainer(trainer)
                size = 4
            else:
                settings = {"learning_rate": 0.1, "momentum": 0.9}
                trainer = amp.Trainer(params, "sgd", settings, kvstore=workers.kvstore)
                net(nd.zeros((4, 5)))  # complete the shapes
                trainer.ready()  # the first step would send the weights after the backward pass
                size = 4 * workers.count
            results[f"{policy}, {kind}"] = train(net, trainer, workers, size)
    return results


def train(net, trainer, workers, size):
    random = np.random.RandomState(10 + workers.rank)
    loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
    steps = []
    for number in range(10):
        x = nd.array(random.randn(4, 5))
        y = x[:, 0] > 0
        with autograd.record():
            loss = loss_fn(net(x).astype("float32"), y)
            if trainer.scaling and number == LOUD and workers.rank == 1:
                loss = loss * 1e30
        trainer.backward(loss)
        report = trainer.step(size)
        steps.append([report.applied, report.loss_scale, report.next_loss_scale])
    weights = trainer.master_params()
    trained = [weights[p.name] for p in trainer.parameters if p.grad_req != "null"]
    digest = hashlib.sha256(b"".join(value.asnumpy().tobytes() for value in trained))
    return {"steps": steps, "digest": digest.hexdigest()}


def repeats():
    """Whether two trainings with many small gradients have the same bits."""
    workers = connect("horovod", [mx.cpu()])
    digests = []
    for _ in range(2):
        params = [gluon.Parameter(f"p{i}", shape=(31 + i,), dtype="float16") for i in range(30)]
        random = np.random.RandomState(workers.rank)
        for p in params:
            p.initialize(mx.init.One())
        trainer = amp.Trainer(
            params, "sgd", {"learning_rate": 1e-3}, kvstore=workers.kvstore, loss_scale=64
        )
        for _ in range(20):
            factors = [nd.array(random.randn(*p.shape)) for p in params]
            with autograd.record():
                loss = sum(
                    (nd.cast(p.data(), "float32") * f).sum() for p, f in zip(params, factors)
                )
            trainer.backward(loss)
            trainer.step(workers.count)
        values = [p.data().asnumpy().tobytes() for p in params]
        digests.append(hashlib.sha256(b"".join(values)).hexdigest())
    return {"digests": digests}


# ------------------------------------------------------------------------------------ failures


def refuses():
    """The second worker ends by a sentence, for which the first waits."""
    workers = connect("horovod", [mx.cpu()])
    if workers.rank == 1:
        raise UsageError("the second worker cannot go on.")
    return workers.total([1]).tolist()


def raises():
    """The second worker ends by an error, for which the first waits."""
    workers = connect("horovod", [mx.cpu()])
    if workers.rank == 1:
        raise KeyError("gone")
    return workers.total([1]).tolist()


def work():
    result = globals()[sys.argv[1]]()
    print(json.dumps({"rank": int(os.environ["HOROVOD_RANK"]), "result": result}), flush=True)


if __name__ == "__main__":
    leave(lambda: guarded(work))
