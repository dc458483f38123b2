"""Runs that are killed and go on: as if nothing had happened."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

import gluon_amp  # noqa: F401
from gluon_amp.base.messages import UsageError
from gluon_amp.training.runs import log, run, script
from gluon_amp.training.runs import network as network_build
from gluon_amp.training.runs.checkpoints import BEST, Checkpoints, Position
from gluon_amp.training.runs.engines.build import build_engine
from gluon_amp.training.runs.history import Counts, EpochResult, History, Validation
from gluon_amp.training.runs.interruption import Interruption, RunInterruptedError
from gluon_amp.training.runs.loop import Loop
from gluon_amp.training.runs.objective import Objective
from gluon_amp.training.runs.recipe import Recipe, read
from gluon_amp.training.runs.schedule import Schedule
from gluon_amp.training.runs.seeds import step_seed
from gluon_amp.training.workers.group import Workers
from tests import ROOT
from tests.training.runs.scripts import OF_THE_CLOCK, environment

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import nn

SCRIPT = ROOT / "scripts" / "train_imagenet.py"
# three epochs of five batches, in float16, with scales that move
RUN = (
    "--dtype float16 --batch-size 32 --max-batches 5 --epochs 3 --warmup-epochs 1 --log-interval 1 "
    "--seed 7"
).split()
PARAMS = "digits-cifar_resnet8_v1-2.params"


@pytest.fixture
def home(tmp_path):
    """No ImageNet, whatever this machine has."""
    return environment(HOME=str(tmp_path / "home"))


def start(home, folder, *arguments):
    return subprocess.Popen(
        [
            sys.executable,
            "-u",
            str(SCRIPT),
            *RUN,
            "--save-dir",
            str(folder / "saved"),
            "--summary-json",
            str(folder / "summary.json"),
            *map(str, arguments),
        ],
        env=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    return out


def until(process, text):
    """Read the lines of a run up to one that holds a text."""
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(process.stderr.read())


def outcome(folder):
    """Parameters in all their bits, and the summary but for its times."""
    arrays = mx.nd.load(str(folder / "saved" / PARAMS))
    summary = json.loads((folder / "summary.json").read_text())
    kept = {k: v for k, v in summary.items() if k not in OF_THE_CLOCK}
    return {k: v.asnumpy().tobytes() for k, v in arrays.items()}, kept


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    home = environment(HOME=str(folder / "home"))
    finish(start(home, folder))
    return outcome(folder)


@pytest.mark.slow
def test_terminated_in_mid_epoch(home, tmp_path, uninterrupted):
    process = start(home, tmp_path)
    until(process, "Epoch[1] Batch [1]")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 128 + signal.SIGTERM
    assert err == (
        "signal 15: the run saves and ends after this batch or validation;\n"
        "a second signal ends it at once.\n"
        "train_imagenet.py: interrupted by signal 15: saved; go on with --resume auto.\n"
    )
    assert "Saved " in out
    position = next(line for line in out.splitlines() if line.startswith("Saved "))
    assert "epoch001-sample0000" in position

    out = finish(start(home, tmp_path, "--resume", "auto"))
    assert "Going on from " in out
    assert "Epoch[0]" not in out
    assert outcome(tmp_path) == uninterrupted


@pytest.mark.slow
def test_killed_in_mid_epoch_twice(home, tmp_path, uninterrupted):
    process = start(home, tmp_path, "--save-batches", "2")
    until(process, "Epoch[0] Batch [3]")
    process.kill()
    process.communicate()
    process = start(home, tmp_path, "--save-batches", "2", "--resume", "auto")
    until(process, "Epoch[2] Batch [2]")
    process.kill()
    process.communicate()
    names = sorted(path.name for path in (tmp_path / "saved").glob("epoch*.ckpt"))
    assert names[-1] == "epoch002-sample00000064.ckpt"
    # one written in part, as a full disk or a dead machine leaves it
    newest = tmp_path / "saved" / names[-1]
    newest.write_bytes(newest.read_bytes()[:-1000])
    out = finish(start(home, tmp_path, "--save-batches", "2", "--resume"))
    assert "Skipped: " in out and names[-1] in out
    assert outcome(tmp_path) == uninterrupted


def test_checkpoints_kept_and_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    saved = tmp_path / "saved"
    options = [*RUN, "--max-batches", "3", "--save-dir", str(saved)]
    assert script.run(read, [*options, "--save-batches", "2", "--keep", "2"]) == 0
    assert sorted(path.name for path in saved.glob("*.ckpt")) == [
        BEST,
        "epoch002-sample00000064.ckpt",
        "epoch003-sample00000000.ckpt",
    ]
    capsys.readouterr()
    for arguments, sentence in (
        ([], "holds checkpoints of an earlier run: go on with it by --resume auto"),
        (["--resume", "auto", "--model", "cifar_resnet20_v1"], "with the model cifar_resnet8_v1"),
        (["--resume", "auto", "--dtype", "float32"], "with --dtype float16"),
        (["--resume", str(saved / "none.ckpt")], "none.ckpt cannot be read"),
        (["--resume", str(saved / PARAMS)], "by amp.save_checkpoint"),
        (["--resume", str(saved / "epoch002-sample00000064.ckpt")], "holds later checkpoints than"),
    ):
        assert script.run(read, [*options, *arguments]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert sentence in error
    # a finished run has nothing left to do, and says its results again
    assert script.run(read, [*options, "--resume", "auto"]) == 0
    assert "top-1" in capsys.readouterr().out


def test_a_history_survives_json():
    history = History(
        [EpochResult(0.5, 1.25, 10, 3.0, 0.5, 1)], [None, Validation(0.25, 0.75, 1.5, 8)], 7, 1
    )
    assert History.restored(json.loads(json.dumps(history.state()))) == history
    assert history.best_epoch == 1
    assert History(validated=[None]).best_epoch is None
    scores = [Validation(top1, 1.0, 0.5, 8) for top1 in (0.5, 0.75, 0.75)]
    assert History(validated=scores).best_epoch == 1


def test_counts_go_on_where_they_were():
    outputs, labels = nd.array([[0, 1], [1, 0], [0, 1]]), nd.array([1, 1, 1])
    whole, part = Counts(), Counts()
    for counts in (whole, part):
        counts.accuracy.update(labels, outputs)
        counts.loss.update(nd.array([0.1, 0.2, 0.3]))
        counts.skipped += 1
    part = Counts.restored(json.loads(json.dumps(part.state())))
    for counts in (whole, part):
        counts.accuracy.update(labels, outputs)
        counts.loss.update(nd.array([0.7]))
    assert part.result() == whole.result()
    assert whole.result().accuracy == 4 / 6
    assert whole.result().loss == pytest.approx(1.3 / 4)


def test_names_of_checkpoints_sort_by_position(tmp_path):
    for name in (
        "epoch002-sample00000000.ckpt",
        "epoch001-sample00000100.ckpt",
        "epoch001-sample00000032.ckpt",
        BEST,
        "epoch1.ckpt.tmp",
    ):
        (tmp_path / name).write_bytes(b"")
    existing = Checkpoints(tmp_path, 3).existing()
    assert [position for position, _ in existing] == [
        Position(1, 32),
        Position(1, 100),
        Position(2, 0),
    ]
    with pytest.raises(UsageError, match="holds 3 checkpoints and none can be read"):
        Checkpoints(tmp_path, 3).newest()


def test_an_empty_folder_has_no_newest(tmp_path):
    assert Checkpoints(tmp_path, 3).newest() is None


def test_the_first_signal_is_noted_and_the_handler_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with Interruption() as interruption:
        assert interruption.number is None
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        assert interruption.number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    assert RunInterruptedError(signal.SIGINT, "x").status == 130


class Noise(nn.HybridBlock):
    """Adds noise, by an operator other than Dropout."""

    def hybrid_forward(self, F, x):
        return x + F.random.normal_like(x) if autograd.is_training() else x


class Scaled(Objective):
    """A loss that draws from the generators of numpy and of Python."""

    def losses(self, outputs, targets):
        factor = np.random.uniform(0.5, 1) + random.uniform(0.5, 1)
        return [factor * loss for loss in super().losses(outputs, targets)]


def trained(mode, rank, disturbed=False, random_layer=None, objective=None):
    """Weights after two steps of one of several workers, all of which see the same images."""
    mx.random.seed(0)
    with mx.name.NameManager():
        net = nn.HybridSequential()
        net.add(nn.Flatten(), random_layer or nn.Dropout(0.5), nn.Dense(3, in_units=32))
    net.initialize(mx.init.One())
    data = SimpleNamespace(classes=3, image_shape=(2, 4, 4))
    workers = Workers()
    workers.rank = rank
    recipe = Recipe(seed=7, mode=mode, dtype="float32", batch_size=4)
    engine = build_engine(recipe, net, data, [mx.cpu()], 0.1, workers)
    if objective:
        engine.objective = objective
    images, labels = nd.array(np.random.RandomState(1).rand(4, 2, 4, 4)), nd.array([0, 1, 2, 0])
    loop = Loop(engine, Schedule(0.1, 4, 2, "constant"), workers, log_interval=0, seed=7)
    batches = SimpleNamespace(images=8, batch_size=4, epoch=lambda *at: [(images, labels)] * 2)

    def disturb(done, counts):
        if disturbed:
            nd.random.uniform(shape=5), np.random.rand(), random.random()

    with log.silence():
        loop.train(batches, epoch=3, after_update=disturb)
    if mode == "module":
        return engine.module.get_params()[0]["dense0_weight"].asnumpy()
    return net[2].weight.data().asnumpy()


@pytest.mark.parametrize(
    "mode, draws",
    [
        ("hybrid", {}),
        ("module", {}),
        ("hybrid", {"random_layer": Noise()}),
        ("hybrid", {"random_layer": nn.HybridLambda("identity"), "objective": Scaled(3)}),
    ],
)
def test_each_worker_draws_its_own_random_numbers_and_draws_them_again(mode, draws):
    """Those of Dropout, of any other operator, of numpy and of Python."""
    first, second, third = (trained(mode, rank, **draws) for rank in range(3))
    assert np.array_equal(trained(mode, 0, disturbed=True, **draws), first)
    assert np.array_equal(trained(mode, 1, disturbed=True, **draws), second)
    for one, other in ((first, second), (first, third), (second, third)):
        assert not np.array_equal(one, other)


def test_the_first_step_leaves_each_device_its_own_statistics():
    net = nn.HybridSequential()
    net.add(nn.BatchNorm(in_channels=2), nn.Flatten(), nn.Dense(3, in_units=32))
    devices = [mx.cpu(0), mx.cpu(1)]
    net.initialize(ctx=devices)
    data = SimpleNamespace(classes=3, image_shape=(2, 4, 4))
    recipe = Recipe(seed=7, dtype="float32", batch_size=2)
    engine = build_engine(recipe, net, data, devices, 0.1, Workers())
    images = nd.concat(nd.zeros((2, 2, 4, 4)), nd.ones((2, 2, 4, 4)), dim=0)
    engine.step([(images, nd.array([0, 1, 2, 0]))], epoch=0, number=0, counts=Counts())
    means = [array.asnumpy() for array in net[0].running_mean.list_data()]
    np.testing.assert_allclose(means, [[0, 0], [0.1, 0.1]], rtol=1e-6)


def test_seeds_of_steps():
    seeds = [step_seed(*at) for at in np.ndindex(3, 4, 5, 6)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert step_seed(7, 0, 1, 3) == 1014317233  # of runs with one worker before there were ranks


def test_dropout_goes_on_as_if_nothing_had_happened(monkeypatch, tmp_path):
    """MXNet's random generator cannot be saved, so every step seeds it."""

    def build(model, classes):
        net = nn.HybridSequential()
        net.add(nn.Flatten(), nn.Dropout(0.5), nn.Dense(classes))
        return net

    def train(folder, *arguments):
        options = (
            "--dataset digits --batch-size 32 --max-batches 2 --warmup-epochs 0 "
            "--lr-mode constant --log-interval 0"
        )
        folder = tmp_path / folder
        run.train(*read([*options.split(), "--save-dir", str(folder), *arguments]))
        saved = nd.load(str(sorted(folder.glob("*.params"))[-1]))
        return {name: array.asnumpy().tobytes() for name, array in saved.items()}

    seeds, seed = [], mx.random.seed
    monkeypatch.setattr(network_build, "build", build)
    monkeypatch.setattr(mx.random, "seed", lambda number: seeds.append(number) or seed(number))
    whole = train("whole", "--epochs", "2")
    assert len(set(seeds[-4:])) == 4  # one for each step
    train("parts", "--epochs", "1")
    assert train("parts", "--epochs", "2", "--resume", "auto") == whole
