"""Ratios of measured cases, and cases that cannot be measured."""

import pytest

from experiments.benchmarks import measure
from experiments.benchmarks.measure import Measured
from experiments.benchmarks.suites import Case, Ratio, Suite


def case(label, dtype="float32", **options):
    return Case(label, "train", "mxnet", dtype, **options)


def test_ratios_are_taken_round_by_round():
    suite = Suite(
        "t",
        [[case("a"), case("b")]],
        (
            Ratio("a / b", "a", "b", must=1.5, aim=0.5),
            Ratio("memory", "a", "b", must=2.0, aim=1.0, figure="mebibytes"),
        ),
    )
    measured = [
        Measured(case("a"), [2.0, 8.0, 3.0], 300.0, 7),
        Measured(case("b"), [2.0, 4.0, 4.0], 100.0, 7),
    ]
    time, memory = measure.ratios(suite, measured)
    assert (time.values, time.median, time.verdict) == ([1.0, 2.0, 0.75], 1.0, "must")
    assert (memory.values, memory.verdict) == ([3.0], "missed")


@pytest.mark.parametrize(
    ("value", "larger", "verdict"),
    [
        (0.5, False, "aim"),
        (1.0, False, "aim"),
        (1.5, False, "must"),
        (2.01, False, "missed"),
        (0.5, True, "missed"),
        (2.0, True, "must"),
        (3.0, True, "aim"),
    ],
)
def test_verdicts(value, larger, verdict):
    must, aim = (2.0, 3.0) if larger else (2.0, 1.0)
    ratio = Ratio("r", "a", "b", must, aim, larger_is_better=larger)
    assert measure.MeasuredRatio(ratio, [value]).verdict == verdict
    assert measure.MeasuredRatio(ratio._replace(must=None, aim=None), [value]).verdict == ""


def test_a_sample_takes_about_its_time():
    assert measure.runs_per_sample([5.0, 0.1, 0.2]) == 3
    assert measure.runs_per_sample([5.0, 4.0, 4.0]) == 1


def test_a_case_that_fails_is_an_error():
    suite = Suite("t", [[Case("bad", "nothing", "mxnet", "float32")]])
    with pytest.raises(measure.BenchmarkError, match=r"bad: 'nothing'"):
        measure.measure(suite, 1, progress=lambda line: None)
