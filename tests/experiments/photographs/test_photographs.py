"""Repeated cross-validation: the selection, the folds, the tables, and resuming after a kill."""

import csv
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from experiments.photographs.comparisons import MARGINS, METRICS, SMALLEST, comparison, verdict

from experiments.photographs import __main__ as command
from experiments.photographs import fits, report, run
from experiments.photographs.stamps import CATEGORIES, FOLDS, folds, open_stamps
from gluon_amp.base.messages import UsageError
from gluon_amp.training.tables.statistics import POWER, power, spread
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


def test_only_photographs_are_selected(stamps):
    photographs = open_stamps(stamps)
    assert [Path(path).name for path, _ in photographs.items[:5]] == [f"{n}.png" for n in "abcde"]
    assert photographs.labels == [label for label in range(9) for _ in range(5)]
    assert open_stamps(stamps) == photographs
    (stamps / "animals" / "inner" / "a.png").write_bytes(png(picture(99)))
    assert open_stamps(stamps).digest != photographs.digest


def test_a_missing_package_is_one_sentence(tmp_path):
    with pytest.raises(UsageError, match="0 photographs of animals: run `apt-get install tuxpaint"):
        open_stamps(tmp_path)


def test_each_image_is_validated_once_in_each_repeat(stamps):
    photographs = open_stamps(stamps)
    divisions = list(folds(photographs, [0, 1]))
    assert [fold.seed for fold in divisions] == list(range(2 * FOLDS))
    for repeat in (divisions[:FOLDS], divisions[FOLDS:]):
        assert sorted(n for fold in repeat for n in fold.val) == list(range(45))
        for fold in repeat:
            assert not set(fold.train) & set(fold.val)
            assert sorted(photographs.labels[n] for n in fold.val) == list(range(9))
    assert divisions[0].val != divisions[FOLDS].val


FOLD = {
    "cross_entropy": 0.5,
    "seconds": 2.0,
    "skipped_steps": 1,
    "steps": 7,
    "hardware": "a CPU",
    "versions": "MXNet 1.9.1",
    "date": "2026-11-22",
}


def results(rows, accuracy):
    return {
        row: {seed: {**FOLD, "accuracy": accuracy(row, seed)} for seed in range(6)} for row in rows
    }


def test_pairs_are_compared_fold_by_fold():
    noise = [0.3, -0.2, 0.1, -0.1, 0.2, -0.3]
    drop = {"float32": 0.0, "float16": 0.0, "bfloat16": -3.0}

    def accuracy(row, seed):
        scratch = 40 if row.training is fits.SCRATCH else 0
        return 80 + 5 * seed - scratch + drop[row.dtype] + noise[seed] * (row.dtype != "float32")

    values = results(fits.ROWS, accuracy)
    half, other = (
        comparison(values, fits.Row(fits.HEAD, dtype), "accuracy")
        for dtype in ("float16", "bfloat16")
    )
    assert abs(half.difference) < 1e-9 and half.equivalent
    assert abs(other.difference + 3) < 1e-9 and str(other) == "different"
    same = comparison(values, fits.Row(fits.HEAD, "float16"), "cross_entropy")
    assert verdict(same) == "equal in every fold"
    text = report.table(values, "accuracy")
    assert text.count("\n") == 1 + len(fits.ROWS)
    assert "| from scratch | float32 | 6 | 52.50 ± 9.35 | -40.00 |" in text
    page = report.page(values, {"images": 388, "digest": "0" * 64, "command": "it"})
    assert "388 photographs" in page and "on a CPU, on 2026-11-22, with MXNet 1.9.1" in page
    assert "1 CPU minutes" in page  # 7 rows of 6 folds of 2 seconds


