"""Sums of several workers in a fixed order, whatever the order in which their numbers arrive."""

import itertools
import threading

import numpy as np
import pytest

import gluon_amp  # noqa: F401
from gluon_amp.training.workers.stores import OrderedStore

from mxnet import nd


class Server:
    """A server that adds the numbers of all workers in a given order, in their dtype."""

    def __init__(self, order):
        self.order = order
        self.sent = {}
        self.barrier = threading.Barrier(len(order))

    def store(self, rank):
        return Store(self, rank)


class Store:
    type = "dist_sync"

    def __init__(self, server, rank):
        self.server, self.rank = server, rank
        self.num_workers = len(server.order)

    def pushpull(self, key, value, out=None, priority=0):
        server = self.server
        server.sent[self.rank] = value.asnumpy()
        server.barrier.wait(10)
        total = server.sent[server.order[0]]
        for rank in server.order[1:]:
            total = total + server.sent[rank]
        value[:] = nd.array(total, dtype=total.dtype)
        server.barrier.wait(10)


def summed(values, order, devices=1):
    """What each worker has after a sum, and the bytes that it has sent."""
    server, results = Server(order), {}

    def work(rank):
        arrays = [nd.array(values[rank], dtype=values.dtype) / devices for _ in range(devices)]
        OrderedStore(server.store(rank), rank).pushpull(3, arrays)
        results[rank] = [array.asnumpy() for array in arrays]

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(order))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return results, [sent.nbytes for sent in server.sent.values()]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("count", [3, 4, 5])
def test_the_order_of_arrival_does_not_matter(count, dtype):
    values = (np.random.RandomState(count).randn(count, 50) * 100).astype(dtype)
    values[:, 0] = [-0.0] * count
    values[:2, 1] = [1e4, -1e4]
    plain, ours = set(), set()
    for order in itertools.islice(itertools.permutations(range(count)), 0, None, 5):
        plain.add(sum(values[rank] for rank in order).tobytes())
        results, sent = summed(values, order)
        ours |= {arrays[0].tobytes() for arrays in results.values()}
        assert sent == [(count + 1) // 2 * values[0].nbytes] * count
    assert len(plain) > 1
    assert len(ours) == 1
    total = np.frombuffer(*ours, dtype=dtype)
    expected = values.astype("float64").sum(axis=0)
    np.testing.assert_allclose(total, expected, rtol=2e-3 if dtype == "float16" else 1e-5, atol=0.2)


def test_an_overflow_in_one_worker_reaches_all():
    values = np.array([[1, 1], [np.inf, 1], [1, 60000]], dtype="float16")
    results, _ = summed(values, (2, 0, 1))
    assert [arrays[0].tolist() for _, arrays in sorted(results.items())] == [[np.inf, 60000]] * 3


def test_the_devices_of_a_worker_are_added_too():
    values = np.array([[8], [16], [32]], dtype="float32")
    results, _ = summed(values, (0, 1, 2), devices=2)
    assert results[2] == [[56], [56]]
