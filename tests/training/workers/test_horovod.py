"""Workers that meet through Horovod: what they agree on, and how they end when one is gone."""

import functools
import hashlib
import json
import re
import signal
import sys
from pathlib import Path

import pytest

from experiments.horovod.launch import Kill, run
from tests.training.runs.scripts import OF_THE_CLOCK
from tests.training.workers.agreement import OF_TWO

from mxnet import nd

pytest.importorskip("horovod.mxnet", reason="Horovod is not installed: run `make horovod`")

pytestmark = pytest.mark.slow

PYTHON = Path(sys.executable)
MODULE = ["-m", "tests.training.workers.horovod_worker"]
LOST = "another worker has ended or cannot be reached, so this one ends too"
BOUND = 90  # seconds in which a job ends after it has lost a worker


def job(name, count=2, **options):
    return run(PYTHON, [*MODULE, name], timeout=200, count=count, **options)


def results(name, count=2):
    """Return what the workers printed, by rank."""
    ended = job(name, count)
    assert ended.status == 0, "\n".join(ended.log)
    printed = [json.loads(line[line.index("{") :]) for line in ended.log if '{"rank"' in line]
    printed.sort(key=lambda one: one["rank"])
    assert [one["rank"] for one in printed] == list(range(count))
    return [one["result"] for one in printed]


def test_two_workers_agree():
    first, second = results("store")
    assert first == second
    assert first == {**OF_TWO, "kept": True, "out": [3, 3]}


def test_two_workers_agree_under_deep_numpy():
    assert results("deep_numpy") == [["ndarray", [0.25, 0.25], [0.2]]] * 2


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


def test_all_workers_skip_alike_and_end_with_the_same_bits():
    first, second = results("training")
    assert first == second
    for name, one in first.items():
        applied = [step[0] for step in one["steps"]]
        if name.startswith("bfloat16"):
            assert all(applied)
        else:
            assert not applied[4] and all(applied[5:]) and one["steps"][5][1] < one["steps"][4][1]
        assert one["digest"] == first[name.replace("store", "horovod")]["digest"]


def test_the_sums_of_three_workers_repeat_bit_for_bit():
    every = results("repeats", 3)
    assert every == [every[0]] * 3
    assert len(set(every[0]["digests"])) == 1


# ------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    "name, words",
    [
        ("refuses", "horovod_worker.py: the second worker cannot go on."),
        ("raises", "KeyError: 'gone'"),
    ],
)
def test_a_worker_that_fails_ends_the_job(name, words):
    ended = job(name)
    text = "\n".join(ended.log)
    assert ended.status == 1 and ended.seconds < BOUND
    assert words in text and LOST in text


OPTIONS = """
scripts/train_imagenet.py --dataset digits --kv-store horovod --dtype float16
--batch-size 16 --max-batches 6 --epochs 2 --warmup-epochs 0 --log-interval 1 --save-batches 2
""".split()
WHEN = "Epoch[1] Batch [3]"


def train(folder, *resume, **options):
    folder.mkdir(exist_ok=True)
    outputs = ["--save-dir", str(folder), "--summary-json", str(folder / "summary.json")]
    return run(PYTHON, [*OPTIONS, *outputs, *resume], timeout=250, **options)


def outcome(folder):
    """A digest of the parameters, and the summary but for its times."""
    (params,) = folder.glob("*.params")
    arrays = {name: array.asnumpy().tobytes() for name, array in nd.load(str(params)).items()}
    digest = hashlib.sha256(b"".join(arrays[name] for name in sorted(arrays))).hexdigest()
    summary = json.loads((folder / "summary.json").read_text())
    return digest, {name: v for name, v in summary.items() if name not in OF_THE_CLOCK}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the outcome of so many workers that are not disturbed; they train once."""

    @functools.lru_cache(maxsize=None)
    def of(count):
        folder = tmp_path_factory.mktemp("whole")
        ended = train(folder, count=count)
        assert ended.status == 0, "\n".join(ended.log)
        return outcome(folder)

    return of


@pytest.mark.parametrize(
    "count, worker, number",
    [(2, 0, signal.SIGKILL), (2, 1, signal.SIGSTOP), (3, 2, signal.SIGKILL)],
)
def test_a_lost_worker_ends_the_job_and_all_resume_to_the_same_bits(
    count, worker, number, whole, tmp_path
):
    """A worker that was killed, or one that does not answer for 30 s, which is Horovod's limit."""
    lost = train(tmp_path / "killed", count=count, kill=Kill(worker, WHEN, number))
    assert lost.status == 1 and lost.seconds < BOUND
    said = [line for line in lost.log if LOST in line]
    # horovodrun ends all when the first has ended, so with three workers one may say nothing
    assert 1 <= len(said) < count
    assert {re.sub(r"^\[\d\]<stderr>:", "", line) for line in said} == {
        f"train_imagenet.py: {LOST}: see what it said, and start all of them again, with --resume "
        "auto if they have a --save-dir."
    }
    assert not any(re.match(r"\[\d\]<stderr>:Traceback", line) for line in lost.log)
    resumed = train(tmp_path / "killed", "--resume", "auto", count=count)
    assert resumed.status == 0, "\n".join(resumed.log)
    assert outcome(tmp_path / "killed") == whole(count)
