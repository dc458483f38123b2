"""What the training commands share: each error is one sentence, and has an exit status."""

import re
import sys

import pytest

from gluon_amp.training.console import fine_tune, train


@pytest.mark.parametrize(
    ("main", "line", "sentence"),
    [
        (train.main, "--data-dir .", "holds no classes"),
        (train.main, "--kv-store dist_sync", "kvstore dist_sync needs servers"),
        (train.main, "--log-json .", "is a directory, expected a file"),
        (train.main, "--model yolo3_darknet53_voc", "is not an image classifier"),
        (train.main, "--model alexnet --input-size 32", "does not accept images of 3×32×32"),
        (train.main, "--resume no-such.ckpt", "no-such.ckpt cannot be read"),
        (fine_tune.main, "--pretrained-file none.params", "none.params cannot be read as param"),
    ],
)
def test_bad_input_is_one_sentence(main, line, sentence, tmp_path, refused, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sentence in refused(main, line.split())


def test_a_run_that_diverges_ends_with_one_sentence(fashion, tmp_path, capsys, refused):
    options = [*fashion, "--lr-mode", "constant", "--save-dir", str(tmp_path)]
    assert train.main(options) == 0
    capsys.readouterr()
    again = [*options, "--epochs", "3", "--lr", "1e30", "--resume"]
    sentence = refused(train.main, again, status=1)
    # by the second batch, and not at the end of the epoch
    assert re.search(
        r"the loss became (nan|inf) in epoch 2, by batch \d, .* lower it with", sentence
    )
    assert f"The last good checkpoint is {tmp_path}/epoch001-sample00000000.ckpt" in sentence


@pytest.mark.parametrize(
    "options, status, sentence",
    [
        ("--log-json log.jsonl", 0, "--log-json or --tensorboard cannot be written any more"),
        ("--logging-file run.log", 0, "--logging-file cannot be written any more"),
        ("--plot plot.png", 0, "--plot plot.png cannot be written"),
        ("--export exported", 0, "--export exported cannot be written"),
        ("--summary-json summary.json", 1, "--summary-json summary.json cannot be written"),
        (
            "--save-dir saved",
            1,
            "saved/epoch001-sample00000000.ckpt was not written (File too large): earlier "
            "checkpoints are as they were; make room and continue with --resume auto.",
        ),
    ],
)
def test_a_full_disk(options, status, sentence, fashion, small_disk, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with small_disk(2000 if "--save-dir" in options else 200):  # args.yaml is written first
        assert train.main([*fashion, *options.split()]) == status
    captured = capsys.readouterr()
    assert sentence in captured.out + captured.err
    assert ("top-5" in captured.out) == ("--save-dir" not in options)


def test_a_full_standard_output_does_not_end_the_run(fashion, monkeypatch, capfd):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert train.main(fashion) == 0
    error = "standard output cannot be written any more (No space left on device): training conti"
    assert capfd.readouterr().err.startswith(error)
