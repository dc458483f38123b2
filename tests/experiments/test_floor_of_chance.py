"""The floor of chance: distances from literal outputs, verdicts, and short runs that repeat."""

import json
import math
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from experiments.floor_of_chance import __main__ as command
from experiments.floor_of_chance import rows
from experiments.floor_of_chance.compare import QUANTITIES, distances, identical, read_trace, top1
from experiments.floor_of_chance.page import sentence, table
from experiments.floor_of_chance.traced_run import disturbed, main
from gluon_amp.base.messages import UsageError
from tests import ROOT
from tests.training.runs.scripts import environment

LN3 = math.log(3)  # the outputs (ln 3, 0) are the probabilities 3/4 and 1/4


def trace(outputs, weights):
    return {
        "outputs": np.array(outputs, np.float32),
        "weights": np.array(weights, np.float32),
        "labels": np.array((0, 0)),
    }


def test_distances_by_hand():
    float32 = trace([[[0, 0], [0, 0]], [[LN3, 0], [LN3, 0]]], [[3, 4], [0, 5]])
    other = trace([[[0, 0], [0, 0]], [[LN3, 0], [0, LN3]]], [[3, 4], [3, 1]])
    assert top1(other).tolist() == [100, 50]
    assert distances(other, float32) == {
        "disagreement": [0, 50],
        "cross_entropy": pytest.approx([0, LN3 / 2]),
        "weights": [0, 1],  # (3, -4) has the length 5, that of (0, 5)
    }
    with pytest.raises(UsageError, match="train them again"):
        distances({**other, "outputs": other["outputs"][:1]}, float32)
    same = {name: values.copy() for name, values in float32.items()}
    assert identical(same, float32)
    same["outputs"][0, 0, 0] = -0.0
    assert not identical(same, float32)


def test_a_damaged_trace_is_one_sentence(tmp_path):
    (tmp_path / "trace.npz").write_bytes(b"PK\x03\x04 damaged")
    with pytest.raises(UsageError, match="is not a trace of a run"):
        read_trace(tmp_path / "trace.npz")


@pytest.mark.parametrize(
    "ends, words",
    [
        ((2.1, -2.9, 4.0), "equivalent"),  # the sign of a difference does not count
        ((1.0, 5.0, 4.0), "undecided"),
        ((4.0, 5.1, 6.0), "farther than the floor"),
        ((2.1, 3.11, 4.1), "farther than the floor but within the margin"),
    ],
)
def test_the_sentence_and_the_table_follow_from_the_numbers(ends, words):
    found = json.loads((ROOT / "docs/results/floor/fashion-mnist.json").read_text())
    found["margins"] = dict.fromkeys(found["margins"], 0.5)
    for name, values in (("floor", (2.0, 3.0, 4.0)), ("float16", ends)):
        for seed, value in zip(found["seeds"], values):
            series = {quantity.name: [0.0, value] for quantity in QUANTITIES}
            found["rows"][name]["seeds"][seed].update(series, top1=[98.0], skipped_steps=1)
    text, mean = sentence(found, "float16"), f"{sum(map(abs, ends)) / 3:.3g}"
    assert f"disagreement of predictions {mean} against 3, {words};" in text
    assert ("**float16** is indistinguishable from the floor:" in text) == (words == "equivalent")
    assert "Top-1 98.00 against 98.00 %; 1.0 steps were skipped." in text
    floor, float16 = table(found, QUANTITIES[0]).splitlines()[2:4]
    assert floor == "| float32, disturbed by 1 ulp | 0 | 3 | 3 [2, 4] | – | – | – | – |"
    assert float16.startswith(f"| float16 | 0 | {mean} | {mean} [")


def test_runs_of_a_seed_differ_in_one_thing_each(tmp_path):
    by_seed = rows.jobs("digits", tmp_path, [7, 8], 32, ("--num-epochs", "3"))
    assert [len(jobs) for jobs in by_seed.values()] == [7, 6]  # the first seed has a control
    assert [job.arguments[0] for job in by_seed[7]] == ["own", "copied", "disturbed"] + ["own"] * 4
    words = [
        " ".join(job.arguments[1:]).replace(str(job.folder), "").replace("  ", " ")
        for job in by_seed[7]
    ]
    assert (
        words[0] == words[1] == words[2] and "--seed 7 --batch-size 32 --num-epochs 3" in words[0]
    )
    precisions = ("float16", "float16 --loss-scale 64", None, "bfloat16")
    for other, dtype in zip(words[3:], precisions):
        precision = f"--dtype {dtype}" if dtype else "--amp"
        assert other == words[0].replace("--dtype float32", precision)


def test_a_run_that_failed_and_a_refused_option_are_one_sentence(tmp_path, capsys):
    job = rows.jobs("digits", tmp_path, [0], 64)[0][0]
    job.folder.mkdir(parents=True)
    about = {"name": "float32", "label": "float32", "dtype": "float32", "batch": 64}
    run = {"configuration": about, "seed": 0, "hardware": "Xeon", "failure": "the loss became nan"}
    (job.folder / "run.json").write_text(json.dumps(run))
    with pytest.raises(UsageError, match="has no result: the loss became nan"):
        command.collect({0: [job]}, 1)
    assert command.main(["--output", str(tmp_path / "new"), "--", "--num-epochs", "0"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("floor_of_chance: ") and error.count("\n") == 1


# ------------------------------------------------------------------------------------ short runs


def test_each_weight_moves_to_a_neighbour():
    values = np.array([1.0, -1.0, 0.0, 0.1, 3e38, 1.4e-45], np.float32).repeat(50)
    moved = disturbed(values, np.random.default_rng(0))
    up, down = (np.nextafter(values, np.float32(end)) for end in (np.inf, -np.inf))
    assert moved.dtype == np.float32 and ((moved == up) | (moved == down)).all()
    assert set(moved[:50].tolist()) == {1 + 2**-23, 1 - 2**-24}


def arguments(folder, start):
    folder.mkdir(exist_ok=True)
    words = f"{start} {folder}/trace.npz --dataset digits --num-epochs 2 --max-batches 3 --seed 1 "
    words += f"--warmup-epochs 0 --save-dir {folder}/checkpoints --keep 100 --resume auto"
    return words.split()


def test_short_runs_repeat_and_one_unit_in_the_last_place_grows(tmp_path):
    traces = {}
    for start in ("own", "copied", "disturbed"):
        assert main(arguments(tmp_path / start, start)) == 0
        assert [path.name for path in (tmp_path / start).glob("checkpoints")] == []
        traces[start] = read_trace(tmp_path / start / "trace.npz")
    assert traces["own"]["outputs"].shape == (3, 360, 10)
    assert identical(traces["copied"], traces["own"])
    found = distances(traces["disturbed"], traces["own"])["weights"]
    assert 2**-25 < found[0] < 2**-23 and found[1] > 4 * found[0]


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_trace(tmp_path):
    assert main(arguments(tmp_path / "whole", "disturbed")) == 0
    killed = [*arguments(tmp_path / "killed", "disturbed"), "--save-batches", "1"]
    command = [sys.executable, str(rows.SCRIPT), *killed]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("killed/checkpoints/epoch*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    assert main(killed) == 0
    whole, again = (read_trace(tmp_path / name / "trace.npz") for name in ("whole", "killed"))
    assert identical(again, whole)


@pytest.mark.parametrize(
    "words, message",
    [
        (["shaken", "trace.npz"], "expected own, copied or disturbed, and then a file"),
        (["own", "trace.npz", "--dataset", "digits"], "--save-dir is missing"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(words, message, capsys):
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
