"""The distances between two runs, from literal outputs and weights."""

import json
import math

import numpy as np
import pytest

from experiments.floor_of_chance.compare import (
    QUANTITIES,
    against_floor,
    cross_entropies,
    distances,
    identical,
    magnitudes,
    read_trace,
    top1,
)
from experiments.floor_of_chance.rows import COMPARED, jobs
from gluon_amp.base.messages import UsageError
from tests.experiments.floor_of_chance.example_results import results

LN3 = math.log(3)  # the outputs (ln 3, 0) are the probabilities 3/4 and 1/4


def trace(outputs, weights, labels=(0, 0)):
    return {
        "outputs": np.array(outputs, np.float32),
        "weights": np.array(weights, np.float32),
        "labels": np.array(labels),
    }


@pytest.fixture
def float32():
    outputs = [[[0, 0], [0, 0]], [[LN3, 0], [LN3, 0]]]
    return trace(outputs, [[3, 4], [0, 5]])


@pytest.fixture
def other():
    outputs = [[[0, 0], [0, 0]], [[LN3, 0], [0, LN3]]]
    return trace(outputs, [[3, 4], [3, 1]])


def test_cross_entropy_and_accuracy_by_hand(float32, other):
    assert cross_entropies(float32) == pytest.approx([math.log(2), math.log(4 / 3)])
    assert cross_entropies(other)[1] == pytest.approx((math.log(4 / 3) + math.log(4)) / 2)
    assert top1(float32).tolist() == [100, 100] and top1(other).tolist() == [100, 50]


def test_cross_entropy_of_large_outputs_is_finite():
    large = trace([[[60_000, 0], [0, 60_000]]], [[1]])
    assert cross_entropies(large).tolist() == [30_000]


def test_distances_by_hand(float32, other):
    found = distances(other, float32)
    assert found["disagreement"] == [0, 50]
    assert found["cross_entropy"] == pytest.approx([0, LN3 / 2])
    assert found["weights"] == [0, 1]  # (3, -4) has the length 5, that of (0, 5)
    assert distances(float32, other)["cross_entropy"][1] < 0
    assert all(value == [0, 0] for value in distances(other, other).values())


def test_one_bit_makes_two_runs_different(float32):
    same = {name: values.copy() for name, values in float32.items()}
    assert identical(same, float32)
    same["outputs"][0, 0, 0] = -0.0
    assert not identical(same, float32)


def test_traces_of_different_lengths_are_refused(float32, other):
    shorter = {**other, "outputs": other["outputs"][:1]}
    with pytest.raises(UsageError, match="train them again"):
        distances(shorter, float32)


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04 damaged"])
def test_a_damaged_trace_is_one_sentence(content, tmp_path):
    (tmp_path / "trace.npz").write_bytes(content)
    with pytest.raises(UsageError, match="is not a trace of a run"):
        read_trace(tmp_path / "trace.npz")


def test_a_trace_with_pickled_objects_is_refused(tmp_path):
    class Executed:
        def __reduce__(self):
            return exit, ("the file was executed",)

    objects = np.array([Executed()], object)
    np.savez(tmp_path / "trace.npz", outputs=objects, weights=objects, labels=objects)
    with pytest.raises(UsageError, match="is not a trace of a run"):
        read_trace(tmp_path / "trace.npz")


def test_rows_are_compared_with_the_floor_of_their_seed():
    found = results({"floor": (2, 3, 4), "float16": (2.1, 2.9, 4), "bfloat16": (5, 6, 7)})
    disagreement = QUANTITIES[0]
    assert magnitudes(found, "float16", disagreement).tolist() == [[0, 2.1], [0, 2.9], [0, 4]]
    comparison = against_floor(found, "float16", disagreement)
    assert comparison.difference == pytest.approx(0, abs=1e-9)
    assert str(comparison) == "equivalent"  # differences of 0.1, -0.1 and 0
    assert str(against_floor(found, "bfloat16", disagreement)) == "not tested"  # all are 3


def test_the_sign_of_a_difference_does_not_count():
    found = results({"floor": (2, 3, 4), "float16": (-2.1, 3.1, -4)})
    assert against_floor(found, "float16", QUANTITIES[1]).difference == pytest.approx(0.2 / 3)


def test_results_survive_json():
    found = results({"floor": (2, 3, 4), "float16": (2, 3.5, 4)})
    again = json.loads(json.dumps(found))
    assert against_floor(again, "float16", QUANTITIES[0]) == against_floor(
        found, "float16", QUANTITIES[0]
    )


# --------------------------------------------------------------------------------------- the runs


def test_runs_of_a_seed_differ_in_one_thing_each(tmp_path):
    by_seed = jobs("digits", tmp_path, [7, 8], 32, ("--num-epochs", "3"))
    names = [row.name for row in COMPARED]
    assert [job.configuration.name for job in by_seed[7]] == ["float32", "control", *names]
    assert [job.configuration.name for job in by_seed[8]] == ["float32", *names]
    reference, control, floor, *dtypes = by_seed[7]
    assert [job.arguments[0] for job in by_seed[7]] == ["own", "copied", "disturbed"] + ["own"] * 4

    def options(job):
        return [text.replace(str(job.folder), "") for text in job.arguments[1:]]

    assert options(reference) == options(control) == options(floor)
    assert {"--num-epochs", "digits", "32", "7"} <= set(options(floor))
    static = "--dtype float16 --loss-scale 64"
    precisions = ("--dtype float16", static, "--amp", "--dtype bfloat16")
    for job, precision in zip(dtypes, precisions):
        replaced = " ".join(options(job)).replace(precision, "--dtype float32")
        assert replaced == " ".join(options(reference))
