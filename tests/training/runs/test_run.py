"""`gluon-amp train` and `fine-tune` from their options to their files."""

import json
import re
import shutil
import signal
from types import SimpleNamespace

import pytest

from gluon_amp.base import hardware
from gluon_amp.lowering.emulation import is_emulated
from gluon_amp.training.console import fine_tune, train
from gluon_amp.training.runs import building
from gluon_amp.training.runs.history import Validation
from gluon_amp.training.runs.loop import Loop
from tests.images import write_folders
from tests.training.runs.killing import contents
from tests.training.runs.scripts import OF_THE_CLOCK

import mxnet as mx
from gluoncv.model_zoo import get_cifar_resnet
from mxnet.gluon import nn


@pytest.fixture
def summary_of(tmp_path, capsys):
    """A function that trains, and returns the summary with what was printed as `out`."""

    def run(*words, main=train.main):
        path = tmp_path / "summary.json"
        assert main([*map(str, words), "--summary-json", str(path)]) == 0
        return SimpleNamespace(out=capsys.readouterr().out, **json.loads(path.read_text()))

    return run


def parameters(folder):
    (path,) = folder.glob("*.params")
    return {name: array.asnumpy().tobytes() for name, array in mx.nd.load(str(path)).items()}


def comparable(path):
    summary = json.loads(path.read_text())
    return {name: value for name, value in summary.items() if name not in OF_THE_CLOCK}


def test_the_output_of_a_run(trained):
    notice, plan, *_, results, saved, judged = trained.out.split("\n\n")
    assert saved.startswith(f"Checkpoints and the network are in {trained.save_dir}. The errors")
    assert saved.endswith(f" are drawn in {trained.plot}.")
    assert judged.startswith("After 8 updates, BatchNorm's running statistics still hold 43 %")
    first, second = notice.splitlines()
    assert first == "data: digits (8x8 images from scikit-learn), as no option names others"
    assert second.startswith("(there is no ImageNet at ")
    assert plan.startswith("batch      32 per device × 1 (cpu(0)) = 32\n")
    words = " ".join(plan.split())
    assert "cifar_resnet8_v1, 10 classes, --mode hybrid" in words
    assert "1437 training and 360 validation images of 3×32×32" in words
    assert ("emulated on this CPU" in words) == is_emulated("float16")
    assert "conv weights float16, computed in float16, BatchNorm float32" in words
    assert "lr 0.01 (as given), linear, epochs 2, warm-up 0" in words
    assert max(map(len, [*plan.splitlines(), *results.splitlines()])) <= 80
    assert "validated   360/360 images" in trained.out and "Confused: " in trained.out


def test_the_summary_of_a_run(trained):
    summary = json.loads(trained.summary_json.read_text())
    assert summary["observed_dtypes"]["conv_compute"] == "float16"
    assert (summary["dtype"], summary["emulated"]) == ("float16", is_emulated("float16"))
    assert (summary["validated"], summary["val_images"], summary["steps"]) == (360, 360, 8)
    assert (summary["model"], summary["seed"], summary["epochs"]) == ("cifar_resnet8_v1", 7, 2)
    # a new dynamic scale is too high at first, and the first pass is repeated
    assert summary["skipped_steps"] == 0 and summary["loss_scale"] < 2**16
    assert f"loss scale  {summary['loss_scale']:g}, 0 of 8 steps skipped" in trained.out
    counts = [confusion["count"] for confusion in summary["confusions"]]
    assert len(counts) == 3 and counts == sorted(counts, reverse=True)
    assert 0 <= summary["waited_share"] <= 1 and summary["peak_mebibytes"] > 100
    assert 0 < summary["train_seconds"] < summary["seconds"]
    assert f"  top-1 {summary['top1']:.2f} %  lr " in trained.out


POSITIONS = [(0, 64), (0, 128), (1, 0), (1, 64), (1, 128), (2, 0)]  # with --save-batches 2


