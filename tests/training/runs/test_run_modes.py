"""train_imagenet.py's modes, devices, workers, outputs and bad ends, with the real script."""

import json
import re
import resource
import subprocess
import sys

import numpy as np
import pytest

import gluon_amp  # noqa: F401
from gluon_amp.lowering.emulation import is_emulated
from tests import ROOT
from tests.images import write_folders, write_records
from tests.training.runs.scripts import environment, load

pytestmark = pytest.mark.usefixtures("no_imagenet")
SCRIPT = ROOT / "scripts" / "train_imagenet.py"
LAUNCH = [sys.executable, str(ROOT / "scripts" / "launch.py")]
TINY = "--batch-size 64 --epochs 2 --warmup-epochs 0 --max-batches 3 --log-interval 1".split()


@pytest.fixture(scope="module")
def script():
    return load("train_imagenet")


def train(script, tmp_path, *arguments):
    """Run the script in this process; return its summary."""
    path = tmp_path / "summary.json"
    assert script.main([*TINY, "--summary-json", str(path), *map(str, arguments)]) == 0
    return json.loads(path.read_text())


# ------------------------------------------------------------------------------ modes and recipes


@pytest.mark.parametrize("mode", ["hybrid", "imperative", "module"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_modes(script, tmp_path, capsys, mode, dtype):
    summary = train(script, tmp_path, "--mode", mode, "--dtype", dtype)
    assert (summary["mode"], summary["dtype"]) == (mode, dtype)
    assert summary["observed_dtypes"]["conv_weight"] == dtype
    assert summary["observed_dtypes"]["conv_compute"] == dtype
    assert (summary["validated"], summary["steps"]) == (360, 6)
    assert f"--mode {mode}" in capsys.readouterr().out


def test_amp_keeps_parameters_in_float32(script, tmp_path, capsys):
    summary = train(script, tmp_path, "--amp")
    assert summary["dtype"] == "mixed_float16"
    assert summary["observed_dtypes"]["conv_weight"] == "float32"
    assert summary["observed_dtypes"]["conv_compute"] == "float16"
    assert summary["loss_scale"] is not None


@pytest.mark.parametrize("optimizer", ["nag", "adam", "adamw", "lars", "lamb"])
def test_optimizers(script, tmp_path, capsys, optimizer):
    arguments = ["--optimizer", optimizer, "--lr", "0.001", "--dtype", "float16"]
    summary = train(script, tmp_path, *arguments, "--loss-scale", "128")
    assert summary["steps"] == 6
    assert np.isfinite(summary["train_loss"])
    assert f"optimizer  {optimizer}, " in capsys.readouterr().out


def test_all_of_a_recipe_together(script, tmp_path, capsys):
    summary = train(
        script,
        tmp_path,
        *(
            "--label-smoothing --mixup --mixup-off-epoch 1 --no-wd --last-gamma "
            "--clip-grad 1 --accumulate 2 --lr-mode poly --dtype float16 --seed 3"
        ).split(),
    )
    plan = capsys.readouterr().out
    assert "64 per device × 1 (cpu(0)) × 2 accumulated = 128" in plan
    for words in ("label smoothing 0.1", "mixup 0.2", "clipped to 1", "no decay of biases"):
        assert words in " ".join(plan.split())
    assert (summary["total_batch"], summary["steps"]) == (128, 4)  # 3 batches: 2 and 1


def test_two_devices(script, tmp_path, capsys):
    summary = train(script, tmp_path, "--cpus", "2", "--dtype", "float16")
    assert summary["devices"] == "cpu(0), cpu(1)"
    assert summary["total_batch"] == 128
    assert "64 per device × 2 (cpu(0), cpu(1)) = 128" in capsys.readouterr().out


def test_a_module_goes_on_from_its_own_files(script, tmp_path, capsys):
    run = ["--mode", "module", "--dtype", "float16", "--loss-scale", "128"]
    run += ["--lr-mode", "constant"]
    train(script, tmp_path, *run, "--save-dir", tmp_path / "whole")
    first = ["--save-dir", tmp_path / "parts"]
    train(script, tmp_path, *run, *first, "--epochs", "1")
    for name in ("symbol.json", "0001.params", "0001.states"):
        assert (tmp_path / "parts" / f"cifar_resnet8_v1-{name}").exists()
    again = train(script, tmp_path, *run, *first, "--load-epoch", "1")
    assert (again["epochs"], again["steps"]) == (2, 3)
    assert again["top1_by_epoch"][0] is None
    names = [f"cifar_resnet8_v1-0002.{kind}" for kind in ("params", "states")]
    whole, parts = ([(tmp_path / f / n).read_bytes() for n in names] for f in ("whole", "parts"))
    assert parts == whole


def test_gluoncvs_legacy_flags(script, tmp_path, capsys):
    train(script, tmp_path, "--save-dir", tmp_path / "saved", "--epochs", "1")
    params = tmp_path / "saved" / "digits-cifar_resnet8_v1-0.params"
    summary = train(script, tmp_path, "--resume-epoch", "1", "--resume-params", params)
    assert summary["steps"] == 3
    other = ["--model", "cifar_resnet20_v1", "--resume-epoch", "1", "--resume-params", str(params)]
    assert script.main([*TINY, *other]) == 2
    assert "is of another network" in capsys.readouterr().err


def test_evaluation_alone(script, tmp_path, capsys):
    summary = train(script, tmp_path, "--eval-only")
    assert (summary["steps"], summary["validated"]) == (0, 360)
    assert summary["images_per_second"] is None
    assert "nothing was trained" in capsys.readouterr().out


# ----------------------------------------------------------------------------------- measuring


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_benchmark_of_resnet50_prints_json(script, capsys, dtype):
    arguments = f"--benchmark --dtype {dtype} --batch-size 1 --max-batches 1".split()
    assert script.main(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["model"], result["image_shape"]) == ("resnet50_v1", [3, 224, 224])
    assert result["observed_dtypes"]["conv_compute"] == dtype == result["dtype"]
    assert result["emulated"] == is_emulated(dtype)
    assert result["images_per_second"] == pytest.approx(1e3 / result["median_ms"])
    assert result["fastest_ms"] <= result["median_ms"] <= result["slowest_ms"]


def test_input_alone(script, tmp_path, capsys):
    for part in ("train", "val"):
        write_folders(tmp_path, part, ["cat", "dog"], images=4)
    arguments = [
        "--test-io",
        "--data-dir",
        str(tmp_path),
        *"--batch-size 4 --input-size 32".split(),
    ]
    assert script.main(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["image_shape"] == [3, 32, 32]
    assert result["images_per_second"] > 0


def test_a_corrupt_image_is_named_and_left_out(script, tmp_path, capsys):
    for part in ("train", "val"):
        write_folders(tmp_path, part, ["cat", "dog"], images=4)
    bad = sorted((tmp_path / "train" / "cat").iterdir())[1]
    bad.write_bytes(b"no image")
    arguments = (
        "--model mobilenet0.25 --input-size 32 --batch-size 4 --epochs 1 --warmup-epochs 0 --lr 0"
    ).split()
    assert script.main([*arguments, "--data-dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert f"[Epoch 0] 1 unreadable image: {bad}" in out
    assert "[Epoch 0] validated 8/8" in out


def test_unreadable_validation_images_are_left_out_and_counted(script, tmp_path, capsys):
    for part in ("train", "val"):
        write_folders(tmp_path, part, ["ant", "bee", "cat"], images=4)
    bad = sorted((tmp_path / "val" / "ant").iterdir())[:3]
    for path in bad:
        path.write_bytes(b"no image")
    arguments = [
        *(
            "--model mobilenet0.25 --input-size 32 --batch-size 4 --epochs 1 "
            "--warmup-epochs 0 --lr 0 --confusions 9"
        ).split(),
        *("--data-dir", str(tmp_path), "--summary-json", str(tmp_path / "s.json")),
    ]
    assert script.main(arguments) == 0
    out = capsys.readouterr().out
    assert f"[Epoch 0] not validated: 3 unreadable images: {', '.join(map(str, bad))}" in out
    assert "9/12 images, 3 unreadable" in out
    summary = json.loads((tmp_path / "s.json").read_text())
    counts = summary["validated"], summary["unreadable"], summary["val_images"]
    assert counts == (9, 3, 12)
    # the one readable ant and four of each other class: the share is of these nine
    wrong = sum(confusion["count"] for confusion in summary["confusions"])
    assert summary["top1"] == pytest.approx(100 * (9 - wrong) / 9)
    assert {c["true"]: c["images"] for c in summary["confusions"]}.items() <= {
        "ant": 1,
        "bee": 4,
        "cat": 4,
    }.items()


# ------------------------------------------------------------------------------------- outputs


def test_records_tensorboard_plot_and_log_file(script, tmp_path, capsys):
    pytest.importorskip("tensorboardX")
    files = {name: tmp_path / name for name in ("log.jsonl", "errors.png", "run.log")}
    train(
        script,
        tmp_path,
        *("--dtype", "float16"),
        *("--log-json", files["log.jsonl"], "--plot", files["errors.png"]),
        *("--logging-file", files["run.log"], "--tensorboard", tmp_path / "tb"),
    )
    records = [json.loads(line) for line in files["log.jsonl"].read_text().splitlines()]
    kinds = [record["record"] for record in records]
    assert kinds == [*["batch"] * 3, "epoch", "validation"] * 2
    assert records[-1]["images"] == 360
    assert [record["step"] for record in records] == [1, 2, 3, 3, 3, 4, 5, 6, 6, 6]
    for record in records[:3]:
        assert set(record) >= {"accuracy", "lr", "loss_scale", "skipped", "images_per_second"}
    assert files["errors.png"].read_bytes().startswith(b"\x89PNG")
    assert "[Epoch 1] validated 360/360" in files["run.log"].read_text()
    assert list((tmp_path / "tb").glob("events.out.tfevents*"))


def test_a_reader_that_leaves_ends_the_run_quietly(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-u", str(SCRIPT), *TINY],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.readline()
    process.stdout.close()
    error = process.stderr.read()
    assert process.wait() == 141
    assert error == ""


def test_a_full_disk_loses_nothing(script, tmp_path, capsys):
    options = [*TINY, "--save-dir", str(tmp_path / "saved")]
    again = [*options, "--resume", "auto"]

    def files():
        paths = (path for path in (tmp_path / "saved").iterdir() if path.name != ".lock")
        return {path.name: path.read_bytes() for path in paths}

    assert script.main([*options, "--epochs", "1"]) == 0
    before = files()
    largest = (100_000, 100_000)
    full = subprocess.run(
        [sys.executable, str(SCRIPT), *again],
        env=environment(),
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, largest),
    )
    assert full.returncode == 1
    assert re.fullmatch(
        r"train_imagenet.py: .*epoch002-sample00000000.ckpt was not written \(File too large\): "
        r"earlier checkpoints are as they were; make room and go on with --resume auto.\n",
        full.stderr,
    )
    assert files() == before
    assert script.main(again) == 0
    assert "epoch002-sample00000000.ckpt" in files()


# ------------------------------------------------------------------------------------ refusals


def records_with(train_labels, val_labels, break_index=False):
    def make(folder):
        write_records(folder, "train", train_labels)
        write_records(folder, "val", val_labels)
        if break_index:
            lines = (folder / "train.idx").read_text().splitlines()
            (folder / "train.idx").write_text("\n".join([*lines[:-1], "9\t999999"]) + "\n")
        return ["--rec-train", folder / "train.rec", "--rec-val", folder / "val.rec"]

    return make


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (records_with([0, 1], [0, 2]), "they must be the same classes"),
        (records_with([0, 1, -1], [0, 1]), "expected one whole number from 0 to 16,777,215"),
        (records_with([0, 1], [0, 1], break_index=True), "does not fit"),
        (lambda _: ["--num-classes", "11"], "--num-classes 11 was given, but digits has 10"),
        (lambda _: ["--num-training-samples", "9"], "--num-training-samples 9 was given"),
        (lambda _: ["--kv-store", "dist_sync"], "--kv-store dist_sync needs servers"),
        (lambda _: ["--kv-store", "horovod"], "horovod"),
        (lambda _: ["--dtype", "float16", "--amp"], "two ways to choose a dtype"),
        (lambda _: ["--dataset", "caltech101"], "prepare-caltech"),
        (lambda folder: ["--log-json", folder], "is a directory, expected a file"),
        (lambda _: ["--plot", "/none/at/all.png"], "no directory /none/at"),
    ],
)
def test_bad_input_is_one_sentence(script, tmp_path, capsys, arguments, sentence):
    status = script.main([*TINY, *map(str, arguments(tmp_path))])
    captured = capsys.readouterr()
    assert status == 2
    assert sentence in captured.err
    assert captured.err.count("\n") == 1


# ------------------------------------------------------------------------------------- workers

DIGEST = """
import hashlib, json, os, sys
from gluon_amp.training.runs import run
from gluon_amp.training.runs.recipe import read
from gluon_amp.training.workers.group import leave

def main():
    kept = []
    build = run.build_engine
    run.build_engine = lambda *a: kept.append(build(*a)) or kept[0]
    words = [word.replace("RANK", os.environ["DMLC_WORKER_ID"]) for word in sys.argv[1:]]
    summary = run.train(*read(words))
    masters = kept[0].trainer.master_params()
    data = b"".join(masters[name].asnumpy().tobytes() for name in sorted(masters))
    results = {"top1": summary.top1, "workers": summary.workers, "total": summary.total_batch,
            "steps": summary.steps, "masters": hashlib.sha256(data).hexdigest()}
    print(json.dumps(results), flush=True)
    return 0

leave(main)
"""


def two_workers(tmp_path, line):
    """Train in two workers on this machine; return what each says of itself."""
    (tmp_path / "worker.py").write_text(DIGEST)
    options = f"--dtype float16 --kv-store dist_sync {line}".split()
    worker = [sys.executable, str(tmp_path / "worker.py"), *options]
    done = subprocess.run(
        [*LAUNCH, "-n", "2", "-s", "1", "--", *worker],
        env=environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    results = [
        json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if "{" in line
    ]
    assert len(results) == 2
    assert results[0] == results[1]
    return results


@pytest.mark.slow
def test_two_workers_train_the_digits_in_float16(tmp_path):
    results = two_workers(tmp_path, "--batch-size 32 --epochs 8 --lr 0.2")
    assert (results[0]["workers"], results[0]["total"]) == (2, 64)
    assert results[0]["top1"] >= 97.0


def test_the_summary_of_a_run_has_its_memory_and_wait(script, tmp_path, capsys):
    summary = train(script, tmp_path)
    assert 0 <= summary["waited_share"] <= 1
    assert summary["peak_mebibytes"] > 100
    assert summary["train_seconds"] < summary["seconds"]
