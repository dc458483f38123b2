"""A run that saves, diverges, waits for data, changes its batch size or ends early."""

import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.base.messages import UsageError
from gluon_amp.training.networks.models import build
from gluon_amp.training.runs.checkpoints import Checkpoints, Position, SavingError
from gluon_amp.training.runs.history import Counts, History
from gluon_amp.training.runs.interruption import Interruption, RunInterruptedError
from gluon_amp.training.runs.keeper import Keeper
from gluon_amp.training.runs.loop import DivergedError, measured
from gluon_amp.training.runs.recipe import read
from gluon_amp.training.runs.script import run as run_script
from gluon_amp.training.workers.group import Workers
from tests import ROOT
from tests.training.runs.scripts import environment

import mxnet as mx
from mxnet import autograd, gluon, nd

pytestmark = pytest.mark.usefixtures("no_imagenet")
SCRIPT = ROOT / "scripts" / "train_imagenet.py"
TINY = "--batch-size 32 --max-batches 4 --epochs 1 --warmup-epochs 0 --log-interval 1".split()


def run(*arguments):
    """Run train_imagenet.py in this process; return its status."""
    return run_script(read, [*TINY, *map(str, arguments)])


# ------------------------------------------------------------------------------ waiting for data


class Clock:
    """A device and a loader that take simulated time, seen by one clock."""

    def __init__(self, load, compute):
        self.load, self.compute = load, compute
        self.now = self.busy_until = 0.0
        self.stepped = threading.Event()

    def batches(self, number):
        """A loader that prepares one batch while the last one is used."""
        there = 0.0
        for _ in range(number):
            there = max(there, self.now - self.load) + self.load
            self.now = max(self.now, there)
            yield self.now

    def dispatch(self):
        """Start a step and return at once; the device runs its steps one after the other."""
        self.busy_until = max(self.now, self.busy_until) + self.compute


@pytest.mark.parametrize(
    "load, compute, share",
    [
        (100.0, 105.0, 100 / (100 + 16 * 105)),  # waits for the first batch only
        (10.0, 105.0, 10 / (10 + 16 * 105)),
        (200.0, 105.0, (200 + 15 * 95) / (16 * 200 + 105)),
        (200.0, 0.0, 1.0),
        (0.0, 50.0, 0.0),
    ],
)
@pytest.mark.parametrize("ahead", [False, True], ids=["synchronous", "runs ahead"])
def test_the_share_of_waiting(load, compute, share, ahead):
    clock, counts = Clock(load, compute), Counts()
    ends = []

    def wait():  # called by the watching thread, of a step that was dispatched before
        ends.append(clock.busy_until)

    class Times:
        """The watching thread reads the step's end, the loop its own time."""

        def __call__(self):
            if threading.current_thread() is threading.main_thread():
                return clock.now
            return ends[-1]

    class Settled:
        """Let the watching thread finish every step that has ended by now, as in real time."""

        def __init__(self, batches):
            self.batches = batches

        def __iter__(self):
            return self

        def __next__(self):
            batch = next(self.batches)
            if clock.busy_until <= clock.now:
                while len(ends) < steps[0]:
                    pass
            return batch

    steps = [0]
    for _ in measured(Settled(clock.batches(16)), wait, counts, Times()):
        clock.dispatch()
        steps[0] += 1
        if not ahead:
            clock.now = clock.busy_until
    total = clock.busy_until
    if ahead and load < compute:  # the loop has run ahead of the device: nothing else is measurable
        assert counts.waited <= load + 1e-9
    else:
        assert counts.waited / total == pytest.approx(share, abs=1e-9)


def test_waiting_does_not_hold_up_the_loop():
    """The step after next is dispatched while the device still works on the last one."""
    release, dispatched = threading.Event(), []
    for batch in measured(iter(range(3)), lambda: release.wait(10), Counts()):
        dispatched.append(batch)
        if batch == 2:
            release.set()
    assert dispatched == [0, 1, 2]


# ------------------------------------------------------------------------------ divergence


IDENTITY = {
    "model": "m",
    "data": "d",
    "classes": 2,
    "train_images": 9,
    "dtype": "float32",
    "total_batch": 3,
    "seed": 0,
    "workers": 1,
}


