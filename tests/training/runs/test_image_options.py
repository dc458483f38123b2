"""Every option of an image run: its aliases, its values, and the sentence for a wrong one."""

import argparse

import pytest

from gluon_amp.trainer.loss_scale import resolve
from gluon_amp.training.runs.building import loss_scale_option
from gluon_amp.training.runs.image_options import REFUSED
from gluon_amp.training.runs.recipe import read, train_parser

FLAGS = """
--model --network, --num-layers, --mode, --last-gamma, --use-pretrained,
--pretrained-file --pretrained-model, --from-scratch, --root, --freeze-features,
--freeze-statistics, --head-lr-mult, --dataset, --data-dir --data, --image-folder,
--rec-train --data-train, --rec-train-idx --data-train-idx, --rec-val --data-val,
--rec-val-idx --data-val-idx, --use-rec, --num-classes, --num-training-samples --num-examples,
--input-size --image-shape, --crop-ratio, --min-random-area, --max-shift, --rgb-mean,
--rgb-std,
--num-workers -j --num-data-workers --workers --num-worker --data-nthreads,
--dtype, --loss-scale, --amp, --batch-size -b, --accumulate, --num-epochs --epochs, --optimizer,
--momentum --mom, --clip-grad, --lr, --lr-mode, --lr-decay --lr-factor,
--lr-decay-epoch --lr-steps --lr-step-epochs, --lr-decay-period, --warmup-epochs, --warmup-lr,
--wd --weight-decay, --no-wd, --label-smoothing, --mixup, --mixup-alpha, --mixup-off-epoch,
--ema-decay, --seed,
--deterministic, --eval-only, --eval-frequency, --confusions, --save-dir --model-prefix,
--save-batches, --keep, --resume, --config, --save-frequency --save-period,
--resume-epoch --load-epoch --start-epoch, --resume-params, --resume-states, --num-gpus, --gpus,
--cpus, --wait-policy, --kv-store --kvstore, --worker-timeout, --log-interval --disp-batches,
--log-json, --summary-json, --logging-file, --tensorboard, --plot, --export,
--max-batches --benchmark-iters, --dry-run, --benchmark, --test-io
"""


def test_every_option_and_its_aliases_are_listed_here():
    declared = [
        " ".join(action.option_strings)
        for action in train_parser()._actions
        if action.dest not in ("help", argparse.SUPPRESS)
    ]
    assert sorted(declared) == sorted(" ".join(FLAGS.split()).split(", "))


@pytest.mark.parametrize(
    "line, name, value",
    [
        ("--label-smoothing", "label_smoothing", 0.1),
        ("--mixup --mixup-alpha 0.3", "mixup", 0.3),
        ("--ema-decay 0.9999", "ema_decay", 0.9999),
        ("--benchmark", "benchmark", 1),
        ("--resume --save-dir x", "resume", "auto"),
        ("--image-shape 3,299,299", "input_size", 299),
        ("--gpus 0,2", "gpus", (0, 2)),
        ("--lr-steps 10,20", "lr_decay_epoch", (10, 20)),
        ("--lr-decay-period 40 --epochs 90", "lr_decay_epoch", (40, 80)),
    ],
)
def test_values(line, name, value):
    assert getattr(read(line.split()), name) == value


@pytest.mark.parametrize(
    "text, expected", [("dynamic", (65536, True)), ("dynamic:0.5", (0.5, False))]
)
def test_the_first_dynamic_loss_scale(text, expected):
    scale = resolve(loss_scale_option(read(["--loss-scale", text]))["loss_scale"])
    assert (scale.scale, scale.searching) == expected


def test_options_of_other_scripts_name_their_replacement(capsys):
    for flag, replacement in REFUSED.items():
        for line in ([flag], [flag, "3", "4"], [f"{flag}=3"]):
            with pytest.raises(SystemExit) as stop:
                read(line)
            error = capsys.readouterr().err
            assert stop.value.code == 2 and error.count("\n") == 1
            assert f"{flag} is not an option here: {replacement}." in error
        assert f"{flag} " not in train_parser().format_help()


@pytest.mark.parametrize(
    "line, sentence",
    [
        (
            "--loss-scale 3",
            "expected dynamic, none or a power of two such as 1024, from 2^-24 to 2^24, or "
            "dynamic:1024 to begin there, got '3'",
        ),
        (f"--loss-scale dynamic:{2.0**-25}", "dynamic:1024 to begin there, got 'dynamic:2"),
        ("--loss-scale dynamic:", "expected a number above 0, got ''"),
        ("--rgb-std 58,0,57", "expected three numbers from 0.001 to 1000, as in 58,57,57, got "),
        ("--ema-decay 0", "argument --ema-decay: expected a number above 0 up to below 1, got '0'"),
    ],
)
def test_a_wrong_option_is_one_sentence(line, sentence, capsys):
    with pytest.raises(SystemExit) as stop:
        read(line.split())
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert sentence in error and error.count("\n") == 1
