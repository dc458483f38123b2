"""The noise floor: distances from literal outputs, verdicts, and short runs that repeat."""

import json
import math

import numpy as np
import pytest

from experiments.floor_of_chance import __main__ as command
from experiments.floor_of_chance import rows
from experiments.floor_of_chance.compare import distances, identical, read_trace, top1
from experiments.floor_of_chance.page import verdict
from experiments.floor_of_chance.traced_run import main
from gluon_amp.base.messages import UsageError
from gluon_amp.training.tables.statistics import compare_pairs

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


@pytest.mark.parametrize(
    "ends, words",
    [
        ((2.1, 2.9, 4.0), "equivalent"),
        ((1.0, 5.0, 4.0), "undecided"),
        ((4.0, 5.1, 6.0), "farther than the floor"),
        ((0.5, 1.0, 2.5), "nearer than the floor"),
        ((2.1, 3.11, 4.1), "farther than the floor but within the margin"),
    ],
)
def test_the_verdict_follows_from_the_numbers(ends, words):
    assert verdict(compare_pairs(ends, (2.0, 3.0, 4.0), 0.5)) == words


def test_a_run_that_failed_and_a_refused_option_are_one_sentence(tmp_path, capsys):
    job, *others = rows.jobs("digits", tmp_path, [0], 64)[0]
    starts = [each.arguments[0] for each in (job, *others)]
    assert starts == ["own", "copied", "disturbed", *["own"] * 4]
    job.folder.mkdir(parents=True)
    about = {"name": "float32", "label": "float32", "dtype": "float32", "batch": 64}
    run = {"configuration": about, "seed": 0, "hardware": "Xeon", "failure": "the loss became nan"}
    (job.folder / "run.json").write_text(json.dumps(run))
    with pytest.raises(UsageError, match="has no result: the loss became nan"):
        command.collect({0: [job]})
    assert command.main(["--output", str(tmp_path / "new"), "--", "--num-epochs", "0"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("floor_of_chance: ") and error.count("\n") == 1


def arguments(folder, start):
    folder.mkdir(exist_ok=True)
    words = f"{start} {folder}/trace.npz --dataset digits --num-epochs 2 --max-batches 3 --model "
    words += f"convnet --warmup-epochs 0 --save-dir {folder}/checkpoints --keep 100 --resume auto"
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