def progress(position):
    return {"history": History(validated=[None] * position.epoch).state()}


def keeper_of(tmp_path, value=1.0, interruption=None, every=None, workers=None):
    net = gluon.nn.Dense(1, in_units=1, prefix="net_")
    net.initialize(mx.init.Constant(value))
    trainer = amp.Trainer(net.collect_params(), "sgd")
    checkpoints = Checkpoints(tmp_path, 3)
    keeper = Keeper(
        checkpoints,
        net,
        trainer,
        IDENTITY,
        progress,
        interruption or Interruption(),
        workers or Workers(),
        every=every,
    )
    return keeper, checkpoints, net


def test_what_is_not_finite_never_replaces_a_checkpoint(tmp_path):
    keeper, checkpoints, net = keeper_of(tmp_path, every=1)
    keeper.after_epoch(0, due=True, last=False, best=True)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    net.weight.set_data(nd.array([[np.nan]]))
    for save in (
        lambda: keeper.after_epoch(1, due=True, last=False, best=False),
        lambda: keeper.after_epoch(1, due=False, last=False, best=True),
    ):
        with pytest.raises(DivergedError, match="net_weight is not finite any more"):
            save()
    net.weight.set_data(nd.array([[1.0]]))
    counts = Counts()
    counts.loss.update(nd.array([1.0, np.inf]))
    with pytest.raises(DivergedError, match="the loss became inf, so nothing was saved"):
        keeper.after_update(1, Position(1, 3), counts)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert len(checkpoints.existing()) == 1


def test_a_diverged_run_names_its_last_good_checkpoint_and_goes_on_from_it(tmp_path, capsys):
    saved = tmp_path / "saved"
    options = ["--save-dir", saved, "--epochs", "2"]
    assert run("--save-dir", saved, "--lr", "1e-3", "--lr-mode", "constant") == 0
    capsys.readouterr()
    assert run(*options, "--lr", "1e20", "--lr-mode", "constant", "--resume", "auto") == 1
    error = capsys.readouterr().err
    (sentence,) = error.splitlines()
    # by the second batch, and not at the end of the epoch
    assert re.search(r"the loss became (nan|inf) in epoch 1, by batch \d,", sentence)
    named = re.search(r"The last good checkpoint is (\S+): --resume auto", sentence)[1]
    kept = sorted(saved.glob("*.ckpt"))
    assert Path(named) == kept[-1]
    assert run(*options, "--lr", "1e-3", "--resume", "auto") == 0


# ------------------------------------------------------------------------------ the position


def test_a_position_counts_samples():
    position = Position(1, 96)
    assert position.first_batch(32, 1437) == 3
    assert position.first_batch(16, 1437) == 6
    assert Position(1, 1437).first_batch(32, 1437) == 45
    with pytest.raises(UsageError, match="after 96 samples of epoch 1, which is inside a batch"):
        position.first_batch(64, 1437)


@pytest.mark.slow
def test_a_run_goes_on_with_its_batch_divided_otherwise(tmp_path, capsys):
    """Two times 16 images are the 32 images of one batch: none is skipped, none comes twice."""
    saved = tmp_path / "saved"
    options = [
        "--save-dir",
        saved,
        *("--save-batches 2 --log-interval 0 --model cifar_resnet8_v1 --no-wd --lr 0").split(),
    ]
    first = [*options, "--batch-size", "16", "--accumulate", "2", "--max-batches", "4"]
    assert run(*first, "--keep", "9") == 0
    (saved / "epoch001-sample00000000.ckpt").unlink()
    whole = tmp_path / "summary.json"
    resumed = [*options, "--batch-size", "32", "--resume", "auto", "--summary-json", whole]
    capsys.readouterr()
    assert run(*resumed, "--max-batches", "6") == 0
    assert "epoch 0, 64 samples done" in capsys.readouterr().out
    # two batches of 32 were done as four of 16, so four more make six
    assert json.loads(whole.read_text())["steps"] == 2 + 4


# ------------------------------------------------------------------------------ ends and signals


