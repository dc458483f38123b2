"""What each worker of test_horovod.py runs: one of these functions, whose result it prints."""

import json
import os
import sys

import gluon_amp as amp
from gluon_amp.base.messages import UsageError
from gluon_amp.training.runs.script import guarded
from gluon_amp.training.workers.group import connect, leave
from gluon_amp.training.workers.stores import HorovodStore
from tests.training.workers.agreement import agreement

import mxnet as mx
from mxnet import autograd, gluon, nd

SCALE = 2.0**15


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


def with_store(params, settings, **options):
    return amp.Trainer(params, "sgd", settings, kvstore=HorovodStore(), **options)


def with_horovod(params, settings, loss_scale, **options):
    import horovod.mxnet as hvd

    if "compression" in options:
        options["compression"] = hvd.Compression.fp16
    trainer = hvd.DistributedTrainer({p.name: p for p in params}, "sgd", settings, **options)
    amp.init_trainer(trainer, loss_scale=loss_scale)
    return trainer


# Each way to build a trainer: how, its options, and the dtype of the parameter.
TRAINERS = {
    "store": (with_store, {}, "float16"),
    "divided": (with_horovod, {"gradient_predivide_factor": 2}, "float16"),
    "grouped": (with_horovod, {"num_groups": 1}, "float16"),
    "compressed": (with_horovod, {"compression": "fp16"}, "float32"),
}


def sums():
    """One step with gradients of 49,152 in every worker, and one that only the first sees fit."""
    workers = connect("horovod", [mx.cpu()])
    results = {}
    for name, (build, options, dtype) in TRAINERS.items():
        p = gluon.Parameter(f"p_{name}", shape=(3,), dtype=dtype)
        p.initialize(mx.init.One())
        scale = amp.DynamicLossScale(init_scale=SCALE)
        trainer = build([p], {"learning_rate": 0.25}, loss_scale=scale, **options)
        steps = []
        for factor in (1.5, 1.5 + 2 * workers.rank, 1.5):
            with autograd.record():
                loss = (nd.cast(p.data(), "float32") * factor).sum()
            trainer.backward(loss)
            # Horovod's trainer averages
            report = trainer.step(workers.count if build is with_store else 1)
            steps.append([report.applied, report.loss_scale, p.data()[0].asscalar().item()])
        results[name] = steps
    return results


def refuses():
    """The second worker ends by a sentence, for which the first waits."""
    workers = connect("horovod", [mx.cpu()])
    if workers.rank == 1:
        raise UsageError("the second worker cannot go on.")
    return workers.total([1]).tolist()


def work():
    result = globals()[sys.argv[1]]()
    print(json.dumps({"rank": int(os.environ["HOROVOD_RANK"]), "result": result}), flush=True)


if __name__ == "__main__":
    leave(lambda: guarded(work))
