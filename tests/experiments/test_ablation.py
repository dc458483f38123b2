"""The ablation: its table, its files, and that a network fails in its last row."""

import json

import pytest

from experiments import ablation


@pytest.mark.parametrize("number, epochs", [(0, 4), (1, 12), (2, 8)])
@pytest.mark.slow
def test_float16_matches_float32_except_in_the_last_row(number, epochs):
    study = ablation.STUDIES[number]._replace(epochs=epochs)
    runs = [ablation.train(study, row, seed=0) for row in study.rows]
    float32, *good, failed = (run["errors"][-1] for run in runs)
    assert max(abs(error - float32) for error in good) < 6
    assert failed > max(float32, *good) + 3
    assert [run["skipped"] for run in runs[:-1]] == [0] * len(runs[:-1])  # no first step is lost


def test_files_are_written(monkeypatch, tmp_path, capsys):
    def train(study, row, seed):
        return {"errors": [40.0, 20.0 + seed + row.broken], "skipped": 0}

    monkeypatch.setattr(ablation, "train", train)
    assert ablation.main(["--seeds", "2", "--output", str(tmp_path)]) == 0
    assert len(json.loads((tmp_path / "ablation.json").read_text())["studies"]) == 3
    page = (tmp_path / "ablation.md").read_text()
    assert "2 seeds of 2, 2, 2 epochs" in page and "within <!-- margin -->±1 points" in page
    assert "| float16, no masters | 78.50 ± 0.71 | -1.00 |" in page
    assert (tmp_path / "ablation.png").read_bytes().startswith(b"\x89PNG")
