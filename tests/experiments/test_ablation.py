"""experiments/ablation.py: rows, tables, and that each network fails in its last row."""

import json

import numpy as np
import pytest

import gluon_amp as amp
from experiments import ablation

from mxnet import nd


@pytest.fixture
def studies():
    return {study.title: study for study in ablation.STUDIES}


def runs(*errors):
    return [{"errors": [50.0, error], "skipped": 1} for error in errors]


def test_rows_differ_in_one_thing_each(studies):
    reference, default = ("float32", None, True), ("float16", "dynamic", True)
    assert {
        title: [(row.policy, row.loss_scale, row.masters) for row in study.rows]
        for title, study in studies.items()
    } == {
        "Loss scaling": [
            reference,
            default,
            ("float16", 2.0**15, True),
            ("float16", None, True),
        ],
        "Master weights": [reference, default, ("float16", None, False)],
        "Pins": [reference, default, (ablation.SUMS_IN_FLOAT16, "dynamic", True)],
    }


def test_the_rate_compensates_the_loss_weight(studies):
    scaling = studies["Loss scaling"]
    assert scaling.loss_weight == 2.0**-22
    assert scaling.loss_weight * scaling.rate == 0.02


def test_the_table_of_literal_errors():
    errors = {
        "float32": runs(2.0, 3.0, 4.0),
        "one": runs(2.5, 2.5, 4.0),
        "other": runs(12.0, 13.5, 14.0),
    }
    lines = ablation.table(errors, margin=5.0).splitlines()
    assert lines[2] == "| float32 | 97.00 ± 1.00 |  |  | 1.0 |"
    # differences of -0.5, +0.5 and 0: mean 0, and 4.303 * 0.5 / sqrt(3) either way
    assert lines[3] == "| one | 97.00 ± 0.87 | +0.00 (-1.24 to +1.24) | equivalent | 1.0 |"
    # differences of -10, -10.5 and -10
    assert lines[4] == "| other | 86.83 ± 1.04 | -10.17 (-10.88 to -9.45) | different | 1.0 |"


def test_a_difference_that_rounds_to_zero_has_no_minus():
    lines = ablation.table({"float32": runs(2.0, 3.0), "one": runs(2.001, 3.002)}, margin=1.0)
    assert "| +0.00 (" in lines.splitlines()[3]


def test_pixels_are_those_of_the_digits(studies):
    (images, labels), (val_images, val_labels) = ablation.data(studies["Loss scaling"])
    assert images.shape == (1437, 256)
    assert (len(labels), len(val_images), len(val_labels)) == (1437, 360, 360)
    assert images.min() == -1
    assert images.max() == pytest.approx(1, abs=0.01)
    (raw, _), _ = ablation.data(studies["Pins"])
    np.testing.assert_allclose(raw / 127.5 - 1, images, atol=1e-6)


def test_a_sum_of_squares_of_pixels_does_not_fit_float16(studies):
    (images, _), _ = ablation.data(studies["Pins"])
    assert (images**2).sum(axis=1).min() > np.finfo(np.float16).max
    for policy, norm in (("float16", 1.0), (ablation.SUMS_IN_FLOAT16, 0.0)):
        net = ablation.UnitLength()
        amp.cast(net, policy)
        net.hybridize()
        length = np.linalg.norm(net(nd.array(images[:8])).asnumpy().astype("float64"), axis=1)
        np.testing.assert_allclose(length, norm, atol=1e-3)


def last_errors(study, epochs):
    return [
        ablation.train(study._replace(epochs=epochs), row, seed=0)["errors"][-1]
        for row in study.rows
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "title, epochs", [("Loss scaling", 4), ("Master weights", 12), ("Pins", 8)]
)
def test_float16_matches_float32_except_in_the_last_row(studies, title, epochs):
    float32, *good, failed = last_errors(studies[title], epochs)
    assert max(abs(error - float32) for error in good) < 6
    assert failed > max(float32, *good) + 3


@pytest.mark.slow
def test_files_are_written(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(
        ablation, "STUDIES", [study._replace(epochs=1) for study in ablation.STUDIES]
    )
    assert ablation.main(["--seeds", "2", "--output", str(tmp_path)]) == 0
    written = json.loads((tmp_path / "ablation.json").read_text())
    assert {title: list(rows) for title, rows in written["studies"].items()} == {
        study.title: [row.label for row in study.rows] for study in ablation.STUDIES
    }
    assert (tmp_path / "ablation.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "ablation.md").read_text()
    assert page == capsys.readouterr().out[:-1]
    assert "| float16, no masters |" in page
    assert "2 seeds of 1, 1, 1 epochs" in page
    assert f"on {written['machine']} on {written['date']}, with {written['versions']}." in page


def test_a_negative_margin_is_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        ablation.main(["--margin", "-1"])
    assert stop.value.code == 2
    assert "expected a number above 0" in capsys.readouterr().err


def test_a_folder_that_is_a_file_is_one_sentence(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(ablation, "train", lambda *_: {"errors": [50.0], "skipped": 0})
    (tmp_path / "file").touch()
    assert ablation.main(["--seeds", "1", "--output", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err == f"ablation.py: {tmp_path / 'file'}: File exists.\n"