def test_the_files_of_a_run(trained):
    assert sorted(path.name for path in trained.save_dir.iterdir()) == [
        ".lock",
        "args.yaml",
        "best.ckpt",
        "digits-cifar_resnet8_v1-1.params",
        *(f"epoch00{epoch}-sample{samples:08d}.ckpt" for epoch, samples in POSITIONS),
    ]
    (params,) = trained.save_dir.glob("*.params")
    get_cifar_resnet(1, 8, classes=10).load_parameters(str(params))  # without a cast
    assert trained.plot.read_bytes().startswith(b"\x89PNG")


def test_a_killed_run_goes_on_as_if_nothing_had_happened(trained, tmp_path, capsys):
    """What it has left is what it had written until then; one checkpoint is damaged, too."""
    saved, summary = tmp_path / "saved", tmp_path / "summary.json"
    saved.mkdir()
    for epoch, samples in POSITIONS[:5]:
        shutil.copy(trained.save_dir / f"epoch00{epoch}-sample{samples:08d}.ckpt", saved)
    newest = sorted(saved.glob("epoch*.ckpt"))[-1]
    newest.write_bytes(newest.read_bytes()[:-1000])
    more = ["--save-batches", "2", "--save-dir", str(saved), "--keep", "99", "--confusions", "3"]
    resumed = [*trained.options, *more, "--resume", "--summary-json", str(summary)]
    assert train.main(resumed) == 0
    out = capsys.readouterr().out
    assert "Skipped: " in out and newest.name in out
    assert ": epoch 2/2, 64 samples done" in out and "Epoch 1/" not in out
    assert parameters(saved) == parameters(trained.save_dir)
    assert comparable(summary) == comparable(trained.summary_json)


def test_a_terminated_run_saves_in_mid_epoch_and_goes_on(trained, tmp_path, monkeypatch, capsys):
    saved, summary, count = tmp_path / "saved", tmp_path / "summary.json", Loop._count

    def counted(self, *arguments):
        count(self, *arguments)
        if self.steps == 7:
            signal.raise_signal(signal.SIGTERM)

    options = [*trained.options, "--save-dir", str(saved), "--summary-json", str(summary)]
    options += ["--confusions", "3"]
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_count", counted)
        assert train.main(options) == 143
    captured = capsys.readouterr()
    sentence = f"interrupted by SIGTERM: saved in {saved}; continue with --resume auto."
    assert captured.err == f"gluon-amp train: {sentence}\n"
    assert "epoch001-sample00000096.ckpt" in captured.out.splitlines()[-1]
    assert train.main([*options, "--resume", "auto"]) == 0
    assert parameters(saved) == parameters(trained.save_dir)
    assert comparable(summary) == comparable(trained.summary_json)


def test_a_finished_run_has_nothing_left_to_do(trained, tmp_path, summary_of):
    saved = shutil.copytree(trained.save_dir, tmp_path / "saved")
    before = json.loads(trained.summary_json.read_text())
    for more in ([], ["--eval-only"]):
        again = summary_of(*trained.options, "--save-dir", saved, "--resume", "auto", *more)
        for name in ("top1", "top1_by_epoch", "best_epoch", "steps"):
            assert getattr(again, name) == before[name]
        assert "Epoch 3/" not in again.out
        assert ("That run is finished: to train on, give more" in again.out) is (not more)
        assert ("warm-up" in again.out) is (not more) and again.epochs == 2
    assert "validated   360/360 images" in again.out


@pytest.mark.parametrize(
    "line, dtype, weights",
    [
        ("--mode imperative", "float32", "float32"),
        ("--mode module --dtype float16", "float16", "float16"),
        ("--mode module --dtype bfloat16 --loss-scale none", "bfloat16", "float32"),
        ("--amp", "float16", "float32"),
        ("--dtype bfloat16", "bfloat16", "float32"),
    ],
)
def test_modes_and_policies(fashion, summary_of, line, dtype, weights):
    summary = summary_of(*fashion, *line.split(), "--max-batches", 2)
    assert summary.observed_dtypes["conv_weight"] == weights
    assert summary.observed_dtypes["conv_compute"] == dtype
    assert (summary.validated, summary.steps, summary.data) == (23, 2, "fashion-mnist")
    assert f"--mode {summary.mode}" in summary.out and summary.emulated == is_emulated(dtype)


