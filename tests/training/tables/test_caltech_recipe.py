"""results_table.py --recipe caltech101: rows, learning rates, and errors without data."""

import json
from pathlib import Path

import pytest

import gluon_amp  # noqa: F401
from gluon_amp.training.console import results as command
from gluon_amp.training.data import write_classes
from gluon_amp.training.networks.models import build
from gluon_amp.training.runs.recipe import learning_rate, read_fine_tuning
from gluon_amp.training.tables.recipes import EXPERIMENTS
from gluon_amp.training.tables.record import RUN, SUMMARY, read
from gluon_amp.training.tables.runs import jobs
from tests.images import write_records

from mxnet import nd

CALTECH = EXPERIMENTS["caltech101"]
RATES = {
    "float32-32": 0.01,
    "float16-32": 0.01,
    "bfloat16-32": 0.01,
    "float32-64": 0.02,
    "float16-64": 0.02,
}
ROWS = list(RATES)
TINY = [
    *"--model cifar_resnet8_v1 --input-size 32 --num-epochs 1".split(),
    *"--warmup-epochs 0 --num-workers 0 --log-interval 1".split(),
]


@pytest.fixture(autouse=True)
def no_data(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MXNET_GLUON_REPO", "http://127.0.0.1:9/")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # waiting threads would spin


def write_caltech(root, train=64, val=10):
    """Write a packed Caltech-101 of two classes, as prepare_caltech.py does."""
    folder = root / "rec"
    folder.mkdir(parents=True)
    for part, images in (("train", train), ("val", val)):
        write_records(folder, part, [number % 2 for number in range(images)])
    write_classes(folder, ["ant", "bee"])
    return root


def write_pretrained(path):
    """Write pretrained parameters: of the same network with more classes."""
    net = build("cifar_resnet8_v1", 5)
    net.initialize()
    net(nd.zeros((1, 3, 32, 32)))
    net.save_parameters(str(path))
    return path


# ------------------------------------------------------------------------------------- the recipe


def test_the_rows_and_their_rates():
    assert [configuration.name for configuration, _ in CALTECH.rows] == ROWS
    for job in jobs(CALTECH, Path("out"), [0], devices=2):
        recipe, _ = read_fine_tuning(list(job.arguments))
        assert recipe.dataset == "caltech101"
        assert recipe.batch_size * 2 == job.configuration.batch
        # an explicit rate does not depend on how many devices share the batch
        assert learning_rate(recipe, job.configuration.batch) == RATES[job.configuration.name]


def test_options_after_the_recipes_win():
    for job in jobs(
        CALTECH, Path("out"), [0], 1, ("--model", "resnet50_v1", "--input-size", "224")
    ):
        recipe, _ = read_fine_tuning(list(job.arguments))
        assert (recipe.model, recipe.input_size) == ("resnet50_v1", 224)


def test_the_assumed_sd_is_the_binomial_one():
    assert pytest.approx(CALTECH.sd, abs=0.01) == 100 * (0.9 * 0.1 / 5647) ** 0.5


def test_the_help_has_every_recipes_margin(capsys):
    with pytest.raises(SystemExit):
        command.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    for name, experiment in EXPERIMENTS.items():
        assert f"{experiment.margin:g} {name}" in text


# ----------------------------------------------------------------------------- what is missing


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--recipe caltech101", "run `gluon-amp prepare-caltech --dataset caltech101`"),
        ("--recipe imagenet", "holds no classes to train on"),
    ],
)
def test_no_data_is_one_sentence(tmp_path, capsys, line, sentence):
    arguments = [*line.split(), "--seeds", "1", "--output", str(tmp_path / "table")]
    assert command.main(arguments) == 2
    printed = capsys.readouterr().err
    assert sentence in printed
    assert printed.count("\n") == 1
    assert printed.endswith("; options for the runs go after --.\n")
    assert not list(tmp_path.rglob(RUN))


def test_no_pretrained_weights_is_one_sentence(tmp_path, capsys):
    data = write_caltech(tmp_path / "data", train=4, val=2)
    arguments = ["--recipe", "caltech101", "--seeds", "1", "--output", str(tmp_path / "table")]
    assert command.main([*arguments, "--", "--data-dir", str(data)]) == 2
    printed = capsys.readouterr().err
    assert "the weights of mobilenet0.5 cannot be downloaded" in printed
    assert printed.count("\n") == 1


# ----------------------------------------------------------------------------- from end to end


@pytest.mark.slow
def test_a_table_of_fine_tuning(tmp_path, capsys):
    data = write_caltech(tmp_path / "data")
    pretrained = write_pretrained(tmp_path / "zoo")
    files = ["--data-dir", str(data), "--pretrained-file", str(pretrained)]
    output = tmp_path / "table"
    arguments = ["--recipe", "caltech101", "--seeds", "2", "--parallel", "2", "--margin", "60"]
    assert command.main([*arguments, "--output", str(output), "--", *files, *TINY]) == 0
    assert "[10/10] float16, batch 64, seed 1" in capsys.readouterr().out

    table = json.loads((output / "results.json").read_text())
    assert (table["model"], table["data"]) == ("cifar_resnet8_v1", "caltech101 (64 + 10 samples)")
    assert [row["configuration"]["name"] for row in table["rows"]] == ROWS
    assert [row["configuration"]["batch"] for row in table["rows"]] == [32, 32, 32, 64, 64]
    assert [row["seeds"] for row in table["rows"]] == [[0, 1]] * 5
    assert [row["steps"] for row in table["rows"]] == [2, 2, 2, 1, 1]
    for name in ROWS:
        for seed in (0, 1):
            folder = output / name / f"seed-{seed}"
            summary = json.loads((folder / SUMMARY).read_text())
            assert (summary["lr"], summary["seed"]) == (RATES[name], seed)
            assert summary["confusions"] == []
            assert read(folder).data == table["data"]

    # other images under the same name do not get into the same table
    other = json.loads((output / "float16-64" / "seed-1" / SUMMARY).read_text())
    other["train_images"] = 63
    (output / "float16-64" / "seed-1" / SUMMARY).write_text(json.dumps(other))
    assert command.main(["--recipe", "caltech101", "--from-logs", str(output)]) == 2
    assert "caltech101 (63 + 10 samples) and of caltech101 (64 +" in capsys.readouterr().err
