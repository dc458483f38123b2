"""Workers: what is refused, and what several of them agree on."""

import sys
import time

import pytest

from gluon_amp.base.messages import UsageError
from gluon_amp.base.parameter_server import LostError
from gluon_amp.training.workers import group
from gluon_amp.training.workers.group import Workers, average_statistics, connect
from tests.training.workers.agreement import OF_TWO, agreement, side_by_side

import mxnet as mx
from mxnet import gluon

ROLE = {
    "DMLC_ROLE": "worker",
    "DMLC_PS_ROOT_URI": "127.0.0.1",
    "DMLC_PS_ROOT_PORT": "9",
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "1",
}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in [*ROLE, "HOROVOD_SIZE"]:
        monkeypatch.delenv(name, raising=False)


def test_statistics_of_one_worker_stay_as_they_are():
    param = gluon.Parameter("p", shape=(2,), grad_req="null")
    param.initialize(mx.init.One(), ctx=[mx.cpu(0), mx.cpu(1)])
    param.list_data()[1][:] = 3
    average_statistics([param], Workers())
    assert [array.asnumpy().tolist() for array in param.list_data()] == [[1, 1], [3, 3]]


@pytest.mark.parametrize(
    "name, variables, sentence",
    [
        (
            "dist_sync",
            {**ROLE, "DMLC_PS_ROOT_PORT": ""},
            "needs servers, and DMLC_PS_ROOT_PORT is not set: start with `gluon-amp launch",
        ),
        ("device", {"DMLC_NUM_WORKER": "2"}, "alone, but 2 workers .*: use --kv-store dist_sync"),
        ("local", {"HOROVOD_SIZE": "2"}, "trains alone, but 2 workers .*: use --kv-store horovod"),
        ("horovod", {}, "not installed: run `HOROVOD_WITH_MXNET=1 .* dist_sync"),
    ],
)
def test_a_store_that_cannot_be_used(name, variables, sentence, monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod", None)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=rf"(--kv-store|kvstore) {name}.* {sentence}"):
        connect(name, [mx.cpu()])


def test_horovod_trains_on_one_device():
    with pytest.raises(UsageError, match="one device in each process"):
        connect("horovod", [mx.cpu(0), mx.cpu(1)])


@pytest.mark.skipif(mx.runtime.Features().is_enabled("NCCL"), reason="this MXNet has NCCL")
def test_nccl_needs_a_build_with_it():
    with pytest.raises(UsageError, match="built without NCCL: use --kv-store device"):
        connect("nccl", [mx.cpu()])


def test_a_scheduler_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(group.mx.kv, "create", lambda name: time.sleep(2))
    for variable, value in ROLE.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(LostError) as caught:
        connect("dist_sync", [mx.cpu()], seconds=0.1)
    assert str(caught.value) == (
        "kvstore dist_sync: not all of 2 workers and 1 servers have met at the scheduler "
        "127.0.0.1:9 within 0.1 s: see whether it can be reached from here, and what they say."
    )


def test_two_workers_agree_in_threads():
    def work(store):
        return agreement(group._Several(store, store.rank))

    assert side_by_side(work, (1, 0)) == [OF_TWO] * 2
