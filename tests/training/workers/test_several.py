"""Several workers and devices train as one process with the whole batch, and all of them end."""

import json
import re
import subprocess
import sys
from functools import lru_cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.trainer import scaled_trainer
from tests.training.runs.scripts import environment

import mxnet as mx

PROGRAM = Path(__file__).with_name("share_of_batch.py")
ROUNDING = {
    "float32": 1e-5,
    "fused_float32": 1e-5,
    "mixed_float16": 2e-3,
    "float16": 2e-3,
    "bfloat16": 2e-2,
}
STARTS = [
    *product(["library", "module"], ["initialized", "deferred"]),
    *product(["command"], ["hybrid", "module"]),
]
WAYS = [(2, 1), (3, 1), (1, 2)]  # workers, devices
QUICK = [("library", "initialized", policy, 2, 1) for policy in ("float32", "bfloat16")]
SECONDS = 150  # of a run; it takes 6 on two cores


def launched(workers, *command):
    """Run a command as several workers; return the process, with its output."""
    launch = [sys.executable, "-m", "gluon_amp", "launch", "-n", str(workers), "-s", "1", "--"]
    return subprocess.run(
        [*launch, *map(str, command)] if workers > 1 else list(map(str, command)),
        env=environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def losses(result, workers, *arguments):
    done = launched(workers, sys.executable, PROGRAM, *arguments, result)
    assert done.returncode == 0, done.stderr
    return [json.loads(Path(f"{result}{rank}").read_text()) for rank in range(workers)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return a function that returns the losses of one process with the whole batch."""
    return lru_cache(maxsize=None)(
        lambda *arguments: losses(tmp_path_factory.mktemp("alone") / "result", 1, *arguments, 1)[0]
    )


def cells():
    for start, policy, way in product(STARTS, ROUNDING, WAYS):
        cell = (*start, policy, *way)
        yield pytest.param(*cell, marks=() if cell in QUICK else pytest.mark.slow)


@pytest.mark.parametrize("api, start, policy, workers, devices", cells())
def test_the_losses_are_those_of_one_process(alone, tmp_path, api, start, policy, workers, devices):
    each = losses(tmp_path / "result", workers, api, start, policy, devices)
    found = each[0] if api == "command" else np.sum(each, axis=0)
    expected = alone(api, start, policy)
    assert len(expected) == (1 if api == "command" else 3)
    np.testing.assert_allclose(found, expected, rtol=ROUNDING[policy])


TRAIN = """
import os
import gluon_amp as amp
import mxnet as mx

rank = int(os.environ["DMLC_WORKER_ID"])
net = mx.gluon.nn.Dense({units}, in_units=2)
net.initialize()
amp.cast(net, {policy})
trainer = amp.Trainer(net.collect_params(), "sgd", kvstore="dist_sync", loss_scale={scale})
for _ in range(2):
    with mx.autograd.record():
        loss = net({data})
    trainer.backward(loss)
    trainer.step(1)
    rank and {after}
"""
ONES = "mx.nd.ones(({0}, {0}))".format
SAME = {"units": 1, "policy": "'float32'", "scale": None, "data": ONES(2), "after": 0}
BY_RANK = "[{!r}, {!r}][rank]".format


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"units": BY_RANK(1, 2)}, r"\[worker {}\] ValueError: The workers differ in their"),
        ({"after": "1 / 0"}, r": worker 1 ended with status 1; the others are ended\."),
    ],
)
def test_workers_that_cannot_go_on_end_with_a_sentence(tmp_path, change, sentence):
    (tmp_path / "train.py").write_text(TRAIN.format(**{**SAME, **change}))
    done = launched(2, sys.executable, tmp_path / "train.py")
    assert done.returncode == 1
    for rank in (0, 1):
        assert re.search(sentence.format(rank), done.stderr), done.stderr


def test_the_facts_in_which_workers_may_not_differ(monkeypatch):
    facts = []
    monkeypatch.setattr(scaled_trainer, "check_alike", lambda store, each: facts.append(each))
    for policy, units, scale in (
        ("float32", 1, 8),
        ("mixed_float16", 1, 8),
        ("float32", 2, 8),
        ("float32", 1, None),
    ):
        net = mx.gluon.nn.Dense(units, in_units=2)
        net.initialize()
        amp.cast(net, policy)
        amp.Trainer(net.collect_params(), "sgd", loss_scale=scale).ready()
    first, *others = facts
    assert [[name for name in first if first[name] != each[name]] for each in others] == [
        ["the dtypes of their parameters"],
        ["their networks"],
        ["their loss scales"],
    ]


def test_a_worker_sends_its_last_step_before_it_ends(tmp_path):
    slow = f"mx.nd.dot({ONES(2000)}, {ONES(2000)})[:2, :2]"
    script = TRAIN.format(**{**SAME, "data": slow, "after": "mx.nd.waitall()"})  # in worker 1
    (tmp_path / "train.py").write_text(script)
    done = launched(2, sys.executable, tmp_path / "train.py")
    assert (done.returncode, done.stderr) == (0, "")


FAILS = """
from gluon_amp.training.workers.group import connect, leave
import mxnet as mx

def main():
    workers = connect("dist_sync", [mx.cpu()])
    if workers.rank == 1:
        raise KeyError('gone')
    workers.total([1])  # in which the other waits for ever
    return 0

leave(main)
"""


@pytest.mark.slow
def test_a_worker_that_fails_does_not_wait_at_its_exit(tmp_path):
    (tmp_path / "train.py").write_text(FAILS)
    done = launched(2, sys.executable, tmp_path / "train.py")
    assert done.returncode == 1
    assert "launch: worker 1 ended with status 1; the others are ended." in done.stderr
    assert "KeyError: 'gone'" in done.stderr
