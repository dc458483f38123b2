"""When a run saves and ends: on time, after a signal, and never what is not finite."""

import base64
import signal

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.base.messages import UsageError
from gluon_amp.training.runs.checkpoints import BEST, Checkpoints, Position
from gluon_amp.training.runs.engines.gluon import GluonEngine
from gluon_amp.training.runs.history import Counts
from gluon_amp.training.runs.interruption import Interruption, RunInterruptedError
from gluon_amp.training.runs.keeper import Keeper, write_statistics
from gluon_amp.training.runs.loop import DivergedError, Loop
from gluon_amp.training.runs.objective import Objective
from gluon_amp.training.runs.schedule import Schedule
from gluon_amp.training.workers.group import Workers
from tests.trainer.helpers import backward, norm_net

import mxnet as mx
from mxnet import gluon, nd

IDENTITY = {"model": "m", "data": "d", "classes": 2, "train_images": 9, "dtype": "float32"}
IDENTITY.update(total_batch=3, seed=0, workers=1)


ABOUT = {"image_shape": (3, 8, 8), "class_names": [], "preprocessing": {}}


def keeper_of(net, trainer, tmp_path, workers=None, identity=IDENTITY, **options):
    engine = GluonEngine(net, trainer, [mx.cpu()], Objective(2))
    loop = Loop(engine, Schedule(0.1, 9, 3), workers or Workers())
    return Keeper(loop, identity, ABOUT, Checkpoints(tmp_path, 3), **options)


@pytest.fixture
def kept(tmp_path):
    """A keeper of a network of one weight, that weight, and the positions of its checkpoints."""
    net = gluon.nn.Dense(1, in_units=1, prefix="net_")
    net.initialize()
    keeper = keeper_of(net, amp.Trainer(net.collect_params(), "sgd"), tmp_path)
    return keeper, net.weight, lambda: [tuple(at) for at, _ in keeper.checkpoints.existing()]


def test_what_is_not_finite_never_replaces_a_checkpoint(kept, tmp_path):
    keeper, weight, saved = kept
    keeper.every = 1
    keeper.after_epoch(0, due=True, last=False, best=True)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    weight.set_data(nd.array([[np.nan]]))
    for save in (
        lambda: keeper.after_epoch(1, due=True, last=False, best=False),
        lambda: keeper.after_epoch(1, due=False, last=False, best=True),
    ):
        with pytest.raises(DivergedError, match="net_weight is not finite any more"):
            save()
    weight.set_data(nd.array([[1.0]]))
    counts = Counts()
    counts.loss.update(nd.array([1.0, np.inf]))
    with pytest.raises(DivergedError, match="the loss became inf, so nothing was saved"):
        keeper.after_update(1, Position(1, 3), counts)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert saved() == [(1, 0)]


def test_a_checkpoint_is_saved_every_few_batches_and_after_an_epoch_if_it_is_due(kept, tmp_path):
    keeper, _, saved = kept
    keeper.every = 2
    for done in (1, 2, 3):
        keeper.after_update(done, Position(0, done), Counts())
    assert saved() == [(0, 2)]
    keeper.after_epoch(0, due=False, last=False, best=False)
    assert saved() == [(0, 2)]
    keeper.after_epoch(1, due=True, last=False, best=False)
    keeper.after_epoch(2, due=False, last=True, best=False)
    assert saved() == [(0, 2), (2, 0), (3, 0)]
    assert not (tmp_path / BEST).exists()
    keeper.after_epoch(3, due=False, last=False, best=True)
    assert len(saved()) == 3 and (tmp_path / BEST).exists()
    keeper.loop.accumulate = 3  # batches in each update: 6, 9 and 12 are at or past 6, 8 and 12
    for done in (3, 6):
        keeper.every = 4
        keeper.after_update(done, Position(9, done), Counts())
    assert saved()[-1] == (9, 6)


def test_a_signal_between_two_looks_is_answered_once(kept):
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

    keeper, _, saved = kept
    keeper.interruption = Late()
    keeper.after_update(1, Position(0, 3), Counts())
    assert saved() == []
    with pytest.raises(RunInterruptedError, match="saved in .*; continue with --resume auto"):
        keeper.after_update(2, Position(0, 6), Counts())
    assert saved() == [(0, 6)]


def test_a_signal_without_checkpoints_says_that_nothing_was_saved(kept):
    keeper, _, _ = kept
    keeper.checkpoints, keeper.interruption.number = None, signal.SIGTERM
    keeper.after_epoch(0, due=False, last=True, best=False)  # the run is over anyway
    with pytest.raises(RunInterruptedError, match="TERM: nothing was saved, as there is no --save"):
        keeper.after_epoch(0, due=False, last=False, best=False)


class Half(Workers):
    """One of two workers, whose partner's values are its own plus one."""

    count = 2

    def __init__(self, rank):
        super().__init__()
        self.rank = rank

    def every(self, values):
        return np.stack([np.asarray(values, np.float64) + other for other in (0, 1)])


def test_each_worker_gets_its_own_counts_and_statistics_back(tmp_path):
    net = norm_net(prefix="net_")
    trainer = amp.Trainer(net.collect_params(), "sgd", loss_scale=8)
    backward(trainer, net, nd.array([[1, 2], [3, 5]]))
    assert trainer.step(1).applied
    statistics = [net[1].running_mean, net[1].running_var]
    saved_values = [p.data().asnumpy() for p in statistics]

    def keeper(rank):
        identity = {**IDENTITY, "workers": 2}
        return keeper_of(net, trainer, tmp_path, Half(rank), identity, every=1)

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


@pytest.mark.parametrize("text", ["!", base64.b64encode(b"four").decode()])
def test_statistics_of_another_network_are_refused(text):
    norm = gluon.nn.BatchNorm(in_channels=2)
    norm.initialize()
    with pytest.raises(UsageError, match="not those of its network"):
        write_statistics([norm.running_mean, norm.running_var], text)
