"""The ablation: its table, its files, and that a network fails in its last row."""

import json

import pytest

from experiments import ablation


def test_the_table_of_literal_errors():
    def runs(*errors):
        return [{"errors": [50.0, error], "skipped": 1} for error in errors]

    errors = {"float32": runs(2.0, 3.0, 4.0), "one": runs(2.5, 2.5, 4.0), "all": runs(12, 13.5, 14)}
    lines = ablation.table(errors, margin=5.0).splitlines()
    assert lines[2:] == [
        "| float32 | 97.00 ± 1.00 |  |  | 1.0 |",
        # differences of -0.5, +0.5 and 0: mean 0, and 4.303 * 0.5 / sqrt(3) either way
        "| one | 97.00 ± 0.87 | +0.00 (-1.24 to +1.24) | equivalent | 1.0 |",
        # differences of -10, -10.5 and -10
        "| all | 86.83 ± 1.04 | -10.17 (-10.88 to -9.45) | different | 1.0 |",
    ]


@pytest.mark.parametrize("number, epochs", [(0, 4), (1, 12), (2, 8)])
@pytest.mark.slow
def test_float16_matches_float32_except_in_the_last_row(number, epochs):
    study = ablation.STUDIES[number]._replace(epochs=epochs)
    float32, *good, failed = (ablation.train(study, r, seed=0)["errors"][-1] for r in study.rows)
    assert max(abs(error - float32) for error in good) < 6
    assert failed > max(float32, *good) + 3


def test_files_are_written(monkeypatch, tmp_path, capsys):
    def train(study, row, seed):
        return {"errors": [40.0, 20.0 + seed + row.broken], "skipped": 0}

    monkeypatch.setattr(ablation, "train", train)
    assert ablation.main(["--seeds", "2", "--margin", "3", "--output", str(tmp_path)]) == 0
    assert len(json.loads((tmp_path / "ablation.json").read_text())["studies"]) == 3
    page = (tmp_path / "ablation.md").read_text()
    assert "2 seeds of 2, 2, 2 epochs" in page and "within <!-- margin -->±3 points" in page
    assert "| float16, no masters | 78.50 ± 0.71 | -1.00 |" in page
    assert (tmp_path / "ablation.png").read_bytes().startswith(b"\x89PNG")
