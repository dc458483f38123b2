"""Every option: its aliases, its values, and the sentence for a wrong one."""

import argparse

import pytest

import gluon_amp  # noqa: F401
from gluon_amp.policy import Policy
from gluon_amp.trainer.loss_scale import resolve
from gluon_amp.training.networks.models import build, full_name
from gluon_amp.training.runs.engines.build import loss_scale_option
from gluon_amp.training.runs.image_options import REFUSED
from gluon_amp.training.runs.recipe import read, train_parser

from mxnet import gluon

FLAGS = {
    "model": "--model --network",
    "num_layers": "--num-layers",
    "mode": "--mode",
    "dtype": "--dtype",
    "amp": "--amp",
    "loss_scale": "--loss-scale",
    "batch_size": "--batch-size -b",
    "accumulate": "--accumulate",
    "num_gpus": "--num-gpus",
    "gpus": "--gpus",
    "cpus": "--cpus",
    "wait_policy": "--wait-policy",
    "kv_store": "--kv-store --kvstore",
    "worker_timeout": "--worker-timeout",
    "dataset": "--dataset",
    "data_dir": "--data-dir --data",
    "image_folder": "--image-folder",
    "rec_train": "--rec-train --data-train",
    "rec_train_idx": "--rec-train-idx --data-train-idx",
    "rec_val": "--rec-val --data-val",
    "rec_val_idx": "--rec-val-idx --data-val-idx",
    "use_rec": "--use-rec",
    "num_classes": "--num-classes",
    "num_training_samples": "--num-training-samples --num-examples",
    "input_size": "--input-size --image-shape",
    "crop_ratio": "--crop-ratio",
    "min_random_area": "--min-random-area",
    "rgb_mean": "--rgb-mean",
    "rgb_std": "--rgb-std",
    "num_workers": "--num-workers -j --num-data-workers --workers --num-worker --data-nthreads",
    "num_epochs": "--num-epochs --epochs",
    "lr": "--lr",
    "lr_mode": "--lr-mode",
    "lr_decay": "--lr-decay --lr-factor",
    "lr_decay_epoch": "--lr-decay-epoch --lr-steps --lr-step-epochs",
    "lr_decay_period": "--lr-decay-period",
    "warmup_epochs": "--warmup-epochs",
    "warmup_lr": "--warmup-lr",
    "optimizer": "--optimizer",
    "momentum": "--momentum --mom",
    "wd": "--wd --weight-decay",
    "no_wd": "--no-wd",
    "last_gamma": "--last-gamma",
    "label_smoothing": "--label-smoothing",
    "mixup": "--mixup",
    "mixup_alpha": "--mixup-alpha",
    "mixup_off_epoch": "--mixup-off-epoch",
    "clip_grad": "--clip-grad",
    "use_pretrained": "--use-pretrained",
    "pretrained_file": "--pretrained-file --pretrained-model",
    "from_scratch": "--from-scratch",
    "root": "--root",
    "freeze_features": "--freeze-features",
    "freeze_statistics": "--freeze-statistics",
    "head_lr_mult": "--head-lr-mult",
    "seed": "--seed",
    "deterministic": "--deterministic",
    "save_dir": "--save-dir --model-prefix",
    "save_frequency": "--save-frequency --save-period",
    "save_batches": "--save-batches",
    "keep": "--keep",
    "resume": "--resume",
    "resume_epoch": "--resume-epoch --load-epoch --start-epoch",
    "resume_params": "--resume-params",
    "resume_states": "--resume-states",
    "export": "--export",
    "confusions": "--confusions",
    "eval_only": "--eval-only",
    "eval_frequency": "--eval-frequency",
    "test_io": "--test-io",
    "benchmark": "--benchmark",
    "max_batches": "--max-batches --benchmark-iters",
    "log_interval": "--log-interval --disp-batches",
    "logging_file": "--logging-file",
    "log_json": "--log-json",
    "tensorboard": "--tensorboard",
    "plot": "--plot",
    "summary_json": "--summary-json",
}

# a text for every option, and the value it means
TEXTS = {
    "mode": ("module", "module"),
    "num_layers": ("50", 50),
    "dtype": ("bfloat16", "bfloat16"),
    "kv_store": ("local", "local"),
    "dataset": ("caltech101", "caltech101"),
    "keep": ("5", 5),
    "rgb_mean": ("1,2,3", (1.0, 2.0, 3.0)),
    "rgb_std": ("1,2,3", (1.0, 2.0, 3.0)),
    "label_smoothing": ("0.2", 0.2),
    "mixup_alpha": ("0.4", 0.4),
    "warmup_epochs": ("7", 7),
    "loss_scale": ("128", 128.0),
    "gpus": ("0,2", (0, 2)),
    "lr_mode": ("poly", "poly"),
    "crop_ratio": ("0.5", 0.5),
    "min_random_area": ("0.5", 0.5),
    "momentum": ("0.5", 0.5),
    "lr_decay_epoch": ("10,20", (10, 20)),
    "optimizer": ("nag", "nag"),
    "wait_policy": ("active", "active"),
}

