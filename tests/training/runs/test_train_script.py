"""scripts/train_imagenet.py from the outside: what it prints, writes and refuses."""

import json
import subprocess
import sys

import numpy as np
import pytest

import gluon_amp  # noqa: F401
from gluon_amp.lowering.emulation import is_emulated
from tests import ROOT
from tests.images import write_folders, write_records
from tests.training.runs.scripts import environment, load

import mxnet as mx
from gluoncv.model_zoo import get_cifar_resnet

pytestmark = pytest.mark.usefixtures("no_imagenet")
SCRIPT = ROOT / "scripts" / "train_imagenet.py"
SHORT = ["--batch-size", "256", "--num-epochs", "1", "--max-batches", "2"]
OBSERVED = {
    "float32": {"conv_weight": "float32", "conv_compute": "float32"},
    "float16": {"conv_weight": "float16", "conv_compute": "float16"},
    "bfloat16": {"conv_weight": "float32", "conv_compute": "bfloat16"},
}


@pytest.fixture(scope="module")
def script():
    return load("train_imagenet")


def run(*arguments):
    """Run the script as a user does."""
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=250,
    )


# --------------------------------------------------------------------------- runs


@pytest.mark.slow
def test_a_format_for_study_is_called_so(tmp_path):
    path, dtype = tmp_path / "summary.json", "compute=float8_e4m3,gradients=float8_e5m2"
    given = f"params=float32,{dtype}"
    done = run("--dtype", given, *SHORT, "--summary-json", path)
    assert done.returncode == 0, done.stderr
    plan, report = (" ".join(part.split()) for part in done.stdout.split("\n\n")[1::2])
    assert f"requested {dtype}, emulated on this CPU for study" in plan
    assert "computed in float32+float8_e4m3" in plan and "loss scale none" in plan
    assert f"dtype {dtype}, emulated for study" in report
    summary = json.loads(path.read_text())
    assert (summary["dtype"], summary["emulated"], summary["loss_scale"]) == (dtype, True, None)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_short_run(dtype, tmp_path):
    path = tmp_path / "summary.json"
    done = run("--dtype", dtype, *SHORT, "--summary-json", path, "--save-dir", tmp_path / "saved")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no progress bar where there is no terminal, and no warnings

    lines = done.stdout.splitlines()
    assert lines[0].startswith("No ImageNet at ")
    assert lines[0].endswith("training on scikit-learn's handwritten digits.")
    plan = done.stdout.split("\n\n")[1]
    assert plan.startswith("batch      256 per device × 1 (cpu(0)) = 256\n")
    assert "cifar_resnet8_v1, 10 classes, --mode hybrid" in plan
    assert "1437 training and 360 validation images of 3×32×32" in plan
    assert ("emulated on this CPU" in plan) == is_emulated(dtype)
    assert f"conv weights {OBSERVED[dtype]['conv_weight']}" in plan
    assert "[Epoch 0] validated 360/360" in lines
    assert max(len(line) for line in plan.splitlines()) <= 80

    summary = json.loads(path.read_text())
    seen = {"batchnorm": "float32", "logits": "float32", "loss": "float32", **OBSERVED[dtype]}
    assert summary["observed_dtypes"] == seen
    assert (summary["dtype"], summary["emulated"]) == (dtype, is_emulated(dtype))
    assert (summary["validated"], summary["val_images"], summary["steps"]) == (360, 360, 2)
    assert (summary["model"], summary["seed"], summary["epochs"]) == ("cifar_resnet8_v1", 0, 1)
    assert (summary["loss_scale"] is not None) == (dtype == "float16")
    # a new dynamic scale is too high at first, and then found at once
    assert summary["skipped_steps"] == (1 if dtype == "float16" else 0)
    assert summary["images_per_second"] > 0 and summary["seconds"] > 0
    assert f"err-top1={1 - summary['top1'] / 100:.6f}" in done.stdout

    saved = tmp_path / "saved" / "digits-cifar_resnet8_v1-0.params"
    assert {array.dtype for array in mx.nd.load(str(saved)).values()} == {np.float32}
    get_cifar_resnet(1, 8, classes=10).load_parameters(str(saved))  # without a cast


@pytest.mark.slow
def test_make_train_reaches_97_percent(script, tmp_path, capsys):
    """The whole run of `make train`; `make accuracy` compares it with the other dtypes."""
    path = tmp_path / "summary.json"
    options = "--dtype float16 --batch-size 256".split()
    assert script.main([*options, "--summary-json", str(path)]) == 0
    summary = json.loads(path.read_text())
    assert summary["top1"] >= 97.0
    assert summary["observed_dtypes"]["conv_weight"] == "float16"
    assert (summary["validated"], summary["steps"]) == (360, 24 * 6)
    assert summary["skipped_steps"] < 20


