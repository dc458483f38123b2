"""train_imagenet.py on Fashion-MNIST: small files always, the real ones where they are."""

import json

import pytest

from gluon_amp.training.data.fashion_mnist import FOLDER, PACKAGE
from tests.idx_files import write_fashion
from tests.training.runs import scripts


@pytest.fixture
def script(no_imagenet):
    return scripts.load("train_imagenet")


@pytest.mark.parametrize("precision", [("--dtype", "float32"), ("--dtype", "float16"), ("--amp",)])
def test_a_short_run(script, precision, tmp_path, capsys):
    folder, path = write_fashion(tmp_path / "data", train=40, val=23), tmp_path / "summary.json"
    line = "--dataset fashion-mnist --batch-size 16 --num-epochs 1 --warmup-epochs 0".split()
    line += ["--data-dir", str(folder), "--summary-json", str(path), *precision]
    assert script.main(line) == 0
    assert "convnet, 10 classes" in capsys.readouterr().out
    summary = json.loads(path.read_text())
    assert (summary["data"], summary["validated"], summary["val_images"]) == (
        "fashion-mnist",
        23,
        23,
    )
    assert summary["steps"] == 3


def test_missing_data_is_one_sentence(script, tmp_path, capsys):
    line = ["--dataset", "fashion-mnist", "--data-dir", str(tmp_path)]
    assert script.main(line) == 2
    error = capsys.readouterr().err
    assert f"install the Debian package {PACKAGE}" in error and error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER.exists(), reason=f"Debian's {PACKAGE} is not installed")
@pytest.mark.parametrize("precision", [("--dtype", "float16"), ("--amp",)])
def test_a_part_of_an_epoch_learns_the_real_data(script, precision, tmp_path, capsys):
    path = tmp_path / "summary.json"
    line = "--dataset fashion-mnist --batch-size 64 --num-epochs 1 --max-batches 200".split()
    assert script.main([*line, *precision, "--summary-json", str(path)]) == 0
    summary = json.loads(path.read_text())
    assert summary["validated"] == 10_000 and summary["top1"] > 70
