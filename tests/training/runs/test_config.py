"""`--config` and args.yaml, `--dry-run`, and the dtype of a run that names none."""

import json

import pytest

from gluon_amp.inspection.doctor.advice import Recommendation
from gluon_amp.training.console import fine_tune, train, train_text
from gluon_amp.training.runs import devices
from gluon_amp.training.runs.language import recipe as language
from gluon_amp.training.runs.recipe import read


def test_args_yaml_repeats_a_run_and_the_command_line_wins(fashion, tmp_path, capsys):
    saved, summaries = tmp_path / "saved", []
    words = "--dtype float16 --lr 0.05 --epochs 2 --mixup 0.3 --loss-scale 128 --no-wd".split()
    for options in (
        [*fashion, *words, "--save-dir", str(saved)],
        ["--config", str(saved / "args.yaml")],
        [f"--config={saved / 'args.yaml'}", "--epochs", "1", "--warmup-epochs", "0"],
    ):
        summary = tmp_path / "summary.json"
        assert train.main([*options, "--summary-json", str(summary)]) == 0
        summaries.append(json.loads(summary.read_text()))
    whole, again, shorter = summaries
    for name in ("top1_by_epoch", "cross_entropy", "dtype", "lr", "batch_size", "loss_scale"):
        assert again[name] == whole[name], name
    assert (whole["epochs"], shorter["epochs"]) == (2, 1)
    assert "save_dir" not in (saved / "args.yaml").read_text()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("batchsize: 8", "has an option 'batchsize' that does not exist (did you mean "),
        ("- 1", "is not a mapping of options, as in dtype: float16"),
        ("dtype: [", "cannot be read: "),
        ("dtype: !!python/object/apply:os.getcwd []", "cannot be read: "),
        ("dtype: float17", "argument --dtype: expected float32, "),
        ("amp: 3", "expected true or false for amp, got 3"),
        ("config: other.yaml", "has an option 'config' that does not exist"),
    ],
)
def test_a_wrong_file_is_one_sentence(text, sentence, tmp_path, capsys):
    file = tmp_path / "options.yaml"
    file.write_text(text)
    with pytest.raises(SystemExit):
        train.main(["--config", str(file)])
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1


def test_a_file_has_the_names_of_options_not_of_attributes(tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text("model: gru\nbatch_size: 4\ntied: false\n")
    recipe = language.read(["--config", str(file), "--batch-size", "8"])
    assert (recipe.kind, recipe.batch_size, recipe.tied) == ("gru", 8, False)
    assert 'model: "gru"\n' in recipe.as_config()
    images = read(["--lr-decay-epoch", "3,5", "--epochs", "9", "--mixup", "1e-3"]).as_config()
    assert {'lr_decay_epoch: "3,5"', "mixup: 0.001"} <= {*images.splitlines()}
    assert "# batch_size: 32\n" in images and "# wd: 0.0005\n" in images


def test_a_dry_run_prints_the_plan_and_the_memory_and_saves_nothing(fashion, tmp_path, capsys):
    saved = tmp_path / "saved"
    options = [*fashion, "--save-dir", str(saved), "--log-json", str(tmp_path / "log")]
    assert train.main([*options, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("batch      ") and "MiB" in out and "Nothing was saved." in out
    assert not saved.exists() and (tmp_path / "log").read_text() == ""
    small = "--characters 4000 --hidden 8 --embedding 8 --dry-run".split()
    assert train_text.main(small) == 0
    assert "Nothing was saved." in capsys.readouterr().out


def test_without_dtype_a_run_takes_what_is_recommended_in_float32_only(monkeypatch):
    for policy, taken in (("fused_float32",) * 2, ("bfloat16", "float32"), ("float32",) * 2):
        monkeypatch.setattr(devices, "recommended", lambda p=policy: Recommendation("cpu", p, ""))
        assert read(["--num-gpus", "0"]).policy == taken
        assert read(["--dtype", "float16"]).policy == "float16"
    monkeypatch.setattr(devices, "recommended", lambda: Recommendation("cpu", "fused_float32", ""))
    assert read(["--mode", "module"]).policy == "float32"
    assert read(["--gpus", "0"]).policy == "float32"


def test_a_run_of_few_updates_says_that_it_cannot_be_judged(capsys):
    words = "--dataset digits --num-epochs 1 --batch-size 256 --max-batches 2".split()
    assert train.main(words) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "After 2 updates, BatchNorm's running statistics still hold 81 %" in out
    assert fine_tune.main("--num-epochs 1 --max-batches 2".split()) == 0
    assert "running statistics" not in capsys.readouterr().out  # they are those of the weights