SWITCHES = (
    "--amp --use-rec --no-wd --last-gamma --use-pretrained --deterministic --eval-only --test-io "
    "--from-scratch --freeze-features --freeze-statistics"
).split()
NEEDED = {
    "resume_epoch": "--resume-params p",
    "resume_params": "--resume-epoch 3",
    "resume_states": "--resume-params p --resume-epoch 3",
    "resume": "--save-dir d",
}


def test_every_option_is_listed_here():
    declared = {
        action.dest: " ".join(action.option_strings)
        for action in train_parser()._actions
        if action.dest not in ("help", argparse.SUPPRESS)
    }
    assert declared == FLAGS


@pytest.mark.parametrize(
    "name, flag", [(name, flag) for name, flags in FLAGS.items() for flag in flags.split()]
)
def test_aliases(name, flag):
    if flag in SWITCHES:
        arguments, expected = [flag], True
    else:
        text, expected = TEXTS.get(name, ("3", 3))
        arguments = [flag, text]
    recipe, options = read([*arguments, *NEEDED.get(name, "").split()])
    assert name in options
    value = getattr(recipe, name)
    assert getattr(read([])[0], name) != value
    assert value == (expected if name in TEXTS or flag in SWITCHES else type(value)(text))


@pytest.mark.parametrize(
    "line, name, value",
    [
        ("--label-smoothing", "label_smoothing", 0.1),
        ("--label-smoothing 0.05", "label_smoothing", 0.05),
        ("--mixup", "mixup", 0.2),
        ("--mixup 0.4", "mixup", 0.4),
        ("--mixup --mixup-alpha 0.3", "mixup", 0.3),
        ("--benchmark", "benchmark", 1),
        ("--benchmark 1", "benchmark", 1),
        ("--benchmark 0", "benchmark", 0),
        ("--resume --save-dir x", "resume", "auto"),
        ("--resume some.ckpt", "resume", "some.ckpt"),
        ("--image-shape 3,299,299", "input_size", 299),
        ("--input-size 160", "input_size", 160),
    ],
)
def test_arguments_that_may_be_left_out_or_written_in_two_ways(line, name, value):
    assert getattr(read(line.split())[0], name) == value


README_COMMANDS = [
    # MXNet's float16 FAQ
    "--network resnet-v1 --num-layers 50 --benchmark 1 --gpus 0 --batch-size 256 --dtype float16",
    # GluonCV's model zoo, resnet50_v1
    "--rec-train r/train.rec --rec-train-idx r/train.idx --rec-val r/val.rec --rec-val-idx "
    "r/val.idx --model resnet50_v1 --mode hybrid --lr 0.4 --lr-mode cosine --num-epochs 120 "
    "--batch-size 128 --num-gpus 8 -j 60 --warmup-epochs 5 --dtype float16 --use-rec --last-gamma "
    "--no-wd --label-smoothing --save-dir params --logging-file resnet50_v1.log",
    # GluonCV's, with mixup
    "--model resnet50_v1d --mode hybrid --lr 0.4 --lr-mode cosine --num-epochs 200 --batch-size "
    "128 --num-gpus 8 -j 60 --warmup-epochs 5 --dtype float16 --use-rec --last-gamma --no-wd "
    "--label-smoothing --mixup --save-dir params --logging-file log",
    # MXNet's example/image-classification
    "--network vgg --num-layers 16 --gpus 0,1 --kv-store device --data-train t.rec --data-val "
    "v.rec --num-examples 1281167 --image-shape 3,224,224 --lr-factor 0.1 --lr-step-epochs 30,60 "
    "--disp-batches 20 --mom 0.9 --model-prefix model",
]


@pytest.mark.parametrize("line", README_COMMANDS)
def test_commands_of_the_faq_and_of_gluoncv_are_understood(line):
    recipe, options = read(line.split())
    assert isinstance(build(full_name(recipe.model, recipe.num_layers), 10), gluon.HybridBlock)
    assert len(options) >= 6


