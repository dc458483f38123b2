"""The launches suite: what is counted, and what the page says about the goal."""

import json

import pytest
from experiments.benchmarks.launch_count import SYSTEMS, Counting

from experiments.benchmarks import launches
from experiments.benchmarks.launches import BASE, OWN, count, page, tables, verdict
from tests import ROOT

RESULT = ROOT / "docs" / "benchmarks" / "launches.json"


def row(system=OWN, trainer=20.0, reads=1.0, after=(), **case):
    case = {"network": "net", "optimizer": "sgd", "devices": 1, "clip": False, **case}
    return {**case, "system": system, "trainer": trainer, "reads": reads, "after": list(after)}


@pytest.mark.parametrize(
    "own, expected",
    [
        (row(trainer=30), "+10"),
        (row(trainer=31), "+11 (missed: operators)"),
        (row(trainer=12), "−8"),
        (row(reads=2), "+0 (missed: reads)"),
        (row(reads=2, devices=2), "+0"),
        (row(after=["where"]), "+0 (missed: where after the read)"),
    ],
)
def test_the_goal_is_ten_operators_and_one_read_for_each_device(own, expected):
    assert verdict(own, row(BASE)) == expected


def test_a_table_has_a_cell_for_each_system():
    failed = {**row("contrib.amp"), "failed": "TypeError: no"}
    found = [row(BASE), failed, row(trainer=12), row(trainer=4, optimizer="adamw")]
    networks, optimizers = tables(found, [row(trainer=300)]).split("\n\nOn net")
    line = networks.splitlines()[-1]
    assert line == "| net | 1 | no | none | 20 / 1 | fails | 12 / 1 | 300 / 1 | −8 |"
    assert optimizers.splitlines()[-2:] == [
        "| sgd | 20 / 1 | 12 / 1 | 300 / 1 | −8 |",
        "| adamw | none | 4 / 1 | none |  |",
    ]


def test_an_lstm_on_two_devices_reaches_the_goal():
    counts = {
        system: count(Counting("LSTM, 2 layers", system, devices=2, clip=True))
        for system in (BASE, OWN)
    }
    own = {**counts[OWN], "devices": 2}
    assert own["trainer"] - counts[BASE]["trainer"] <= launches.MOST_MORE
    assert (own["reads"], own["after"], own["uploads"]) == (2, [], 0)
    assert own["passes"] == counts[BASE]["passes"] > 20


def test_a_case_that_cannot_run_says_why():
    assert count(Counting("LSTM, 2 layers", OWN, "no_such"))["failed"].startswith("KeyError")


def test_the_page_is_that_of_its_figures():
    result = json.loads(RESULT.read_text())
    before = launches.read_before(RESULT.parent)
    assert page(result, before) == RESULT.with_suffix(".md").read_text()
    assert {one["system"] for one in result["rows"]} == set(SYSTEMS)


def test_every_row_reaches_the_goal():
    rows = json.loads(RESULT.read_text())["rows"]
    by_case = {
        (one["system"], one["network"], one["optimizer"], one["devices"], one["clip"]): one
        for one in rows
    }
    own = [case for case in by_case if case[0] == OWN]
    assert len(own) == 4 * 2 * 2 + 5
    for case in own:
        assert "missed" not in verdict(by_case[case], by_case.get((BASE, *case[1:])))
