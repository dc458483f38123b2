"""The recipe, the schedule, the loop and its log lines."""

import dataclasses
import logging
import re

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.command_line import UsageError
from gluon_amp.data import (
    Preprocessing,
    RecordFiles,
    Source,
    TrainingBatches,
    ValidationBatches,
    open_digits,
    open_records,
)
from gluon_amp.data.datasets import Augmented
from gluon_amp.recipes import log
from gluon_amp.recipes.devices import contexts, is_emulated
from gluon_amp.recipes.engine import GluonEngine
from gluon_amp.recipes.loop import Loop, TrainingError
from gluon_amp.recipes.meters import Mean, TopK
from gluon_amp.recipes.models import MXNET_MODELS, build, full_name, least_size
from gluon_amp.recipes.objective import Objective
from gluon_amp.recipes.recipe import REFUSED, Recipe, for_data, learning_rate, read
from gluon_amp.recipes.run import open_data, record_files
from gluon_amp.recipes.schedule import Schedule
from tests.images import write_records

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from mxnet.gluon.data import SimpleDataset
from mxnet.gluon.model_zoo import vision

# --------------------------------------------------------------------------- options

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
    "kv_store": "--kv-store --kvstore",
    "dataset": "--dataset",
    "data_dir": "--data-dir --data",
    "rec_train": "--rec-train --data-train",
    "rec_train_idx": "--rec-train-idx --data-train-idx",
    "rec_val": "--rec-val --data-val",
    "rec_val_idx": "--rec-val-idx --data-val-idx",
    "use_rec": "--use-rec",
    "num_classes": "--num-classes",
    "num_training_samples": "--num-training-samples --num-examples",
    "input_size": "--input-size --image-shape",
    "crop_ratio": "--crop-ratio",
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
    "momentum": ("0.5", 0.5),
    "lr_decay_epoch": ("10,20", (10, 20)),
    "optimizer": ("nag", "nag"),
}

SWITCHES = {
    "--amp", "--use-rec", "--no-wd", "--last-gamma", "--use-pretrained", "--deterministic",
    "--eval-only", "--test-io", "--from-scratch", "--freeze-features",
}  # fmt: skip
NEEDED = {
    "resume_epoch": "--resume-params p",
    "resume_params": "--resume-epoch 3",
    "resume_states": "--resume-params p --resume-epoch 3",
    "resume": "--save-dir d",
}


def test_every_option_is_listed_here():
    declared = {
        f.name: " ".join(f.metadata["flags"]) for f in dataclasses.fields(Recipe) if f.metadata
    }
    assert declared == FLAGS


@pytest.mark.parametrize(
    "name, flag", [(name, flag) for name, flags in FLAGS.items() for flag in flags.split()]
)
def test_aliases(name, flag):
    if flag in SWITCHES:
        arguments, expected = [flag], True
    else:
        text, value = TEXTS.get(name, ("3", 3))
        arguments, expected = [flag, text], value
    recipe, given = read([*arguments, *NEEDED.get(name, "").split()])
    assert name in given
    found = getattr(recipe, name)
    assert getattr(read([])[0], name) != found
    assert found == (expected if name in TEXTS or flag in SWITCHES else type(found)(text))


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
    recipe, given = read(line.split())
    assert isinstance(build(full_name(recipe.model, recipe.num_layers), 10), gluon.HybridBlock)
    assert len(given) >= 6


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
        ("--dtype float16 --amp", "--amp and --dtype float16 are two ways to choose a dtype"),
        ("--num-gpus 1 --gpus 0,1", "--num-gpus 1 and --gpus 0,1 disagree"),
        ("--cpus 2 --gpus 0", "--cpus and GPUs were both asked for"),
        ("--resume auto", "--resume auto looks into --save-dir"),
        ("--resume a --resume-epoch 3", "--resume and --resume-epoch are two ways"),
        ("--resume-epoch 3", "--resume-epoch and --resume-params belong together"),
        ("--resume-params a", "--resume-epoch and --resume-params belong together"),
        ("--epochs 3 --warmup-epochs 3", "--warmup-epochs 3 leaves none of --num-epochs 3"),
        ("--use-pretrained --pretrained-file a", "are two ways to begin"),
        ("--mode module --mixup", "--mode module has no --mixup"),
        ("--mode module --accumulate 2", "--mode module has no --accumulate"),
        ("--mode module --clip-grad 1", "--mode module has no --clip-grad"),
        ("--mode module --load-epoch 2", "--load-epoch reads from --model-prefix"),
    ],
)
def test_options_that_contradict_each_other(line, sentence):
    with pytest.raises(UsageError, match=sentence):
        read(line.split())


