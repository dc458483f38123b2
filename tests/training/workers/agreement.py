"""What workers agree on, whatever connects them."""

import numpy as np

from gluon_amp.training.workers.group import average_statistics

import mxnet as mx
from mxnet import gluon


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
