"""The page is made of its values."""

import json

import pytest

from experiments.wire.page import page
from experiments.wire.scaling import Exchange
from tests import ROOT

RESULTS = ROOT / "docs" / "results"


@pytest.fixture(scope="module")
def results():
    return json.loads((RESULTS / "wire.json").read_text(encoding="utf-8"))


def test_the_committed_page_is_its_values(results):
    assert (RESULTS / "wire.md").read_text(encoding="utf-8") == page(results, "wire.png")
    assert (RESULTS / "wire.png").read_bytes().startswith(b"\x89PNG")


def test_float16_halves_the_bytes_and_bfloat16_does_not(results):
    rows = {(row["network"], row["policy"], row["workers"]): row for row in results["traffic"]}
    for network, workers in (("digits", 2), ("resnet18", 2)):
        full, half, same = (
            rows[network, policy, workers]["sent"] for policy in ("float32", "float16", "bfloat16")
        )
        assert half / full == pytest.approx(0.5, abs=0.02)
        assert same / full == pytest.approx(1, abs=0.02)


def test_counted_bytes_are_the_formulas(results):
    assert {row["workers"] for row in results["traffic"]} == {2, 4}
    for row in results["traffic"]:
        expected = Exchange("server", row["servers"]).bytes_per_worker(row["workers"], row["bytes"])
        for field in ("sent", "received"):
            assert expected < row[field] < 1.1 * expected  # headers
        total = sum(row["server_received"])
        assert total == pytest.approx(row["workers"] * row["sent"], rel=0.05)


def test_every_overflow_of_the_simulated_sums_was_seen(results):
    assert len(results["sums"]) > 50
    assert all(row["seen"] for row in results["sums"])