@pytest.mark.parametrize(
    "name, layers, full",
    [
        ("resnet-v1", 50, "resnet50_v1"),
        ("resnet", 18, "resnet18_v2"),
        ("resnet", None, "resnet50_v2"),
        ("vgg", None, "vgg16"),
        ("mobilenet", None, "mobilenet1.0"),
        ("resnet50_v1", 50, "resnet50_v1"),
        ("resnext", 101, "resnext101_32x4d"),
    ],
)
def test_names_of_mxnets_examples(name, layers, full):
    assert full_name(name, layers) == full


def test_a_number_of_layers_needs_a_family():
    with pytest.raises(UsageError, match="--num-layers 50 does not belong to --network alexnet"):
        full_name("alexnet", 50)


def test_defaults_are_those_of_the_published_recipe():
    recipe, given = read([])
    assert given == {}
    assert (recipe.model, recipe.dtype, recipe.batch_size) == ("resnet50_v1", "float32", 128)
    assert (recipe.num_epochs, recipe.lr_mode, recipe.lr_decay) == (90, "step", 0.1)
    assert recipe.lr_decay_epoch == (30, 60, 80)
    assert (recipe.optimizer, recipe.momentum, recipe.wd) == ("sgd", 0.9, 1e-4)


def test_a_data_set_fills_in_only_what_was_not_given():
    recipe, given = read(["--epochs", "90"])
    recipe = for_data(recipe, given, "digits")
    assert recipe.num_epochs == 90 and recipe.model == "cifar_resnet8_v1"
    assert for_data(*read([]), "imagenet") == Recipe()