def test_a_killed_run_resumes(stamps, tmp_path, monkeypatch, capsys):
    calls = []

    def fit(row, photographs, fold):
        calls.append((row.name, fold.seed))
        if len(calls) == 8:
            raise RuntimeError("killed")
        return {**FOLD, "accuracy": 80 + np.random.RandomState(fold.seed).uniform()}

    monkeypatch.setattr(run, "fit", fit)
    arguments = ["--stamps", str(stamps), "--output", str(tmp_path / "out"), "--repeats", "1"]
    with pytest.raises(RuntimeError, match="killed"):
        command.main(arguments)
    assert command.main(arguments) == 0
    tasks = len(fits.ROWS) * FOLDS
    assert len(calls) == tasks + 1 and len(set(calls)) == tasks
    saved = json.loads((tmp_path / "out" / "photographs.json").read_text())
    assert [len(row["folds"]) for row in saved["rows"]] == [FOLDS] * len(fits.ROWS)
    page = (tmp_path / "out" / "photographs.md").read_text()
    assert report.page(report.restored(saved), saved["about"]) == page
    assert (tmp_path / "out" / "photographs.png").read_bytes().startswith(b"\x89PNG")
    assert page in capsys.readouterr().out
    (stamps / "animals" / "inner" / "a.png").write_bytes(png(picture(99)))
    assert command.main(arguments) == 2
    assert "has a result of other settings or photographs" in capsys.readouterr().err


def test_the_pilot_has_folds_of_its_own(stamps, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "fit", lambda row, photographs, fold: {**FOLD, "accuracy": 80.0})
    arguments = ["--stamps", str(stamps), "--output", str(tmp_path / "out"), "--pilot"]
    assert command.main(arguments) == 0
    with open(tmp_path / "out" / "pilot.csv") as file:
        lines = list(csv.DictReader(file))
    tables = {fold.seed for fold in folds(open_stamps(stamps), set().union(*fits.TABLE.values()))}
    assert lines and not {int(line["seed"]) for line in lines} & tables
    assert {line["dtype"] for line in lines} == {"float32", "float16"}


@pytest.mark.parametrize("training", [fits.HEAD, fits.ALL], ids=lambda training: training.label)
@pytest.mark.parametrize("metric", METRICS)
def test_the_margins_are_those_of_the_committed_pilot(training, metric):
    values = {"float32": {}, "float16": {}}
    with open(ROOT / "docs" / "results" / "photographs" / "pilot.csv") as file:
        for line in csv.DictReader(file):
            if line["trained"] == training.label:
                values[line["dtype"]][line["seed"]] = float(line[metric])
    single, half = values["float32"], values["float16"]
    sd = spread([half[seed] - single[seed] for seed in single]).sd
    margin, folds = MARGINS[training.label][metric], fits.REPEATS[training] * FOLDS
    assert power(sd, margin, folds, paired=True) >= POWER
    step = SMALLEST[metric]
    assert margin == step or power(sd, margin - step, folds, paired=True) < POWER


@pytest.fixture
def small(stamps, monkeypatch):
    """The photographs and one fold of them, with images of 32 pixels and features of no network."""
    features = np.random.RandomState(0).uniform(size=(45, 1280)).astype("f4")
    monkeypatch.setattr(fits, "all_features", lambda dtype, photographs: features)
    monkeypatch.setattr(fits, "PREPROCESSING", dataclasses.replace(fits.PREPROCESSING, size=32))
    photographs = open_stamps(stamps)
    return photographs, next(folds(photographs, [0]))


WITHOUT_WEIGHTS = dataclasses.replace(fits.ALL, from_scratch=True)


@pytest.mark.parametrize(
    "training", [fits.HEAD, WITHOUT_WEIGHTS, fits.SCRATCH], ids=["head", "all", "scratch"]
)
def test_a_fold_is_trained_and_repeats_bit_for_bit(small, training):
    row = fits.Row(dataclasses.replace(training, num_epochs=1), "float16")
    first, second = (fits.fit(row, *small) for _ in range(2))
    assert first["steps"] == -(-36 // training.batch_size)
    assert first["accuracy"] in [100 * k / 9 for k in range(10)]
    assert first["cross_entropy"] == second["cross_entropy"] > 0


def test_all_layers_begin_with_the_trained_head(small, monkeypatch):
    heads = []
    monkeypatch.setattr(
        fits, "_fit", lambda net, row, train, val, fold: heads.append((net, row)) or {}
    )
    fits.fit(fits.Row(WITHOUT_WEIGHTS, "float16"), *small)
    (head, first), (net, row) = heads
    assert first.training == fits.HEAD and row.training == WITHOUT_WEIGHTS
    assert (net.output.weight.data() == head.weight.data()).asnumpy().all()
    assert net.output.weight.data().asnumpy().std() > 0