def test_a_signal_between_two_looks_is_answered_once():
    """One that comes after the decision not to save waits for the next decision."""

    class Late(Interruption):
        looks = 0

        @property
        def number(self):
            self.looks += 1
            return None if self.looks == 1 else signal.SIGTERM

        @number.setter
        def number(self, value):
            pass

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        keeper, checkpoints, _ = keeper_of(Path(folder), interruption=Late())
        keeper.after_update(1, Position(0, 3), Counts())
        assert checkpoints.existing() == []
        with pytest.raises(RunInterruptedError, match="saved; go on with --resume auto"):
            keeper.after_update(2, Position(0, 6), Counts())
        assert [position for position, _ in checkpoints.existing()] == [Position(0, 6)]


def test_the_first_signal_is_announced_and_the_end_says_what_was_written(capfd):
    with Interruption() as interruption:
        interruption.leave_after("done")
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(RunInterruptedError, match=r"^interrupted by signal 2: done\.$") as left:
            interruption.leave_after("done")
    assert left.value.status == 130
    assert (
        "signal 2: the run saves and ends after this batch or validation" in capfd.readouterr().err
    )


def test_two_runs_do_not_share_a_folder(tmp_path, capsys):
    saved = tmp_path / "saved"
    saved.mkdir()
    with Checkpoints(saved, 3).locked():
        assert run("--save-dir", saved) == 2
        error = capsys.readouterr().err
    assert f"another run writes to {saved} (process {os.getpid()} on " in error
    assert error.count("\n") == 1
    assert run("--save-dir", saved) == 0


def test_eval_only_adds_no_epoch(tmp_path):
    saved, summary = tmp_path / "saved", tmp_path / "summary.json"
    assert run("--save-dir", saved, "--summary-json", summary) == 0
    trained = json.loads(summary.read_text())
    resume = ["--eval-only", "--save-dir", saved, "--resume", "auto", "--summary-json", summary]
    assert run(*resume) == 0
    evaluated = json.loads(summary.read_text())
    for name in ("top1", "top1_by_epoch", "best_epoch", "steps"):
        assert evaluated[name] == trained[name]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gluoncvs_two_files(tmp_path, capsys, dtype):
    saved = tmp_path / "saved"
    assert run("--save-dir", saved, "--dtype", dtype) == 0
    (params,) = saved.glob("*.params")
    resume = ["--resume-params", params, "--resume-epoch", "1", "--dtype", dtype]
    assert run(*resume, "--epochs", "2") == 0
    capsys.readouterr()
    assert run(*resume, "--epochs", "1") == 2
    assert "--resume-epoch 1 leaves nothing of --num-epochs 1" in capsys.readouterr().err


def test_the_epochs_rate_is_that_of_its_last_batch(tmp_path):
    path = tmp_path / "log.jsonl"
    assert run("--log-json", path, "--lr", "0.8", "--lr-mode", "linear", "--epochs", "2") == 0
    records = [json.loads(line) for line in path.read_text().splitlines()]
    batches = [r["lr"] for r in records if r["record"] == "batch" and r["epoch"] == 0]
    (epoch,) = [r["lr"] for r in records if r["record"] == "epoch" and r["epoch"] == 0]
    assert epoch == batches[-1]


# ------------------------------------------------------------------------------ a full disk


@pytest.mark.slow
@pytest.mark.parametrize(
    "options, status, sentence",
    [
        (["--log-json", "log.jsonl"], 0, "--log-json or --tensorboard cannot be written any more"),
        (["--logging-file", "run.log"], 0, "--logging-file cannot be written any more"),
        (["--plot", "plot.png"], 0, "--plot plot.png cannot be written"),
        (["--export", "exported"], 0, "--export exported cannot be written"),
        (["--summary-json", "summary.json"], 1, "--summary-json summary.json cannot be written"),
    ],
)
def test_outputs_on_a_full_disk(tmp_path, options, status, sentence):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *TINY, *options],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200)),
    )
    assert done.returncode == status, done.stderr
    output = done.stdout + done.stderr
    assert sentence in output and "Traceback" not in output
    assert "top-1" in done.stdout