@pytest.mark.parametrize(
    "line, sentence",
    [
        ("--dtype int8", "argument --dtype: invalid choice: 'int8'"),
        ("--batch-size 0", "expected a whole number of at least 1, got '0'"),
        ("--batch-size 2.5", "expected a whole number of at least 1, got '2.5'"),
        ("--epochs -1", "expected a whole number from 1 to 1000000, got '-1'"),
        ("--seed -1", "expected a whole number of at least 0, got '-1'"),
        ("--lr fast", "expected a number of at least 0, got 'fast'"),
        ("--lr nan", "expected a number of at least 0, got 'nan'"),
        (
            "--loss-scale 3",
            "expected dynamic, none or a power of two such as 1024, from 2^-24 to 2^24, got '3'",
        ),
        ("--loss-scale inf", "expected a number above 0, got 'inf'"),
        ("--gpus 0,x", "expected the numbers of devices, as in 0,1, got '0,x'"),
        ("--lr-steps 30,-1", "expected whole numbers of at least 0, as in 30,60,80, got '30,-1'"),
        ("--crop-ratio 1.2", "expected a number above 0 to 1, got '1.2'"),
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


def test_record_files_are_found_beside_each_other(tmp_path):
    recipe, _ = read(["--rec-train", "t.rec", "--rec-val", "v.rec", "--rec-val-idx", "w.idx"])
    found = record_files(recipe)
    assert [str(path) for path in dataclasses.astuple(found)] == "t.rec t.idx v.rec w.idx".split()
    recipe, _ = read(["--use-rec", "--data-dir", str(tmp_path)])
    assert record_files(recipe).val_idx == tmp_path / "rec" / "val.idx"
    with pytest.raises(UsageError, match="--rec-val is missing"):
        record_files(read(["--rec-train", "t.rec"])[0])


# --------------------------------------------------------------------------- learning rate


@pytest.mark.parametrize("total, rate", [(8 * 128, 0.4), (8 * 256, 0.8), (1 * 256, 0.1)])
def test_learning_rate_follows_the_total_batch(total, rate):
    assert learning_rate(Recipe(), total) == pytest.approx(rate, rel=1e-12)
    assert learning_rate(Recipe(lr=0.25), total) == 0.25
    assert learning_rate(for_data(Recipe(), {}, "digits"), 256) == pytest.approx(0.4)


@pytest.mark.parametrize(
    "epoch, rate",
    [(0, 1), (29, 1), (30, 0.1), (59, 0.1), (60, 0.01), (79, 0.01), (80, 1e-3), (89, 1e-3)],
)
def test_step_decays_at_the_first_batch_of_its_epoch(epoch, rate):
    schedule = Schedule(1.0, 90, 5004, "step")
    assert schedule(epoch, 0) == pytest.approx(rate)
    assert schedule(epoch, 5003) == pytest.approx(rate)


def test_warm_up_rises_to_the_full_rate():
    schedule = Schedule(0.8, 90, 4, "step", warmup_epochs=2)
    rates = [schedule(epoch, batch) for epoch in range(3) for batch in range(4)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.8, 0.8, 0.8, 0.8])


@pytest.mark.parametrize(
    "mode, rates",
    [
        ("cosine", [1, 0.853553, 0.5, 0.146447]),
        ("linear", [1, 0.75, 0.5, 0.25]),
        ("poly", [1, 0.5625, 0.25, 0.0625]),
        ("constant", [1, 1, 1, 1]),
    ],
)
def test_shapes_fall_from_the_end_of_the_warm_up(mode, rates):
    schedule = Schedule(1.0, 4, 2, mode, warmup_epochs=2)
    assert [schedule(e, b) for e in (2, 3) for b in (0, 1)] == pytest.approx(rates, abs=1e-6)


def test_a_warm_up_as_long_as_the_run_is_refused():
    with pytest.raises(ValueError, match="warmup_epochs is 2, expected fewer than the 2 epochs"):
        Schedule(1.0, 2, 1, "cosine", warmup_epochs=2)


@pytest.mark.parametrize(
    "data, epochs, warmup",
    [("digits", 24, 2), ("digits", 2, 1 / 6), ("imagenet", 90, 5), ("imagenet", 3, 1 / 6),
     ("imagenet", 180, 5)],
)  # fmt: skip
def test_a_shorter_run_warms_up_for_the_same_share_of_it(data, epochs, warmup):
    given = {"num_epochs": epochs}
    recipe = for_data(Recipe(**given), given, data)
    assert recipe.warmup_epochs == pytest.approx(warmup)
    schedule = Schedule(1.0, epochs, 6, "constant", recipe.warmup_epochs)
    assert schedule(epochs - 1, 5) == 1.0
    explicit = {**given, "warmup_epochs": 1}
    assert for_data(Recipe(**explicit), explicit, data).warmup_epochs == 1


def test_the_epoch_in_which_the_warm_up_ends_goes_on_at_the_full_rate():
    schedule = Schedule(0.6, 2, 6, "constant", warmup_epochs=0.5)
    assert [schedule(0, n) for n in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.6, 0.6, 0.6])


# --------------------------------------------------------------------------- meters


def test_top_k_counts_as_numpy_does():
    outputs = np.random.randn(50, 12).astype("float32")
    labels = np.random.randint(0, 12, 50)
    best = np.argsort(-outputs, axis=1)
    for k in (1, 5):
        meter = TopK(k)
        for at in (0, 20, 40):
            part = slice(at, at + 20)
            meter.update(nd.array(labels[part], dtype="int32"), nd.array(outputs[part]))
        assert meter.images == 50
        assert meter.right == (best[:, :k] == labels[:, None]).sum()


def test_top_k_is_exact_past_2048_classes():
    outputs = nd.zeros((1, 4096))
    outputs[0, 2049] = 1
    meter = TopK()
    meter.update(nd.array([2049]), outputs)
    meter.update(nd.array([2048]), outputs)
    assert (meter.right, meter.share) == (1, 0.5)


def test_top_5_of_three_classes_is_always_right():
    meter = TopK(5)
    meter.update(nd.array([0, 1, 2]), nd.random.normal(shape=(3, 3)))
    assert meter.share == 1