def test_all_of_a_recipe_together(fashion, summary_of):
    line = (
        "--label-smoothing --mixup --mixup-off-epoch 1 --no-wd --clip-grad 1 --cpus 2 "
        "--accumulate 2 --lr-mode poly --dtype float16 --seed 3 --epochs 2"
    )
    summary = summary_of(*fashion, *line.split())
    plan = " ".join(summary.out.split())
    assert "8 per device × 2 (cpu(0), cpu(1)) × 2 accumulated = 32" in plan
    for words in ("label smoothing 0.1", "mixup 0.2", "clipped to 1", "no decay of biases"):
        assert words in plan
    # 3 batches of 16, 16 and 8 images: an update of 2 batches and one of 1
    assert (summary.total_batch, summary.steps, summary.devices) == (32, 4, "cpu(0), cpu(1)")


def test_a_run_that_saves_nothing_says_so_at_its_start_and_end(fashion, summary_of, monkeypatch):
    monkeypatch.setattr(hardware, "load_average", lambda: 99.5)
    monkeypatch.setattr(hardware, "count_all_cores", lambda: 2)
    out = summary_of(*fashion, "--max-batches", 1).out
    _, warning, at_start, *_, at_end, judged = out.split("\n\n")
    assert at_start == at_end and judged.startswith("After 1 update, ")
    assert at_start == "Without --save-dir DIR, this run saves neither its network nor checkpoints."
    assert warning.startswith("WARNING  Other programs are using this machine (load 99.5 ")
    assert max(map(len, warning.splitlines())) <= 80


def test_a_format_for_study_is_called_so(fashion, summary_of):
    dtype = "compute=float8_e4m3,gradients=float8_e5m2"
    summary = summary_of(*fashion, "--dtype", f"params=float32,{dtype}", "--max-batches", 2)
    out = " ".join(summary.out.split())
    assert f"requested {dtype}, emulated on this CPU for study" in out
    lines = summary.out.splitlines()
    (line,) = (line for line in lines if line.startswith("Recommended here: --dtype "))
    assert len(line) <= 80
    assert "computed in float32+float8_e4m3" in out and "loss scale none" in out
    assert f"dtype {dtype}, emulated for study" in out


def test_epochs_without_validation_or_checkpoint(fashion, summary_of, tmp_path):
    line = "--epochs 3 --eval-frequency 2 --save-frequency 2 --lr 0".split()
    summary = summary_of(*fashion, *line, "--save-dir", tmp_path / "saved")
    first, second, last = summary.top1_by_epoch
    assert first is None and second == last == summary.best_top1
    names = sorted(path.name for path in (tmp_path / "saved").glob("epoch*"))
    assert names == ["epoch002-sample00000000.ckpt", "epoch003-sample00000000.ckpt"]
    untrained = summary_of(*fashion, "--eval-only")
    assert (untrained.steps, untrained.validated, untrained.images_per_second) == (0, 23, None)
    assert "nothing was trained" in untrained.out and " s, 0 epochs" in untrained.out


def test_a_run_goes_on_with_its_batch_divided_otherwise(fashion, summary_of, tmp_path):
    """Two times 8 images are the 16 images of one batch: none is skipped, none comes twice."""
    saved = ["--save-dir", tmp_path / "saved", "--save-batches", "2", "--keep", "9", "--lr", "0"]
    summary_of(*fashion, *saved, "--accumulate", "2", "--max-batches", "2")
    (tmp_path / "saved" / "epoch001-sample00000000.ckpt").unlink()
    resumed = summary_of(*fashion, *saved, "--batch-size", "16", "--resume", "auto")
    assert "epoch 1/" in resumed.out and ", 16 samples done" in resumed.out
    assert resumed.steps == 1 + 2  # one update of 16 images, and the other 24 in two batches


