"""scripts/ablation.py: its rows, its table, and that float16 really fails without a scale."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

import gluon_amp  # noqa: F401

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("ablation", ROOT / "scripts" / "ablation.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def results_of(script, *errors_by_row):
    return {
        row.label: [{"errors": [50.0, error], "skipped": 1} for error in errors]
        for row, errors in zip(script.ROWS, errors_by_row)
    }


def test_rows_differ_in_one_thing_each(script):
    assert [(row.policy, row.masters) for row in script.ROWS] == [
        ("float32", True), ("float16", True), ("float16", True), ("float16", True),
        ("float16", False),
    ]  # fmt: skip
    assert [row.weight for row in script.ROWS] == [2.0**-22] * 4 + [1.0]
    assert [row.loss_scale for row in script.ROWS] == [None, "dynamic", 2.0**15, None, None]


def test_the_table_of_literal_errors(script):
    results = results_of(script, (2.0, 3.0, 4.0), (2.5, 3.0, 3.5), (12.0, 13.0, 14.0))
    lines = script.table(results, margin=5.0).splitlines()
    assert lines[2] == "| float32 | 97.00 ± 1.00 |  |  | 1.0 |"
    assert lines[3].startswith("| float16, masters, dynamic scale | 97.00 ± 0.50 | +0.00 (")
    assert lines[3].endswith("| equivalent | 1.0 |")
    assert "| 87.00 ± 1.00 | -10.00 (-12.27 to -7.73) | different | 1.0 |" in lines[4]


def test_pixels_are_those_of_the_digits(script):
    (images, labels), (val_images, val_labels) = script.data()
    assert images.shape == (1437, 256)
    assert (len(labels), len(val_images), len(val_labels)) == (1437, 360, 360)
    assert images.min() == -1
    assert images.max() == pytest.approx(1, abs=0.01)


@pytest.mark.slow
def test_float16_fails_without_a_scale_and_learns_with_one(script, monkeypatch):
    monkeypatch.setattr(script, "EPOCHS", 4)
    last = {row.label: script.train(row, seed=0)["errors"][-1] for row in script.ROWS}
    scaled = [last["float16, masters, dynamic scale"], last["float16, masters, static scale 2^15"]]
    assert max(scaled) < last["float16, masters, no scale"]
    assert max(np.abs(np.array(scaled) - last["float32"])) < 5


@pytest.mark.slow
def test_files_are_written(script, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(script, "EPOCHS", 1)
    assert script.main(["--seeds", "2", "--output", str(tmp_path)]) == 0
    written = json.loads((tmp_path / "ablation.json").read_text())
    assert list(written) == [row.label for row in script.ROWS]
    assert (tmp_path / "ablation.png").read_bytes().startswith(b"\x89PNG")
    assert "| float16, masters, no scale |" in (tmp_path / "ablation.md").read_text()


def test_a_margin_below_nothing_is_refused(script, capsys):
    with pytest.raises(SystemExit) as stop:
        script.main(["--margin", "-1"])
    assert stop.value.code == 2
    assert "expected a number above 0" in capsys.readouterr().err
