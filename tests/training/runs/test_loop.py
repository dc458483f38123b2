"""The training loop and its log lines."""

import logging
import re
import threading
from concurrent.futures import Future

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.training.data import TrainingBatches, ValidationBatches
from gluon_amp.training.runs import log
from gluon_amp.training.runs import loop as loop_module
from gluon_amp.training.runs.engines.gluon import GluonEngine
from gluon_amp.training.runs.history import Counts
from gluon_amp.training.runs.loop import Loop, TrainingError, measured
from gluon_amp.training.runs.objective import Objective
from gluon_amp.training.runs.schedule import Schedule
from gluon_amp.training.runs.seeds import step_seed
from gluon_amp.training.workers.group import Workers
from tests.log_lines import Lines
from tests.training.runs.engines.small import dense_net, points

import mxnet as mx
from mxnet import autograd, gluon, nd


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
        return [output.sum(axis=1) * 1e30 for output in outputs]


def small_loop(devices=None, dtype="float32", rate=0.1, objective=None, **options):
    devices = devices or [mx.cpu()]
    net = amp.cast(dense_net(devices), dtype)
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": rate, "momentum": 0.9})
    engine = GluonEngine(net, trainer, devices, objective or Objective(3))
    return Loop(engine, Schedule(rate, 5, 3, "constant"), **options)


def batches_of(data, size=4):
    return TrainingBatches(data, size)


def parameters(net):
    return [param.data(param.list_ctx()[0]).asnumpy() for param in net.collect_params().values()]


def test_an_epoch_is_what_a_plain_gluon_loop_does():
    data, loop = points(10), small_loop()
    result = loop.train(batches_of(data), 0)

    net = dense_net()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
    total = right = 0
    for inputs, labels in batches_of(data).epoch(0):
        with autograd.record():
            outputs = net(inputs)
            loss = loss_fn(outputs, labels)
        loss.backward()
        trainer.step(len(inputs))
        total += loss.sum().asscalar()
        right += (outputs.argmax(axis=1).asnumpy() == labels.asnumpy()).sum()
    for ours, plain in zip(parameters(loop.engine.net), parameters(net)):
        assert np.allclose(ours, plain, rtol=1e-6, atol=1e-7)
    assert (result.images, result.skipped) == (10, 0)
    assert result.loss == pytest.approx(total / 10, rel=1e-5)
    assert result.accuracy == right / 10


def test_two_devices_do_what_one_does():
    """12 images in batches of 4 and over 2 devices: 2 each."""
    data = points(12)
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


@pytest.mark.parametrize("images, trained", [(9, 8), (10, 10)])
def test_a_batch_smaller_than_the_devices_is_validated_but_not_trained_on(images, trained):
    data = points(images)
    loop = small_loop([mx.cpu(0), mx.cpu(1)])
    assert loop.train(batches_of(data), 0).images == trained
    assert loop.validate(ValidationBatches(data, 4), images, 0).images == images


def test_validation_is_the_mean_cross_entropy_of_every_image():
    """Batches of 4, 4 and 1, with smoothed labels in training, against float64."""
    data = points(9)
    objective = Objective(3, smoothing=0.1)
    loop = small_loop([mx.cpu(0), mx.cpu(1)], objective=objective)
    result = loop.validate(ValidationBatches(data, 4), 9, 0)
    outputs = loop.engine.net(nd.array(data.points)).asnumpy().astype("float64")
    right = outputs[np.arange(9), data.labels]
    expected = np.log(np.exp(outputs).sum(axis=1)) - right
    assert result.cross_entropy == pytest.approx(expected.mean(), rel=1e-6)


def test_the_line_of_a_batch(lines):
    loop = small_loop(log_interval=2)
    loop.train(batches_of(points(10)), 0)
    line, *advice = lines
    assert advice in ([], [log.INPUT_BOUND])
    epochs = loop.schedule.epochs
    assert line.startswith(f"Epoch 1/{epochs}  batch 2/3  loss ")
    assert re.search(r"  top-1 \d+\.\d\d %  lr 0\.1  [\d,]+ img/s  ETA [\d:]+$", line)


def test_a_skipped_step_is_logged_and_counted(lines):
    loop = small_loop(dtype="float16", log_interval=0)
    # gradients past 65504, at every scale
    loop.engine.objective = PastFloat16(3)
    result = loop.train(batches_of(points(10)), 0)
    assert (result.skipped, loop.skipped, loop.steps) == (3, 3, 3)
    assert np.isnan(result.loss)
    where, found = lines[0].split("  skipped: ")
    assert where.endswith("  batch 1/3") and where.startswith("Epoch 1/")
    assert found.startswith("loss scale 65536 -> 32768, overflow in dense")
    assert loop.engine.loss_scale.scale == 8192


def test_each_step_of_each_worker_seeds_its_random_numbers(monkeypatch):
    seeds, workers = [], Workers()
    workers.rank = 1
    monkeypatch.setattr(loop_module, "set_seed", seeds.append)
    small_loop(workers=workers, seed=7).train(batches_of(points(10)), 3)
    assert seeds == [step_seed(7, 1, 3, number) for number in range(3)]


def test_validation_must_count_every_image():
    with pytest.raises(TrainingError, match="validated 10 images, but there are 11"):
        small_loop().validate(ValidationBatches(points(10), 4), 11, 0)


class AtOnce:
    """A pool whose thread has waited for the devices, or never does."""

    def __init__(self, ends, late):
        self.ends, self.late = ends, late

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, finished):
        future = Future()
        if self.ends:
            future.set_result(finished() + self.late)
        return future


@pytest.mark.parametrize(
    "ends, late, waited",
    [
        (True, 0.0, 10 + 3 * 10),  # the devices wait for every batch
        (True, 4.0, 10 + 3 * 6),  # they end a step 4 seconds after the next batch is requested
        (False, 0.0, 10),  # the loop runs ahead of the devices, which wait for the first batch
    ],
)
def test_the_seconds_of_waiting(ends, late, waited, monkeypatch):
    monkeypatch.setattr(loop_module, "ThreadPoolExecutor", lambda *_: AtOnce(ends, late))
    counts, now = Counts(), [100.0]

    def batches():
        for number in range(4):
            now[0] += 10.0  # to load a batch
            yield number

    seen = []
    for batch in measured(batches(), lambda: None, counts, lambda: now[0]):
        seen.append(batch)
        now[0] += 105.0  # a step
    assert (seen, counts.waited) == ([0, 1, 2, 3], waited)


def test_waiting_does_not_hold_up_the_loop():
    """The step after next is dispatched while the device still works on the last one."""
    release, dispatched = threading.Event(), []
    for batch in measured(iter(range(3)), lambda: release.wait(10), Counts()):
        dispatched.append(batch)
        if batch == 2:
            release.set()
    assert dispatched == [0, 1, 2]
