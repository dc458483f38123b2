"""Repeated cross-validation: the selection, the folds, and the tables."""

import csv
import dataclasses

import numpy as np
import pytest

from experiments.photographs import __main__ as command
from experiments.photographs import fits
from experiments.photographs.page import MARGINS, METRICS
from experiments.photographs.stamps import CATEGORIES, FOLDS, folds, open_stamps
from gluon_amp.training.tables.statistics import CROSS_ENTROPY_MARGIN, POWER, power, spread
from tests import ROOT
from tests.images import picture, png


@pytest.fixture
def stamps(tmp_path):
    for number, category in enumerate(CATEGORIES):
        folder = tmp_path / "stamps" / category / "inner"
        folder.mkdir(parents=True)
        for name in (*"abcde", "a_mirror", "cartoon_bear", "b_flip"):
            (folder / f"{name}.png").write_bytes(png(picture(number)))
    return tmp_path / "stamps"


FOLD = {"cross_entropy": 0.5, "seconds": 2.0, "skipped_steps": 1, "steps": 7}


def test_every_fold_of_every_row_is_on_the_page(stamps, tmp_path, monkeypatch, capsys):
    calls = []

    def fit(row, photographs, fold):
        calls.append((row.name, fold.seed))
        return {**FOLD, "accuracy": 80 + np.random.RandomState(fold.seed).uniform()}

    monkeypatch.setattr(command, "fit", fit)
    arguments = ["--stamps", str(stamps), "--output", str(tmp_path / "out")]
    assert command.main([*arguments, "--repeats", "1"]) == 0
    assert len(calls) == len(set(calls)) == len(fits.ROWS) * FOLDS
    calls.clear()
    assert command.main(arguments) == 0
    assert len(calls) == len(set(calls)) == FOLDS * sum(fits.REPEATS[r.training] for r in fits.ROWS)
    page = (tmp_path / "out" / "photographs.md").read_text()
    assert "on <!-- images -->45 photographs of 9 categories" in page
    assert (tmp_path / "out" / "photographs.png").read_bytes().startswith(b"\x89PNG")
    (stamps / "animals" / "inner" / "a.png").unlink()
    assert command.main(arguments) == 2
    assert "holds 4 photographs of animals" in capsys.readouterr().err


@pytest.mark.parametrize("training", [fits.HEAD, fits.ALL], ids=lambda training: training.label)
@pytest.mark.parametrize("metric", METRICS)
def test_the_margins_are_those_of_the_committed_pilot(training, metric):
    values = {"float32": {}, "float16": {}}
    text = (ROOT / "docs" / "results" / "photographs" / "pilot.csv").read_text()
    for line in csv.DictReader(text.splitlines()):
        if line["trained"] == training.label:
            values[line["dtype"]][line["seed"]] = float(line[metric])
    single, half = values.values()
    sd = spread([half[seed] - single[seed] for seed in single]).sd
    smallest = {"accuracy": 0.5, "cross_entropy": CROSS_ENTROPY_MARGIN}
    margin, step = MARGINS[training.label][metric], smallest[metric]
    folds = fits.REPEATS[training] * FOLDS
    assert power(sd, margin, folds, paired=True) >= POWER
    assert margin == step or power(sd, margin - step, folds, paired=True) < POWER


def test_all_layers_begin_with_the_trained_head(stamps, monkeypatch):
    features = np.random.RandomState(0).uniform(size=(45, 1280)).astype("f4")
    monkeypatch.setattr(fits, "all_features", lambda dtype, photographs: features)
    monkeypatch.setattr(fits, "PREPROCESSING", dataclasses.replace(fits.PREPROCESSING, size=32))
    photographs, heads, fit = open_stamps(stamps), [], fits._fit
    fold = next(folds(photographs, [0]))
    short = dataclasses.replace(fits.HEAD, num_epochs=1)
    result = fits.fit(fits.Row(short, "float16"), photographs, fold)
    assert result["steps"] == 2 and result["accuracy"] in [100 * k / 9 for k in range(10)]

    def head_alone(net, row, *rest):
        heads.append(net)
        return fit(net, row, *rest) if row.training is short else {}

    monkeypatch.setattr(fits, "_fit", head_alone)
    layers = dataclasses.replace(fits.ALL, from_scratch=True, head=short)
    fits.fit(fits.Row(layers, "float16"), photographs, fold)
    head, net = heads
    assert (net.output.weight.data() == head.weight.data()).asnumpy().all()
    assert net.output.weight.data().asnumpy().std() > 0
