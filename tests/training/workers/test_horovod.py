"""Workers that meet through Horovod: what they agree on, and how they end when one fails.

`make horovod` runs this file, kills one of two workers, and resumes both.
"""

import json
import sys
from pathlib import Path

import pytest

from experiments.horovod.launch import run
from tests.training.workers.agreement import OF_TWO

pytest.importorskip("horovod.mxnet", reason="Horovod is not installed: run `make horovod`")

pytestmark = pytest.mark.slow

PYTHON = Path(sys.executable)
MODULE = ["-m", "tests.training.workers.horovod_worker"]
LOST = "another worker has ended or cannot be reached, so this one ends too"
BOUND = 90  # seconds in which a job ends after it has lost a worker


def results(name, count=2):
    """Return what the workers printed, by rank."""
    ended = run(PYTHON, [*MODULE, name], timeout=200, count=count)
    assert ended.status == 0, "\n".join(ended.log)
    printed = [json.loads(line[line.index("{") :]) for line in ended.log if '{"rank"' in line]
    printed.sort(key=lambda one: one["rank"])
    assert [one["rank"] for one in printed] == list(range(count))
    return [one["result"] for one in printed]


def test_two_workers_agree():
    assert results("store") == [{**OF_TWO, "kept": True, "out": [3, 3]}] * 2


@pytest.mark.parametrize("count", [2, 3])
def test_sums_in_float16_fit_where_each_gradient_does(count):
    """49,152 in each worker; in the second step it is above 65,504 in all but the first."""
    every = results("sums", count)
    assert every == [every[0]] * count
    after = [1 - 0.25 * 1.5, 1 - 2 * 0.25 * 1.5]
    for name, steps in every[0].items():
        assert steps == [
            [True, 2.0**15, after[0]],
            [False, 2.0**15, after[0]],
            [True, 2.0**14, pytest.approx(after[1], abs=2e-3)],
        ], name


def test_a_worker_that_fails_ends_the_job():
    ended = run(PYTHON, [*MODULE, "refuses"], timeout=200, count=2)
    text = "\n".join(ended.log)
    assert ended.status == 1 and ended.seconds < BOUND
    assert "horovod_worker.py: the second worker cannot go on." in text and LOST in text
