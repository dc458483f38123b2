"""Every option of an image run: its aliases, its values, and the sentence for a wrong one."""

import argparse

import pytest

from gluon_amp.policy import Policy
from gluon_amp.trainer.loss_scale import resolve
from gluon_amp.training.networks.models import build, full_name
from gluon_amp.training.runs.engines.build import loss_scale_option
from gluon_amp.training.runs.image_options import REFUSED
from gluon_amp.training.runs.recipe import read, train_parser

from mxnet import gluon

FLAGS = """
--model --network, --num-layers, --mode, --last-gamma, --use-pretrained,
--pretrained-file --pretrained-model, --from-scratch, --root, --freeze-features,
--freeze-statistics, --head-lr-mult, --dataset, --data-dir --data, --image-folder,
--rec-train --data-train, --rec-train-idx --data-train-idx, --rec-val --data-val,
--rec-val-idx --data-val-idx, --use-rec, --num-classes, --num-training-samples --num-examples,
--input-size --image-shape, --crop-ratio, --min-random-area, --rgb-mean, --rgb-std,
--num-workers -j --num-data-workers --workers --num-worker --data-nthreads,
--dtype, --loss-scale, --amp, --batch-size -b, --accumulate, --num-epochs --epochs, --optimizer,
--momentum --mom, --clip-grad, --lr, --lr-mode, --lr-decay --lr-factor,
--lr-decay-epoch --lr-steps --lr-step-epochs, --lr-decay-period, --warmup-epochs, --warmup-lr,
--wd --weight-decay, --no-wd, --label-smoothing, --mixup, --mixup-alpha, --mixup-off-epoch, --seed,
--deterministic, --eval-only, --eval-frequency, --confusions, --save-dir --model-prefix,
--save-batches, --keep, --resume, --save-frequency --save-period,
--resume-epoch --load-epoch --start-epoch, --resume-params, --resume-states, --num-gpus, --gpus,
--cpus, --wait-policy, --kv-store --kvstore, --worker-timeout, --log-interval --disp-batches,
--log-json, --summary-json, --logging-file, --tensorboard, --plot, --export,
--max-batches --benchmark-iters, --benchmark, --test-io
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


README_COMMANDS = [
    # MXNet's float16 FAQ
    "--network resnet-v1 --num-layers 50 --benchmark 1 --gpus 0 --batch-size 256 --dtype float16",
    # GluonCV's model zoo, resnet50_v1
    "--rec-train r/train.rec --rec-train-idx r/train.idx --rec-val r/val.rec --rec-val-idx "
    "r/val.idx --model resnet50_v1 --mode hybrid --lr 0.4 --lr-mode cosine --num-epochs 120 "
    "--batch-size 128 --num-gpus 8 -j 60 --warmup-epochs 5 --dtype float16 --use-rec --last-gamma "
    "--no-wd --label-smoothing --mixup --save-dir params --logging-file resnet50_v1.log",
    # MXNet's example/image-classification
    "--network vgg --num-layers 16 --gpus 0,1 --kv-store device --data-train t.rec --data-val "
    "v.rec --num-examples 1281167 --image-shape 3,224,224 --lr-factor 0.1 --lr-step-epochs 30,60 "
    "--disp-batches 20 --mom 0.9 --model-prefix model",
]


@pytest.mark.parametrize("line", README_COMMANDS)
def test_commands_of_the_faq_and_of_gluoncv_are_understood(line):
    recipe = read(line.split())
    assert isinstance(build(full_name(recipe.model, recipe.num_layers), 10), gluon.HybridBlock)


@pytest.mark.parametrize(
    "text, expected", [("dynamic", (65536, True)), ("dynamic:0.5", (0.5, False))]
)
def test_the_first_dynamic_loss_scale(text, expected):
    scale = resolve(loss_scale_option(read(["--loss-scale", text]))["loss_scale"])
    assert (scale.scale, scale.searching) == expected


def test_options_of_other_scripts_name_their_replacement(capsys):
    for flag, replacement in REFUSED.items():
        with pytest.raises(SystemExit) as stop:
            read([flag, "1"])
        error = capsys.readouterr().err
        assert stop.value.code == 2
        assert f"{flag} is not an option here: {replacement}." in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "line, sentence",
    [
        (
            "--dtype int8",
            "argument --dtype: expected float32, float16, mixed_float16, bfloat16, mi",
        ),
        ("--batch-size 0", "expected a whole number of at least 1, got '0'"),
        (
            "--loss-scale 3",
            "expected dynamic, none or a power of two such as 1024, from 2^-24 to 2^24, or "
            "dynamic:1024 to begin there, got '3'",
        ),
        (f"--loss-scale dynamic:{2.0**-25}", "dynamic:1024 to begin there, got 'dynamic:2"),
        ("--loss-scale dynamic:", "expected a number above 0, got ''"),
        ("--gpus 0,x", "expected the numbers of devices, as in 0,1, got '0,x'"),
        ("--crop-ratio 0", "expected a number above 0 to 1, got '0'"),
        ("--rgb-std 58,0,57", "expected three numbers from 0.001 to 1000, as in 58,57,57, got "),
        ("--num-epoch 3", "unrecognized arguments: --num-epoch 3"),
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
        ("--amp", "mixed_float16", "float16"),
        ("--dtype params=float32,compute=tfloat32", "compute=tfloat32", "tfloat32"),
        ("", "float32", "float32"),
    ],
)
def test_a_dtype_is_the_name_of_a_policy(line, policy, computes_in):
    recipe = read(line.split())
    assert (recipe.policy, Policy(recipe.policy).compute_dtype) == (policy, computes_in)