def test_mean_weighs_every_value_the_same():
    mean = Mean()
    mean.update(nd.array([1, 2, 3]))
    mean.update(nd.array([6]))
    assert mean.value == 3
    assert np.isnan(Mean().value) and np.isnan(TopK().share)


# --------------------------------------------------------------------------- loop


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@pytest.fixture
def lines():
    handler = Lines()
    log.logger.addHandler(handler)
    log.logger.setLevel(logging.INFO)
    yield handler.lines
    log.logger.removeHandler(handler)
    log.logger.setLevel(logging.NOTSET)


class PastFloat16(Objective):
    def losses(self, outputs, targets):
        return [output.sum(axis=1) * 1e5 for output in outputs]


def blobs(count=10, seed=0):
    """Return labelled points in three clusters."""
    generator = np.random.RandomState(seed)
    labels = np.arange(count, dtype=np.int32) % 3
    points = generator.randn(count, 4).astype("float32") + 3 * np.eye(4, dtype="float32")[labels]
    return SimpleDataset(list(zip(points, labels)))


def small_net(devices):
    mx.random.seed(1)
    net = nn.HybridSequential()
    net.add(nn.Dense(8, activation="relu", in_units=4), nn.Dense(3, in_units=8))
    net.initialize(mx.init.Xavier(), ctx=devices)
    return net


def small_loop(devices=None, dtype="float32", rate=0.1, objective=None, **options):
    devices = devices or [mx.cpu()]
    net = amp.cast(small_net(devices), dtype)
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": rate, "momentum": 0.9})
    engine = GluonEngine(net, trainer, objective or Objective(3), devices)
    return Loop(engine, Schedule(rate, 5, 3, "constant"), **options)


def batches_of(data, size=4):
    return TrainingBatches(Augmented(data, lambda image, _: image, 0), size)


def parameters(net):
    return [param.data(param.list_ctx()[0]).asnumpy() for param in net.collect_params().values()]


def test_an_epoch_is_what_a_plain_gluon_loop_does():
    data, loop = blobs(), small_loop()
    result = loop.train(batches_of(data), 0)

    net = small_net(mx.cpu())
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
    total = right = 0
    for points, labels in batches_of(data).epoch(0):
        with autograd.record():
            outputs = net(points)
            loss = loss_fn(outputs, labels)
        loss.backward()
        trainer.step(len(points))
        total += loss.sum().asscalar()
        right += (outputs.argmax(axis=1).asnumpy() == labels.asnumpy()).sum()
    for ours, plain in zip(parameters(loop.engine.net), parameters(net)):
        assert np.allclose(ours, plain, rtol=1e-6, atol=1e-7)
    assert (result.images, result.skipped) == (10, 0)
    assert result.loss == pytest.approx(total / 10, rel=1e-5)
    assert result.accuracy == right / 10


def test_two_devices_do_what_one_does():
    """12 images in batches of 4 and over 2 devices: 2 each."""
    data = blobs(12)
    one, two = small_loop(), small_loop([mx.cpu(0), mx.cpu(1)])
    for epoch in range(2):
        a, b = one.train(batches_of(data), epoch), two.train(batches_of(data), epoch)
        assert b.loss == pytest.approx(a.loss, rel=1e-5)
        assert b.accuracy == a.accuracy
    for single, double in zip(parameters(one.engine.net), parameters(two.engine.net)):
        assert np.allclose(single, double, rtol=1e-5, atol=1e-6)
    for param in two.engine.net.collect_params().values():
        first, second = param.list_data()
        assert np.array_equal(first.asnumpy(), second.asnumpy())


def test_a_batch_smaller_than_the_devices_is_validated_but_not_trained_on():
    data = blobs(9)
    loop = small_loop([mx.cpu(0), mx.cpu(1)])
    assert loop.train(batches_of(data), 0).images == 8
    assert loop.validate(ValidationBatches(data, 4), 9, 0).images == 9


def test_max_batches():
    loop = small_loop(max_batches=2)
    assert loop.train(batches_of(blobs()), 0).images == loop.images(batches_of(blobs())) == 8
    assert loop.steps == 2


