"""The page and the figure say what the numbers say."""

import json

import pytest

from experiments.floor_of_chance.compare import QUANTITIES
from experiments.floor_of_chance.figure import draw
from experiments.floor_of_chance.page import page, sentence, table
from tests import ROOT
from tests.experiments.floor_of_chance.example_results import results

FLOOR = (2.0, 3.0, 4.0)
COMMITTED = ROOT / "docs" / "results" / "floor"


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
def test_the_sentence_follows_from_the_numbers(ends, words):
    text = sentence(results({"floor": FLOOR, "float16": ends}), "float16")
    mean = f"{sum(ends) / 3:.3g}"
    assert f"disagreement of predictions {mean} against 3, {words};" in text
    assert ("**float16** is indistinguishable from the floor:" in text) == (words == "equivalent")
    assert "Top-1 98.00 against 98.00 %; 1.0 steps were skipped." in text


def test_one_distance_that_is_undecided_is_enough_to_say_so():
    found = results({"floor": FLOOR, "float16": (2.1, 2.9, 4.0)})
    found["margins"]["weights"] = 1e-3
    assert "indistinguishable" not in sentence(found, "float16")


def test_the_table_of_literal_numbers():
    lines = table(results({"floor": FLOOR, "float16": (2.5, 3.0, 4.0)}), QUANTITIES[0]).splitlines()
    floor = "| float32, disturbed by 1 ulp | 0 | 3 | 3 [2, 4] | – | – | – | – |"
    assert lines[2] == floor
    # differences of 0.5, 0 and 0: mean 1/6, and 4.303 * 0.2887 / sqrt(3) either way
    assert lines[3].startswith("| float16 | 0 | 3.17 | 3.17 [2.5, 4] | +0.17 (-0.55 to +0.88) |")
    assert lines[3].endswith("| undecided |")


def test_one_seed_is_not_tested():
    found = results({"floor": (2.0,), "float16": (3.0,)})
    assert "| +1 | – | – | not tested |" in table(found, QUANTITIES[0])


@pytest.mark.parametrize("identical", [True, False])
def test_the_page_says_whether_runs_repeat(identical):
    text = page(results({"floor": FLOOR, "float16": FLOOR}, identical), "digits.png")
    assert ("trained again ends with the same bits" in text) == identical
    assert ("does not end with the same bits" in text) != identical
    assert "with 2 at a time and 1 thread each: float32 20 s, float32, disturbed by" in text


def test_the_figure_is_a_png_also_where_every_distance_is_zero(tmp_path):
    for ends in (FLOOR, (0.0, 0.0, 0.0)):
        found = results({"floor": ends, "float16": ends, "bfloat16": ends}, epochs=3)
        draw(found, tmp_path / "floor.png")
        assert (tmp_path / "floor.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("dataset", sorted(path.stem for path in COMMITTED.glob("*.json")))
def test_a_committed_page_follows_from_its_committed_values(dataset):
    found = json.loads((COMMITTED / f"{dataset}.json").read_text())
    assert (COMMITTED / f"{dataset}.md").read_text() == page(found, f"{dataset}.png")