@pytest.mark.parametrize(
    "text, expected",
    [("dynamic", (65536, True)), ("dynamic:1024", (1024, False)), ("dynamic:0.5", (0.5, False))],
)
def test_the_first_dynamic_loss_scale(text, expected):
    recipe = read(["--loss-scale", text])[0]
    scale = resolve(loss_scale_option(recipe)["loss_scale"])
    assert (scale.scale, scale.searching) == expected


@pytest.mark.parametrize("flag", REFUSED)
def test_options_of_other_scripts_name_their_replacement(flag, capsys):
    with pytest.raises(SystemExit) as stop:
        read([flag, "1"])
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert f"{flag} is not an option here: {REFUSED[flag]}." in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "line, sentence",
    [
        (
            "--dtype int8",
            "argument --dtype: expected float32, float16, mixed_float16, bfloat16, mi",
        ),
        ("--dtype fp16", "mixed_bfloat16, got 'fp16' (did you mean 'float16'?)"),
        ("--batch-size 0", "expected a whole number of at least 1, got '0'"),
        ("--batch-size 2.5", "expected a whole number of at least 1, got '2.5'"),
        ("--epochs -1", "expected a whole number from 1 to 1000000, got '-1'"),
        ("--seed -1", "expected a whole number of at least 0, got '-1'"),
        ("--lr fast", "expected a number of at least 0, got 'fast'"),
        ("--lr nan", "expected a number of at least 0, got 'nan'"),
        (
            "--loss-scale 3",
            "expected dynamic, none or a power of two such as 1024, from 2^-24 to 2^24, or "
            "dynamic:1024 to begin there, got '3'",
        ),
        ("--loss-scale dynamic:3", "dynamic:1024 to begin there, got 'dynamic:3'"),
        ("--loss-scale static:4", "dynamic:1024 to begin there, got 'static:4'"),
        ("--loss-scale dynamic:", "expected a number above 0, got ''"),
        ("--loss-scale inf", "expected a number above 0, got 'inf'"),
        ("--gpus 0,x", "expected the numbers of devices, as in 0,1, got '0,x'"),
        ("--lr-steps 30,-1", "expected whole numbers of at least 0, as in 30,60,80, got '30,-1'"),
        ("--crop-ratio 1.2", "expected a number above 0 to 1, got '1.2'"),
        ("--min-random-area 2", "expected a number above 0 to 1, got '2'"),
        ("--crop-ratio 0", "expected a number above 0 to 1, got '0'"),
        ("--rgb-std 58,0,57", "expected three numbers from 0.001 to 1000, as in 58,57,57, got "),
        ("--rgb-std 58,57", "expected three numbers from 0.001 to 1000, as in 58,57,57, got "),
        ("--rgb-mean nan,0,0", "expected three numbers, as in 123,117,104, got 'nan,0,0'"),
        ("--momentum 1", "expected a number from 0 up to below 1, got '1'"),
        ("--seed 2147483648", "expected a whole number from 0 to 2147483647, got '2147483648'"),
        (f"--batch-size {'9' * 200}", f"from 1 to 2147483647, got '{'9' * 99}…'"),
        ("--lr 1e31", "expected a number from 0 to 1e+30, got '1e31'"),
        ("--lr 1e-40", "expected a number of at least 0, and no closer to 0 than 1e-30, got "),
        ("--save-dir ~no_such_user/x", "'~no_such_user/x': Could not determine home directory"),
        (f"--save-dir {'x' * 300}", ": File name too long"),
        ("--lr-mode slow", "invalid choice: 'slow'"),
        ("--model", "expected one argument"),
        ("--num-epoch 3", "unrecognized arguments: --num-epoch 3"),
        ("--nonsense", "unrecognized arguments: --nonsense"),
    ],
)
def test_a_wrong_option_is_one_sentence(line, sentence, capsys):
    with pytest.raises(SystemExit) as stop:
        read(line.split())
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert sentence in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "policy", "computes_in"),
    [
        ("--dtype mixed_float16", "mixed_float16", "float16"),
        ("--amp", "mixed_float16", "float16"),
        ("--dtype float16", "float16", "float16"),
        ("--dtype bfloat16", "bfloat16", "bfloat16"),
        ("--dtype mixed_bfloat16", "bfloat16", "bfloat16"),  # two names of one policy
        ("--dtype params=float32,compute=tfloat32", "compute=tfloat32", "tfloat32"),
        ("--dtype params=float16,compute=float16", "float16", "float16"),
        ("", "float32", "float32"),
    ],
)
def test_a_dtype_is_the_name_of_a_policy(line, policy, computes_in):
    recipe = read(line.split())[0]
    assert (recipe.policy, Policy(recipe.policy).compute_dtype) == (policy, computes_in)
