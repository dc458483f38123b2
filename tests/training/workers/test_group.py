"""Workers: what is refused, and what several of them agree on, with MXNet's real processes."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

import gluon_amp  # noqa: F401
from gluon_amp.base.messages import UsageError
from gluon_amp.training.workers.group import (
    LostError,
    Workers,
    average_statistics,
    connect,
    naming_lost_workers,
)
from tests import ROOT
from tests.training.workers.agreement import OF_TWO

import mxnet as mx
from mxnet import gluon

LAUNCH = [sys.executable, str(ROOT / "scripts" / "launch.py")]
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


def run(command, script, folder, **env):
    """Run a script by a command that starts several; return the lines of each, by its rank."""
    path = folder / "worker.py"
    path.write_text(textwrap.dedent(script))
    return subprocess.run(
        [*command, sys.executable, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), **env},
        capture_output=True,
        text=True,
        timeout=100,
    )


# ---------------------------------------------------------------------------------- one worker


def test_one_worker_agrees_with_itself():
    alone = connect("device", [mx.cpu()])
    assert (alone.rank, alone.count, alone.kvstore, alone.first) == (0, 1, "device", True)
    assert alone.total([1, 0.1]).tolist() == [1, 0.1]
    assert alone.every([1, 0.1]).tolist() == [[1, 0.1]]
    assert alone.from_first(b"a\0") == b"a\0"


def test_statistics_of_one_worker_stay_as_they_are():
    param = gluon.Parameter("p", shape=(2,), grad_req="null")
    param.initialize(mx.init.One(), ctx=[mx.cpu(0), mx.cpu(1)])
    param.list_data()[1][:] = 3
    average_statistics([param], Workers())
    assert [array.asnumpy().tolist() for array in param.list_data()] == [[1, 1], [3, 3]]


# ------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("missing", sorted(ROLE))
@pytest.mark.parametrize("name", ["dist_sync", "dist_device_sync"])
def test_a_parameter_server_needs_a_launcher(name, missing, monkeypatch):
    for variable in set(ROLE) - {missing}:
        monkeypatch.setenv(variable, ROLE[variable])
    with pytest.raises(UsageError, match=rf"--kv-store {name} needs servers, and {missing} is not"):
        connect(name, [mx.cpu()])


@pytest.mark.parametrize(
    "name, variable, sentence",
    [
        ("device", "DMLC_NUM_WORKER", "trains alone, but 2 workers .*: use --kv-store dist_sync"),
        ("local", "HOROVOD_SIZE", "trains alone, but 2 workers .*: use --kv-store horovod"),
    ],
)
def test_two_workers_must_not_train_side_by_side(name, variable, sentence, monkeypatch):
    monkeypatch.setenv(variable, "2")
    with pytest.raises(UsageError, match=sentence):
        connect(name, [mx.cpu()])


@pytest.mark.skipif(mx.runtime.Features().is_enabled("NCCL"), reason="this MXNet has NCCL")
def test_nccl_needs_a_build_with_it():
    with pytest.raises(UsageError, match="built without NCCL: use --kv-store device"):
        connect("nccl", [mx.cpu()])


def test_horovod_where_it_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod", None)
    with pytest.raises(UsageError, match="not installed: run `HOROVOD_WITH_MXNET=1 .* dist_sync"):
        connect("horovod", [mx.cpu()])
    with pytest.raises(UsageError, match="one device in each process"):
        connect("horovod", [mx.cpu(0), mx.cpu(1)])


def test_a_scheduler_that_does_not_answer(tmp_path):
    """A process of its own, as MXNet goes on waiting in it."""
    script = """
        from gluon_amp.training.workers.group import LostError, connect, leave
        import mxnet as mx

        def main():
            try:
                connect("dist_sync", [mx.cpu()], seconds=0.5)
            except LostError as error:
                print(error)
                return 1

        leave(main)
    """
    done = run([], script, tmp_path, **ROLE)
    assert done.returncode == 1
    assert done.stdout == (
        "--kv-store dist_sync: not all of 2 workers and 1 servers have met at the scheduler "
        "127.0.0.1:9 within 0.5 s: see whether it can be reached from here, and what they say.\n"
    )


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
    with pytest.raises(
        LostError, match=r"^another worker has ended [^.]*\.$"
    ), naming_lost_workers():
        raise mx.MXNetError(text)


def test_other_errors_of_mxnet_stay_as_they_are():
    with pytest.raises(mx.MXNetError, match="broadcast together"), naming_lost_workers():
        (mx.nd.ones((2, 3)) + mx.nd.ones((4, 5))).wait_to_read()


# ------------------------------------------------------------------------------ several workers

AGREE = """
    import json
    import gluon_amp as amp
    import mxnet as mx
    from mxnet import autograd, gluon
    from gluon_amp.training.workers.group import connect, leave
    from tests.training.workers.agreement import agreement

    def main():
        workers = connect("dist_sync", [mx.cpu()])
        results = {"rank": workers.rank, **agreement(workers)}

        # Gradients travel in the weights' dtype, and one that overflows in the sum is seen by all.
        p = gluon.Parameter("p", shape=(2,), dtype="float16")
        p.initialize(mx.init.One())
        trainer = amp.Trainer([p], "sgd", {"learning_rate": 1}, kvstore=workers.kvstore,
                              loss_scale=4)
        results["applied"], results["sent"] = [], []
        for factor in (10000, 0.125, 10000, 0.125):
            with autograd.record():
                loss = (p.data().astype("float32") * factor).sum()
            trainer.backward(loss)
            trainer.allreduce_grads()
            results["sent"].append([p.grad().dtype.__name__, str(p.grad()[0].asscalar())])
            report = trainer.update(2)
            results["applied"].append(report.applied)
        results["weight"] = p.data().asnumpy().tolist()
        print(json.dumps(results), flush=True)
        return 0

    leave(main)
"""
AGREED = {
    **OF_TWO,
    "sent": [["float16", "inf"], ["float16", "1.0"], ["float16", "inf"], ["float16", "1.0"]],
    "applied": [False, True, False, True],
    "weight": [0.75, 0.75],
}


def results(lines):
    by_rank = sorted(
        (json.loads(line[line.index("{") :]) for line in lines), key=lambda f: f["rank"]
    )
    assert [one.pop("rank") for one in by_rank] == [0, 1]
    return by_rank


@pytest.mark.slow
def test_two_workers_agree(tmp_path):
    done = run([*LAUNCH, "-n", "2", "-s", "2", "--"], AGREE, tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert results(lines) == [AGREED, AGREED]
    for line in lines:  # the launcher's numbers are the ranks
        assert f'"rank": {line[len("[worker ")]},' in line


FAILS = """
    from gluon_amp.training.workers.group import connect, leave
    import mxnet as mx

    def main():
        workers = connect("dist_sync", [mx.cpu()])
        if workers.rank == 1:
            {}
        workers.total([1])  # in which the other waits for ever
        return 0

    leave(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "what, status, words",
    [("return 2", 2, "status 2"), ("raise KeyError('gone')", 1, "KeyError: 'gone'")],
)
def test_a_worker_that_fails_does_not_wait_at_its_exit(tmp_path, what, status, words):
    done = run([*LAUNCH, "-n", "2", "-s", "1", "--"], FAILS.format(what), tmp_path)
    assert done.returncode == status
    assert f"launch.py: worker 1 ended with status {status}; the others are ended." in done.stderr
    assert words in done.stderr


def test_names_are_the_documented_ones():
    names = "device local nccl dist_sync dist_device_sync horovod"
    assert tuple(names.split()) == group.KV_STORES
    assert issubclass(LostError, RuntimeError)
