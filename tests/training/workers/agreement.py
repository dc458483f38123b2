"""What workers agree on, whatever connects them."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from gluon_amp.training.workers.group import average_statistics

import mxnet as mx
from mxnet import gluon, nd


def agreement(workers):
    """Return what a worker knows of all; each of two workers has `OF_TWO`."""
    data = np.random.RandomState(0).bytes(5_000_001)
    got = workers.from_first(data if workers.first else b"mine")
    mean = gluon.Parameter("mean", shape=(2, 2), grad_req="null")
    mean.initialize(mx.init.Constant(workers.rank * 3 + 1))
    average_statistics([mean], workers)
    return {
        "count": workers.count,
        "total": workers.total([2**40 + 1, workers.rank, 0.1]).tolist(),
        "every": workers.every([workers.rank, 0.1]).tolist(),
        "bytes": got == data,
        "nothing": len(workers.from_first(b"" if workers.first else b"mine")),
        "mean": mean.data().asnumpy().ravel().tolist(),
    }


OF_TWO = {
    "count": 2,
    "total": [2**41 + 2, 1, 0.2],
    "every": [[0, 0.1], [1, 0.1]],
    "bytes": True,
    "nothing": 0,
    "mean": [2.5] * 4,
}


class Store:
    """The store of one worker, whose server adds all numbers in a given order, in their dtype."""

    type = "dist_sync"

    def __init__(self, rank, order, sent, barrier):
        self.rank, self.order, self.sent, self.barrier = rank, order, sent, barrier
        self.num_workers = len(order)

    def broadcast(self, key, value, out, priority=0):
        pass

    def pushpull(self, key, value, out=None, priority=0):
        self.sent[self.rank] = value.asnumpy()
        self.barrier.wait(10)
        total = self.sent[self.order[0]]
        for rank in self.order[1:]:
            total = total + self.sent[rank]
        value[:] = nd.array(total, dtype=total.dtype)
        self.barrier.wait(10)


def side_by_side(work, order):
    """Call a function in a thread for each worker, with its store; return the results by rank."""
    sent, barrier = {}, threading.Barrier(len(order))
    stores = [Store(rank, order, sent, barrier) for rank in range(len(order))]
    with ThreadPoolExecutor(len(order)) as pool:
        return list(pool.map(work, stores))