def test_log_lines_are_gluoncvs(lines):
    loop = small_loop(log_interval=2)
    trained = loop.train(batches_of(blobs()), 3)
    checked = loop.validate(ValidationBatches(blobs(), 4), 10, 3)
    batch, training, speed, scale, waited, *advice, validation, validated = lines
    assert advice in ([], [log.INPUT_BOUND])
    head, rate, metric, lr = batch.split("\t")
    assert head == "Epoch[3] Batch [1]"
    assert rate.startswith("Speed: ") and rate.endswith(" samples/sec")
    assert float(rate.split()[1]) > 0
    assert metric.startswith("accuracy=0.") and lr == "lr=0.100000"
    assert training == f"[Epoch 3] training: accuracy={trained.accuracy:f}"
    images = int(trained.images_per_second)
    assert speed == f"[Epoch 3] speed: {images} samples/sec\ttime cost: {trained.seconds:f}"
    loss = f"loss={trained.loss:f}"
    assert scale == f"[Epoch 3] {loss}\tloss scale: 1\tskipped steps: 0 (0 in all)"
    assert re.fullmatch(r"\[Epoch 3\] waited for data: \d+ % of the time", waited)
    assert validation == f"[Epoch 3] validation: err-top1={1 - checked.top1:f} err-top5=0.000000"
    assert validated == "[Epoch 3] validated 10/10"


def test_advice_fits_80_columns_behind_the_loggers_name():
    told = logging.Formatter(logging.BASIC_FORMAT).format(
        logging.LogRecord(log.logger.name, logging.INFO, "", 0, log.INPUT_BOUND, (), None)
    )
    assert max(map(len, told.splitlines())) <= 80


def test_a_skipped_step_is_logged_and_counted(lines):
    loop = small_loop(dtype="float16", log_interval=0)
    # gradients past 65504
    loop.engine.objective = PastFloat16(3)
    result = loop.train(batches_of(blobs()), 0)
    assert (result.skipped, loop.skipped, loop.steps) == (3, 3, 3)
    assert np.isnan(result.loss)
    assert lines[0].startswith(
        "Epoch[0] Batch [0] skipped: loss scale 65536 -> 32768, overflow in dense"
    )
    (told,) = [line for line in lines if "in all" in line]
    assert told.endswith("\tloss scale: 8192\tskipped steps: 3 (3 in all)")


def test_a_loss_that_is_no_number_stops_the_run():
    loop = small_loop(rate=1e30)
    with pytest.raises(TrainingError, match="the loss became nan in epoch"):
        for epoch in range(3):
            loop.train(batches_of(blobs()), epoch)


@pytest.mark.parametrize("devices", [1, 2])
def test_five_validations_of_packed_images_count_ten_each(tmp_path, devices):
    for part in ("train", "val"):
        write_records(tmp_path, part, range(10))
    paths = [tmp_path / name for name in ("train.rec", "train.idx", "val.rec", "val.idx")]
    source: Source = open_records(RecordFiles(*paths), preprocessing=Preprocessing(24))
    contexts_used = [mx.cpu(number) for number in range(devices)]
    net = nn.HybridSequential()
    net.add(nn.Flatten(), nn.Dense(10, in_units=3 * 24 * 24))
    net.initialize(ctx=contexts_used)
    loop = small_loop(contexts_used)
    loop.engine.net = net
    batches = ValidationBatches(source.val, 4)
    passes = [loop.validate(batches, 10, epoch) for epoch in range(5)]
    assert {validation.images for validation in passes} == {10}
    assert len(set(passes)) == 1

    images = nd.stack(*[source.val[n][0] for n in range(10)])
    answers = net(images.as_in_context(contexts_used[0])).argmax(axis=1).asnumpy()
    assert passes[0].top1 == (answers == np.arange(10)).mean()


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("cifar_resnet8_v1", 32), ("resnet18_v2", 32), ("mobilenetv2_0.25", 32), ("vgg11_bn", 32),
        ("alexnet", 64), ("squeezenet1.1", 224), ("densenet121", 224), ("inceptionv3", 299),
        ("googlenet", 224), ("cifar_residualattentionnet56", 32), ("residualattentionnet56", 224),
        ("shufflenet_v2", 32), ("hrnet_w18_small_v1_c", 32),
    ],
)  # fmt: skip
def test_the_least_size_of_a_network(name, size, capsys):
    assert least_size(name, 5) == size
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("resnet50_v1b_gn", "--model resnet50_v1b_gn cannot be built by GluonCV with MXNet 1.9.1"),
        ("resnext101e_64x4d", "--model resnext101e_64x4d cannot be built by GluonCV with MXNet"),
        ("nasnet_4_1056", "--model nasnet_4_1056 cannot be built by GluonCV with MXNet 1.9.1"),
        ("resnet18_v1b_0.89", "--model resnet18_v1b_0.89 fits no size of images from 32 to 512"),
    ],
)
def test_a_network_without_a_least_size_is_one_sentence(name, sentence):
    with pytest.raises(UsageError) as caught:
        least_size(name, 5)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_digits_are_as_large_as_the_network_needs():
    for line, size in (("", 32), ("--model alexnet", 64), ("--model alexnet --input-size 96", 96)):
        recipe, given = read(["--dataset", "digits", *line.split()])
        data, _ = open_data(recipe, given)
        assert data.image_shape == (3, size, size)