def test_a_module_goes_on_from_its_own_files(fashion, summary_of, tmp_path):
    run = [*fashion, *"--mode module --dtype float16 --loss-scale 128 --lr-mode constant".split()]
    summary_of(*run, "--epochs", 2, "--save-dir", tmp_path / "whole")
    summary_of(*run, "--save-dir", tmp_path / "parts")
    for name in ("symbol.json", "0001.params", "0001.states"):
        assert (tmp_path / "parts" / f"convnet-{name}").exists()
    again = summary_of(*run, "--epochs", 2, "--save-dir", tmp_path / "parts", "--load-epoch", 1)
    assert (again.epochs, again.steps, again.top1_by_epoch[0]) == (2, 5, None)
    names = [f"convnet-0002.{kind}" for kind in ("params", "states")]
    whole, parts = ([(tmp_path / f / n).read_bytes() for n in names] for f in ("whole", "parts"))
    assert parts == whole


def test_gluoncvs_two_files(fashion, summary_of, tmp_path, refused):
    summary_of(*fashion, "--dtype", "float16", "--save-dir", tmp_path / "saved")
    (params,) = (tmp_path / "saved").glob("*.params")
    resume = [*fashion, "--dtype", "float16", "--resume-params", str(params), "--resume-epoch", "1"]
    assert summary_of(*resume, "--epochs", "2").steps == 5
    for more, sentence in (
        ([], "--resume-epoch 1 leaves nothing of --num-epochs 1"),
        (["--epochs", "2", "--model", "cifar_resnet8_v1"], "is of another network"),
        (["--epochs", "2", "--resume-states", str(params)], "--resume-states"),
    ):
        assert sentence in refused(train.main, [*resume, *more])


@pytest.mark.parametrize(
    "line",
    ["--accumulate 2", "--mode module --dtype float16", "--ema-decay 0.5 --dtype float16"],
)
def test_a_run_goes_on_in_mid_epoch(line, fashion, summary_of, tmp_path, monkeypatch):
    """MXNet's random generator cannot be saved, so every step seeds it."""

    def build(model, classes):
        net = nn.HybridSequential()
        net.add(nn.Flatten(), nn.Dropout(0.5), nn.BatchNorm(), nn.Dense(classes))
        return net

    monkeypatch.setattr(building, "build", build)
    run = [*fashion, *line.split(), *"--epochs 2 --save-batches 2 --keep 9".split()]
    whole = summary_of(*run, "--save-dir", tmp_path / "whole")
    (tmp_path / "part").mkdir()
    shutil.copy(tmp_path / "whole" / "epoch001-sample00000016.ckpt", tmp_path / "part")
    again = summary_of(*run, "--save-dir", tmp_path / "part", "--resume", "auto")
    last = "epoch002-sample00000000.ckpt"
    assert contents(tmp_path / "part" / last) == contents(tmp_path / "whole" / last)
    assert (again.top1_by_epoch, again.steps) == (whole.top1_by_epoch, whole.steps)
    assert vars(again).get("ema_top1_by_epoch") == vars(whole).get("ema_top1_by_epoch")


def test_the_average_is_validated_and_saved_beside_the_weights(fashion, summary_of, tmp_path):
    line = "--dtype float16 --loss-scale 128 --lr 0.05 --epochs 2 --save-dir saved --ema-decay"
    run = [*fashion, *line.replace("saved", str(tmp_path)).split()]
    summary = summary_of(*run, 0.9, "--log-json", tmp_path / "log")
    assert summary.ema_decay == 0.9 and len(summary.ema_top1_by_epoch) == 2
    assert summary.ema_top1_by_epoch[-1] == summary.ema_top1
    assert summary.ema_cross_entropy != summary.cross_entropy
    line = rf"^Epoch 2/2 .*  average {summary.ema_top1:.2f} %  lr "
    assert re.search(line, summary.out, re.MULTILINE)
    assert re.search(rf"average +{summary.ema_top1:.2f} % top-1, decay 0.9$", summary.out, re.M)
    assert "average with decay 0.9" in " ".join(summary.out.split())
    records = [json.loads(text) for text in (tmp_path / "log").read_text().splitlines()]
    scores = [r["top1"] for r in records if r["record"] == "averaged_validation"]
    assert [100 * score for score in scores] == summary.ema_top1_by_epoch
    weights, average = (
        mx.nd.load(str(tmp_path / f"fashion-mnist-convnet-1{end}.params")) for end in ("", "-ema")
    )
    name = next(name for name in weights if name.endswith("weight"))
    assert (weights[name] != average[name]).asnumpy().any()
    again = summary_of(*run, 0.9, "--resume")  # nothing is left to train
    assert (again.ema_top1, again.ema_top1_by_epoch) == (
        summary.ema_top1,
        summary.ema_top1_by_epoch,
    )
    plain = summary_of(*run[:-1], "--resume", "--epochs", 3)
    assert not hasattr(plain, "ema_top1") and "  average " not in plain.out
    again = summary_of(*run, 0.9, "--resume", "--epochs", 4)
    assert again.ema_top1_by_epoch[2] is None and len(again.ema_top1_by_epoch) == 4


