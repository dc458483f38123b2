"""The recipe, the schedule, the loop and its log lines."""

import dataclasses
import logging
import re

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.command_line import UsageError
from gluon_amp.data import (
    Look,
    RecordFiles,
    Source,
    TrainingBatches,
    open_digits,
    open_records,
    validation_batches,
)
from gluon_amp.data.augment import Augmented
from gluon_amp.recipes import log
from gluon_amp.recipes.devices import contexts, is_emulated
from gluon_amp.recipes.engine import GluonEngine
from gluon_amp.recipes.loop import Loop, TrainingError
from gluon_amp.recipes.models import MXNET_MODELS, build, full_name, least_size
from gluon_amp.recipes.objective import Objective
from gluon_amp.recipes.recipe import read
from gluon_amp.recipes.run import open_data, record_files
from gluon_amp.recipes.schedule import Schedule
from tests.images import write_records

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from mxnet.gluon.data import SimpleDataset
from mxnet.gluon.model_zoo import vision

# --------------------------------------------------------------------------- names and files


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


def test_record_files_are_found_beside_each_other(tmp_path):
    recipe, _ = read(["--rec-train", "t.rec", "--rec-val", "v.rec", "--rec-val-idx", "w.idx"])
    found = record_files(recipe)
    assert [str(path) for path in dataclasses.astuple(found)] == "t.rec t.idx v.rec w.idx".split()
    recipe, _ = read(["--use-rec", "--data-dir", str(tmp_path)])
    assert record_files(recipe).val_idx == tmp_path / "rec" / "val.idx"
    with pytest.raises(UsageError, match="--rec-val is missing"):
        record_files(read(["--rec-train", "t.rec"])[0])


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
    assert loop.validate(validation_batches(data, 4), 9, 0).images == 9


def test_max_batches():
    loop = small_loop(max_batches=2)
    assert loop.train(batches_of(blobs()), 0).images == loop.images(batches_of(blobs())) == 8
    assert loop.steps == 2


def test_log_lines_are_gluoncvs(lines):
    loop = small_loop(log_interval=2)
    trained = loop.train(batches_of(blobs()), 3)
    checked = loop.validate(validation_batches(blobs(), 4), 10, 3)
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
    source: Source = open_records(RecordFiles(*paths), look=Look(24))
    contexts_used = [mx.cpu(number) for number in range(devices)]
    net = nn.HybridSequential()
    net.add(nn.Flatten(), nn.Dense(10, in_units=3 * 24 * 24))
    net.initialize(ctx=contexts_used)
    loop = small_loop(contexts_used)
    loop.engine.net = net
    batches = validation_batches(source.val, 4)
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
        small_loop().validate(validation_batches(blobs(), 4), 11, 0)


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
    assert loop.validate(validation_batches(source.val, 100), 360, 0).top1 > 0.8
