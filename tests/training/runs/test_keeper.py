"""When a run saves and ends: on time, after a signal, and never what is not finite."""

import base64
import signal

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.base.messages import UsageError
from gluon_amp.training.runs.checkpoints import BEST, Checkpoints, Position
from gluon_amp.training.runs.history import Counts, History
from gluon_amp.training.runs.interruption import Interruption, RunInterruptedError
from gluon_amp.training.runs.keeper import Keeper, write_statistics
from gluon_amp.training.runs.loop import DivergedError
from gluon_amp.training.workers.group import Workers

from mxnet import autograd, gluon, nd

IDENTITY = {"model": "m", "data": "d", "classes": 2, "train_images": 9, "dtype": "float32"}
IDENTITY.update(total_batch=3, seed=0, workers=1)


def progress(position):
    return {"history": History(validated=[None] * position.epoch).state()}


def keeper_of(tmp_path, interruption=None, every=None):
    net = gluon.nn.Dense(1, in_units=1, prefix="net_")
    net.initialize()
    trainer, checkpoints = amp.Trainer(net.collect_params(), "sgd"), Checkpoints(tmp_path, 3)
    about = (IDENTITY, progress, interruption or Interruption())
    return Keeper(checkpoints, net, trainer, *about, every=every), checkpoints, net


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


def test_a_checkpoint_is_saved_every_few_batches_and_after_an_epoch_if_it_is_due(tmp_path):
    keeper, checkpoints, _ = keeper_of(tmp_path, every=2)

    def saved():
        return [tuple(position) for position, _ in checkpoints.existing()]

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
    keeper.accumulate = 3  # batches in each update: 6, 9 and 12 are at or past 6, 8 and 12
    for done in (3, 6):
        keeper.every = 4
        keeper.after_update(done, Position(9, done), Counts())
    assert saved()[-1] == (9, 6)


def test_a_signal_between_two_looks_is_answered_once(tmp_path):
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

    keeper, checkpoints, _ = keeper_of(tmp_path, interruption=Late())
    keeper.after_update(1, Position(0, 3), Counts())
    assert checkpoints.existing() == []
    with pytest.raises(RunInterruptedError, match="saved in .*; continue with --resume auto"):
        keeper.after_update(2, Position(0, 6), Counts())
    assert [position for position, _ in checkpoints.existing()] == [Position(0, 6)]


def test_a_signal_without_checkpoints_says_that_nothing_was_saved(tmp_path):
    interruption = Interruption(quiet=True)
    keeper, _, _ = keeper_of(tmp_path, interruption=interruption)
    keeper.checkpoints, interruption.number = None, signal.SIGTERM
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
        about = ({**IDENTITY, "workers": 2}, progress, Interruption(), Half(rank), statistics)
        return Keeper(Checkpoints(tmp_path, 3), net, trainer, *about, every=1)

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