def test_a_decay_that_is_1_in_float32_is_one_sentence(fashion, refused):
    sentence = refused(train.main, [*fashion, "--ema-decay", "0.999999999"])
    assert "--ema-decay 0.999999999: decay must be a" in sentence


def test_the_best_checkpoint_is_that_of_the_best_epoch(fashion, summary_of, tmp_path, monkeypatch):
    scores = iter([0.25, 0.75, 0.5])
    validation = lambda self, *_: Validation(next(scores), 1.0, 0.5, 23)  # noqa: E731
    monkeypatch.setattr(Loop, "validate", validation)
    saved = tmp_path / "saved"
    summary = summary_of(*fashion, "--epochs", 3, "--max-batches", 1, "--save-dir", saved)
    assert (summary.best_epoch, summary.best_top1, summary.top1) == (1, 75, 50)
    best, second = (saved / name for name in ("best.ckpt", "epoch002-sample00000000.ckpt"))
    assert best.read_bytes() == second.read_bytes()


def test_unreadable_images_are_named_left_out_and_counted(tmp_path, summary_of):
    for part in ("train", "val"):
        write_folders(tmp_path, part, ["ant", "bee", "cat"], images=4)
    bad = sorted((tmp_path / "val" / "ant").iterdir())[:3]
    unread = sorted((tmp_path / "train" / "cat").iterdir())[1]
    for path in (*bad, unread):
        path.write_bytes(b"no image")
    line = (
        "--model mobilenet0.25 --input-size 32 --batch-size 4 --epochs 1 --warmup-epochs 0 --lr 0 "
        "--confusions 9"
    )
    summary = summary_of(*line.split(), "--data-dir", tmp_path)
    assert f"Epoch 1/1  1 unreadable image: {unread}" in summary.out
    names = ", ".join(map(str, bad))
    assert f"Epoch 1/1  not validated: 3 unreadable images: {names}" in summary.out
    assert "9/12 images, 3 unreadable" in summary.out
    assert (summary.validated, summary.unreadable, summary.val_images) == (9, 3, 12)
    # the one readable ant and four of each other class: the share is of these nine
    wrong = sum(confusion["count"] for confusion in summary.confusions)
    assert summary.top1 == pytest.approx(100 * (9 - wrong) / 9)
    images = {confusion["true"]: confusion["images"] for confusion in summary.confusions}
    assert images.items() <= {"ant": 1, "bee": 4, "cat": 4}.items()


@pytest.mark.slow
def test_make_train_reaches_97_percent(summary_of):
    """The whole run of `make train`; `make accuracy` compares it with the other dtypes."""
    summary = summary_of(*"--dtype float16 --batch-size 256".split())
    assert summary.top1 >= 97.0 and summary.skipped_steps < 20
    assert (summary.validated, summary.steps) == (360, 24 * 6)


@pytest.mark.slow
def test_fine_tuning_learns_the_other_digits(summary_of):
    summary = summary_of("--dtype", "float16", main=fine_tune.main)
    assert (summary.validated, summary.steps) == (179, 8 * 45) and summary.top1 > 95