def test_parameters_are_written_in_one_piece(tmp_path):
    from gluon_amp.training.runs.outputs import save_parameters

    net = gluon.nn.Dense(100, in_units=100)
    net.initialize()
    path = tmp_path / "net.params"
    path.write_bytes(b"the one before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(SavingError, match="net.params cannot be written"):
            save_parameters(net, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert [p.name for p in tmp_path.iterdir() if p.name != "home"] == ["net.params"]
    assert path.read_bytes() == b"the one before"
    save_parameters(net, path)
    assert set(nd.load(str(path))) == {"weight", "bias"}


# ------------------------------------------------------------------------------ several workers


class Half(Workers):
    """One of two workers, whose partner's values are its own plus one."""

    count = 2

    def __init__(self, rank):
        super().__init__()
        self.rank = rank

    def every(self, values):
        return np.stack([np.asarray(values, np.float64) + other for other in (0, 1)])


def test_each_worker_gets_its_own_counts_and_statistics_back(tmp_path):
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Dense(2, in_units=2), gluon.nn.BatchNorm(in_channels=2))
    net.initialize()
    trainer = amp.Trainer(net.collect_params(), "sgd", loss_scale=8)
    with autograd.record():
        loss = net(nd.array([[1, 2], [3, 5]])).sum()
    trainer.backward(loss)
    assert trainer.step(1).applied
    statistics = [net[1].running_mean, net[1].running_var]
    saved_values = [p.data().asnumpy() for p in statistics]

    def keeper(rank):
        return Keeper(
            Checkpoints(tmp_path, 3),
            net,
            trainer,
            {**IDENTITY, "workers": 2},
            progress,
            Interruption(),
            Half(rank),
            statistics,
            every=1,
        )

    counts = Counts()
    counts.loss.update(nd.array([0.5, 0.25]))
    counts.skipped = 3
    keeper(0).after_update(1, Position(0, 6), counts)
    saved = Checkpoints(tmp_path, 3).newest()
    for rank in (0, 1):
        restored = keeper(rank).begin(saved)
        assert (restored.loss.sum, restored.skipped) == (0.75 + rank, 3 + rank)
        for p, value in zip(statistics, saved_values):
            np.testing.assert_array_equal(p.data().asnumpy(), (value + rank).astype(np.float32))
    assert math.isnan(Counts().loss.value)


# ------------------------------------------------------------------------------ forged checkpoints


@pytest.mark.parametrize(
    "forge",
    [
        lambda extra: extra.pop("progress"),
        lambda extra: extra.update(position=[1]),
        lambda extra: extra.update(position=[1, -1]),
        lambda extra: extra.update(position=[7, 0]),
        lambda extra: extra.update(position="ab"),
        lambda extra: extra["identity"].pop("seed"),
        lambda extra: extra["identity"].update(model=[1]),
        lambda extra: extra["progress"].update(rate="fast"),
        lambda extra: extra["progress"].update(workers=[]),
        lambda extra: extra["progress"]["workers"][0].pop("counts"),
        lambda extra: extra["progress"]["workers"][0]["counts"].update(right=None),
        lambda extra: extra["progress"]["workers"][0].update(statistics="!"),
        lambda extra: extra["progress"]["workers"][0].update(statistics="AAAAAA=="),
        lambda extra: extra["progress"]["history"].update(trained=3),
        lambda extra: extra["progress"]["history"].update(steps=1.5),
        lambda extra: extra["progress"]["history"].update(validated=[{"top1": 1}]),
    ],
)
def test_a_forged_checkpoint_is_refused_in_one_sentence(forge, tmp_path, capsys):
    saved = tmp_path / "saved"
    assert run("--save-dir", saved, "--model", "cifar_resnet8_v1") == 0
    (path,) = saved.glob("epoch001*.ckpt")
    net = build("cifar_resnet8_v1", 10)
    net.initialize()
    net(nd.zeros((1, 3, 32, 32)))
    trainer = amp.Trainer(net.collect_params(), "sgd", {"momentum": 0.9})
    extra = amp.load_checkpoint(path, net, trainer)
    forge(extra)
    amp.save_checkpoint(path, net, trainer, **extra)
    capsys.readouterr()
    assert run("--save-dir", saved, "--resume", path, "--epochs", "2") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "Traceback" not in error