@pytest.mark.slow
def test_the_same_seed_is_the_same_run(script, tmp_path, capsys):
    def trained(name, seed):
        options = ["--dtype", "float16", "--loss-scale", "128", "--seed", seed]
        assert script.main([*SHORT, *options, "--save-dir", str(tmp_path / name)]) == 0
        loaded = mx.nd.load(str(tmp_path / name / "digits-cifar_resnet8_v1-0.params"))
        return {key: array.asnumpy() for key, array in loaded.items()}

    first, again, other = trained("a", "3"), trained("b", "3"), trained("c", "4")
    assert all(np.array_equal(first[key], again[key]) for key in first)
    assert any(not np.array_equal(first[key], other[key]) for key in first)


@pytest.mark.slow
def test_folders_and_records_train_by_the_same_loop(script, tmp_path, capsys):
    for part in ("train", "val"):
        write_folders(tmp_path / "folders", part, ["cat", "dog"], images=3)
        write_records(tmp_path, part, [0, 1, 0, 1, 1])
    options = "--model mobilenet0.25 --batch-size 4 --epochs 1 --num-workers 0 --wd 0".split()
    packed = ["--rec-train", str(tmp_path / "train.rec"), "--rec-val", str(tmp_path / "val.rec")]
    for source, images in ((["--data-dir", str(tmp_path / "folders")], 6), (packed, 5)):
        assert script.main([*options, *source]) == 0
        printed = capsys.readouterr().out
        assert f"{images} training and {images} validation images of 3×224×224" in printed
        assert f"[Epoch 0] validated {images}/{images}" in printed
        assert (
            "lr         0.0015625 (0.1 × 4 / 256), ×0.1 at 30, 60, 80, epochs 1, warm-up\n"
            "           0.0556, in proportion to the shorter run\n"
        ) in printed


# --------------------------------------------------------------------------- refusals


def packed_without(name):
    def make(folder):
        for part in ("train", "val"):
            write_records(folder, part, [0, 1])
        (folder / name).unlink()
        return ["--rec-train", str(folder / "train.rec"), "--rec-val", str(folder / "val.rec")]

    return make


def folders_with(train, val):
    def make(folder):
        write_folders(folder, "train", train)
        write_folders(folder, "val", val)
        return ["--data-dir", str(folder)]

    return make


REFUSALS = {
    "unknown dtype": (["--dtype", "int8"], "mixed_bfloat16, got 'int8'"),
    "empty data folder": (lambda folder: ["--data-dir", str(folder)], "holds no classes"),
    "missing train index": (packed_without("train.idx"), "train.idx was not found"),
    "missing val index": (packed_without("val.idx"), "val.idx was not found"),
    "missing records": (packed_without("train.rec"), "train.rec was not found"),
    "no validation records": (["--rec-train", "train.rec"], "--rec-val is missing"),
    "batch size 0": (["--batch-size", "0"], "expected a whole number of at least 1, got '0'"),
    "unknown model": (["--model", "resnet50_v3"], "did you mean resnet50_v"),
    "a detector": (["--model", "yolo3_darknet53_voc"], "is not an image classifier"),
    "a model for larger images": (
        ["--model", "alexnet", "--input-size", "32"],
        "alexnet does not accept images of 3×32×32",
    ),
    "no folder for json": (["--summary-json", "/none/at/all.json"], "no directory /none/at"),
    "json is a folder": (lambda f: ["--summary-json", str(f)], "is a directory, expected a file"),
    "save into a file": (lambda f: ["--save-dir", __file__], "cannot be created"),
    "classes differ": (folders_with(["cat", "dog"], ["cat"]), "class dog is only in "),
    "unknown option": (["--turbo"], "unrecognized arguments: --turbo"),
    "no GPU": pytest.param(
        ["--gpus", "0"],
        "MXNet sees no GPU here",
        marks=pytest.mark.skipif(mx.context.num_gpus() > 0, reason="this machine has a GPU"),
    ),
}


def refused(script, arguments, capsys):
    """Return what the script says on standard error; it must be status 2 and one sentence."""
    try:
        status = script.main(arguments)
    except SystemExit as stop:
        status = stop.code
    captured = capsys.readouterr()
    assert status == 2
    assert captured.err.count("\n") == 1 and "Traceback" not in captured.err
    assert "Epoch" not in captured.out
    return captured.err


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        pytest.param(*case.values, marks=case.marks, id=name)
        if hasattr(case, "marks")
        else pytest.param(*case, id=name)
        for name, case in REFUSALS.items()
    ],
)
def test_bad_input_is_one_sentence(script, arguments, sentence, tmp_path, capsys):
    if callable(arguments):
        arguments = arguments(tmp_path)
    assert sentence in refused(script, arguments, capsys)


def test_bad_input_from_the_shell():
    done = run("--dtype", "int8")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and done.stdout == ""


def test_a_loss_that_is_no_number_ends_the_run_with_one_sentence(script, capsys):
    arguments = [*SHORT, "--lr", "1e20", "--warmup-epochs", "0", "--epochs", "3"]
    assert script.main(arguments) == 1
    error = capsys.readouterr().err
    assert "the loss became nan" in error and error.count("\n") == 1
