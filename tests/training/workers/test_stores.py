"""Sums of several workers in a fixed order, and the errors of a Horovod that has lost a worker."""

import itertools
import os
import sys
import types

import numpy as np
import pytest

from gluon_amp.base.parameter_server import LostError
from gluon_amp.training.workers.group import connect
from gluon_amp.training.workers.stores import FUSION, OrderedStore, naming_lost_workers
from tests.training.workers.agreement import side_by_side

import mxnet as mx
from mxnet import nd


def summed(values, order, devices=1):
    """What each worker has after a sum, and the bytes that it has sent."""

    def work(store):
        own = nd.array(values[store.rank], dtype=values.dtype) / devices
        arrays = [own.copy() for _ in range(devices)]
        OrderedStore(store, store.rank).pushpull(3, arrays)
        return [array.asnumpy() for array in arrays], store.sent[store.rank].nbytes

    results, sent = zip(*side_by_side(work, order))
    return dict(enumerate(results)), list(sent)


@pytest.mark.parametrize("dtype, count", [("float32", 3), ("float16", 4)])
def test_the_order_of_arrival_does_not_matter(count, dtype):
    values = (np.random.RandomState(count).randn(count, 50) * 100).astype(dtype)
    values[:2, 1] = [1e4, -1e4]
    plain, ours = set(), set()
    for order in itertools.islice(itertools.permutations(range(count)), 0, None, 5):
        plain.add(sum(values[rank] for rank in order).tobytes())
        results, sent = summed(values, order)
        ours |= {arrays[0].tobytes() for arrays in results.values()}
        assert sent == [(count + 1) // 2 * values[0].nbytes] * count
    assert len(plain) > 1 and len(ours) == 1
    total = np.frombuffer(*ours, dtype=dtype)
    expected = values.astype("float64").sum(axis=0)
    np.testing.assert_allclose(total, expected, rtol=2e-3 if dtype == "float16" else 1e-5, atol=0.2)


def test_a_sum_is_rounded_once():
    """In float16, 2048 + 1 is 2048."""
    results, _ = summed(np.array([[2048], [0], [1], [0], [1]], dtype="float16"), range(5))
    assert [results[rank] for rank in range(5)] == [[2050]] * 5


def test_devices_are_added_too_and_an_overflow_reaches_all():
    values = np.array([[8, 1], [16, np.inf], [32, 1]], dtype="float16")
    results, _ = summed(values, (2, 0, 1), devices=2)
    assert [array.tolist() for rank in range(3) for array in results[rank]] == [[56, np.inf]] * 6


@pytest.fixture
def horovod(monkeypatch):
    """A stand-in for Horovod with three workers that have the same values."""
    module = types.ModuleType("horovod.mxnet")
    module.init, module.rank, module.size, module.Sum = lambda: None, lambda: 1, lambda: 3, "sum"
    module.broadcast = lambda array, root_rank, name, priority: array + 10
    module.calls = []

    def allreduce_(array, op, name, priority):
        module.calls.append((op, name))
        array *= 3

    module.allreduce_ = allreduce_
    package = types.ModuleType("horovod")
    package.mxnet = module
    monkeypatch.setitem(sys.modules, "horovod", package)
    monkeypatch.setitem(sys.modules, "horovod.mxnet", module)
    monkeypatch.delenv(FUSION, raising=False)
    return module


def test_horovod_as_a_store(horovod):
    workers = connect("horovod", [mx.cpu()])
    assert (workers.rank, workers.count, os.environ.pop(FUSION)) == (1, 3, "0")
    store, value, out = workers.kvstore, nd.ones(2), [nd.zeros(2), nd.zeros(2)]
    store.pushpull("key", value, out=out)
    assert value.asnumpy().tolist() == [1, 1]
    assert [array.asnumpy().tolist() for array in out] == [[3, 3]] * 2
    store.pushpull("key", [value])
    assert value.asnumpy().tolist() == [3, 3] and horovod.calls == [("sum", "key")] * 2
    store.broadcast("key", value, out)
    assert out[1].asnumpy().tolist() == [13, 13] and not store.is_capable("optimizer")


@pytest.mark.parametrize(
    "text",
    [  # as MXNet raised them after the other worker was killed, or did not answer
        "MXNetError: Horovod has been shut down. This was caused by an exception on one of the",
        'Traceback (most recent call last):\n  File "Read error [127.0.0.1]", line 45482\n'
        "MXNetError: Connection reset by peer",
        "MXNetError: [/t/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 4000ms for "
        "recv operation to complete",
    ],
)
def test_the_errors_of_a_lost_horovod_are_one_sentence(text):
    with pytest.raises(LostError, match=r"^another worker has end[^.]*\.$"), naming_lost_workers():
        raise mx.MXNetError(text)


def test_other_errors_of_mxnet_stay_as_they_are():
    with pytest.raises(mx.MXNetError, match="broadcast together"), naming_lost_workers():
        (mx.nd.ones((2, 3)) + mx.nd.ones((4, 5))).wait_to_read()