def test_validation_must_count_every_image():
    with pytest.raises(TrainingError, match="validated 10 images, but there are 11"):
        small_loop().validate(ValidationBatches(blobs(), 4), 11, 0)


# --------------------------------------------------------------------------- the rest


def test_mxnets_models_are_all_listed():
    with pytest.raises(ValueError) as error:
        vision.get_model("no such model")
    assert set(str(error.value).split("\n\t")[1:]) == set(MXNET_MODELS)


def test_gluoncvs_classifiers_are_found():
    net = build("cifar_resnet8_v1", 10)
    net.initialize()
    assert net(nd.zeros((1, 3, 32, 32))).shape == (1, 10)
    assert type(build("resnet50_v1b", 7)).__module__.startswith("gluoncv")


@pytest.mark.parametrize(
    "name, hint",
    [
        ("resnet5", "did you mean .*resnet50_v1"),
        ("cifar_resnet20", "did you mean .*cifar_resnet20_v1"),
        ("RESNET50_V1", "did you mean resnet50_v1,"),
        ("ssd_300_vgg16_atrous_voc", "no image classifier"),
        ("", "resnet50_v1, for example, is one"),
    ],
)
def test_an_unknown_model_gets_near_matches(name, hint):
    with pytest.raises(UsageError, match=hint):
        build(name, 10)


@pytest.mark.skipif(mx.context.num_gpus() > 0, reason="this machine has a GPU")
def test_devices_on_a_machine_without_gpus():
    assert contexts() == contexts(num_gpus=0) == contexts(gpus=()) == [mx.cpu()]
    with pytest.raises(UsageError, match="GPU 0 was asked for, but MXNet sees no GPU here"):
        contexts(gpus=(0,))
    with pytest.raises(UsageError, match="GPU 0 was asked for"):
        contexts(num_gpus=1)


def test_devices_are_named_once():
    with pytest.raises(UsageError, match="--gpus 0,0 names a GPU twice"):
        contexts(gpus=(0, 0))


def test_only_float16_on_a_cpu_is_emulated():
    assert is_emulated("float16", [mx.cpu()])
    assert not is_emulated("float16", [mx.gpu(0)])
    assert not is_emulated("bfloat16", [mx.cpu()]) and not is_emulated("float32", [mx.cpu()])


def test_the_digits_can_be_learned():
    """Every third digit, a dense layer, four epochs: far above chance in float16."""
    source = open_digits()
    data = SimpleDataset([source.train[n] for n in range(0, 1437, 3)])
    net = nn.HybridSequential()
    net.add(nn.Flatten(), nn.Dense(10, in_units=3 * 32 * 32))
    net.initialize(mx.init.Xavier())
    loop = small_loop(dtype="float16")
    loop.engine.net = amp.cast(net, "float16")
    loop.engine.trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
    loop.schedule = Schedule(0.01, 4, 8, "constant")
    for epoch in range(4):
        loop.train(batches_of(data, 64), epoch)
    assert loop.validate(ValidationBatches(source.val, 100), 360, 0).top1 > 0.8
