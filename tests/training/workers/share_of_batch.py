"""Train on a worker's share of each batch: `share_of_batch.py API START POLICY DEVICES RESULT`.

The result is the sum of the share's losses in each of three steps, as JSON; the command's is the
mean loss of all workers.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

import numpy as np

import gluon_amp as amp
from gluon_amp import symbolic
from gluon_amp.training.runs import building, script
from gluon_amp.training.runs.recipe import read
from gluon_amp.training.workers.group import leave

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn

BATCH = 12


def build(*_):
    # Inference changes the layout of the weights, and each worker sees the statistics of its share.
    net = nn.HybridSequential()
    net.add(nn.Conv2D(16, 3, activation="relu"), nn.Conv2D(16, 3), nn.Flatten(), nn.Dense(10))
    return net


def share(rank, workers):
    numbers = np.random.RandomState(0)
    images = numbers.normal(size=(BATCH, 3, 8, 8)).astype(np.float32)
    labels = numbers.randint(10, size=BATCH).astype(np.float32)
    return mx.nd.array(images[rank::workers]), mx.nd.array(labels[rank::workers])


def late(array):
    """Return a copy that takes a while, so that the first exchange is scheduled before its pass.

    A training pass gives its weights the plain layout back.
    """
    ones = mx.nd.ones((1500, 1500), ctx=array.context)
    return array + 0 * mx.nd.dot(ones, ones)[0, 0]


def library(policy, initialized, contexts, kvstore, images, labels):
    net = build()
    net.initialize(mx.init.Xavier(), ctx=contexts)
    data, label = (gluon.utils.split_and_load(array, contexts) for array in (images, labels))
    if initialized:
        for one in data:
            net(one).wait_to_read()
    amp.cast(net, policy)
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=kvstore)
    data = [late(one) for one in data]
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(3):
        with autograd.record():
            losses = [loss(net(x), y) for x, y in zip(data, label)]
        trainer.backward(losses)
        trainer.step(BATCH)
        yield sum(float(one.sum().asscalar()) for one in losses)


def module(policy, initialized, contexts, kvstore, images, labels):
    symbol = mx.sym.SoftmaxOutput(build()(mx.sym.var("data")), name="softmax")
    module = symbolic.Module(symbol, context=contexts, policy=policy)
    batch = mx.io.DataBatch([images], [labels])
    module.bind([("data", images.shape)], [("softmax_label", labels.shape)])
    module.init_params(mx.init.Xavier())
    if initialized:
        module.forward(batch, is_train=False)
    batch = mx.io.DataBatch([late(images)], [labels])
    rate = {"learning_rate": 0.1, "rescale_grad": 1 / BATCH}
    module.init_optimizer(kvstore, "sgd", rate)
    for _ in range(3):
        module.forward_backward(batch)
        right = mx.nd.pick(module.get_outputs()[0], labels)
        module.update()
        yield float(-right.log().sum().asscalar())


def command(start, policy, devices, result):
    building.build = build
    workers = os.environ.get("DMLC_NUM_WORKER")
    batch = BATCH // devices // int(workers or 1)
    log = Path(f"{result}.log")  # of the first worker
    options = f"""--dataset digits --input-size 8 --dtype {policy} --cpus {devices} --epochs 1
        --mode {start} --batch-size {batch} --max-batches 3 --lr 0.1 --warmup-epochs 0
        --log-interval 0 --log-json {log} --kv-store {"dist_sync" if workers else "device"}"""
    status = script.run(read, options.split())
    lines = map(json.loads, log.read_text().splitlines() if log.exists() else ())
    Path(result).write_text(json.dumps([one["loss"] for one in lines if "loss" in one][:1]))
    return status


def main(api, start, policy, devices, result):
    rank = os.environ.get("DMLC_WORKER_ID", "0")
    result, devices = result + rank, int(devices)
    if api == "command":
        leave(partial(command, start, policy, devices, result))
    mx.random.seed(0)
    np.random.seed(0)
    workers = os.environ.get("DMLC_NUM_WORKER")
    data = share(int(rank), int(workers or 1))
    contexts = [mx.cpu(number) for number in range(devices)]
    train = {"library": library, "module": module}[api]
    kvstore = "dist_sync" if workers else "device"
    losses = list(train(policy, start == "initialized", contexts, kvstore, *data))
    Path(result).write_text(json.dumps(losses))


main(*sys.argv[1:])
