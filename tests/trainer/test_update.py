"""Updates from masters that follow what was written to the weights."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp import Trainer
from gluon_amp.base import host
from gluon_amp.optimizer import masters
from gluon_amp.trainer.update import masters_of
from tests.trainer.helpers import parameter, run, values

from mxnet import gluon


def test_masters_are_those_of_float16_weights_that_were_updated():
    p, q = parameter("p", [1.0]), parameter("q", [1.0], "float32")
    trainer = Trainer([p, q], "sgd", loss_scale=8)
    assert list(masters_of(trainer)) == []
    run(trainer, [(p, [0.5]), (q, [0.5])])
    ((key, weight, master),) = masters_of(trainer)
    assert key == (0, 0)
    assert weight is p.data()
    master[:] = 0.25
    weight[:] = 0.25
    assert trainer.master_params()["p"].asnumpy().item() == 0.25


def test_a_write_of_one_element_leaves_the_masters_of_the_others():
    p = parameter("p", [1.0, 1.0])
    trainer = Trainer([p], "sgd", {"learning_rate": 2.0**-20}, loss_scale=1)
    run(trainer, [(p, [1.0, 1.0])])
    p.data()[1] = 0.0
    run(trainer, [(p, [1.0, 1.0])])
    np.testing.assert_array_equal(
        trainer.master_params()["p"].asnumpy(), [1 - 2.0**-19, -(2.0**-20)]
    )


def test_master_params():
    p, q = parameter("p", [1.0]), parameter("q", [1.0], "float32")
    frozen = parameter("frozen", [2.0], grad_req="null")
    late = gluon.Parameter("late", shape=(0,), allow_deferred_init=True)
    late.initialize()
    trainer = Trainer([p, q, frozen, late], "sgd", {"learning_rate": 2.0**-20}, loss_scale=1)
    before = {name: v.asnumpy().item() for name, v in trainer.master_params().items()}
    assert before == {"p": 1.0, "q": 1.0, "frozen": 2.0}
    late.shape = (1,)
    late.initialize(force_reinit=True)
    run(trainer, [(p, [1.0]), (q, [1.0]), (late, [0.0])])
    wide = trainer.master_params()
    assert wide["p"].asnumpy().item() == wide["q"].asnumpy().item() == 1 - 2.0**-20
    assert all(m.dtype == np.float32 for m in wide.values())
    assert values(p)[0] == 1.0


def test_trainers_in_turn_see_each_others_updates():
    """Each trainer updates the master of the parameter, not one of its own."""

    def build(p):
        stock = gluon.Trainer([p], "sgd", {"learning_rate": 2.0**-14})
        amp.init_trainer(stock, loss_scale=64)
        return Trainer([p], "sgd", {"learning_rate": 2.0**-14}, loss_scale=64), stock

    p, q = parameter("p", [1.0, 2.0]), parameter("q", [1.0, 2.0])
    pair, (one, _) = build(p), build(q)
    for number in range(4):
        run(pair[number % 2], [(p, [1.0, 3.0])])
        run(one, [(q, [1.0, 3.0])])
        expected = one.master_params()["q"].asnumpy()
        for trainer in pair:
            np.testing.assert_array_equal(trainer.master_params()["p"].asnumpy(), expected)


@pytest.mark.parametrize("name", ["sgd", "lamb"])
def test_only_the_masters_of_written_weights_are_synced_on_a_gpu(name, monkeypatch):
    """On a CPU, the update itself syncs them."""
    monkeypatch.setattr(host, "_as_on_a_gpu", True)
    kept, written = parameter("kept", [1.0]), parameter("written", [1.0])
    trainer = Trainer([kept, written], name, {"learning_rate": 0.25}, loss_scale=8.0)
    synced, sync_master = [], masters.sync_master
    monkeypatch.setattr(
        masters, "sync_master", lambda *pair: synced.append(pair[0]) or sync_master(*pair)
    )

    def step(*terms):
        del synced[:]
        run(trainer, [(p, [2.0**-6]) for p in terms], step=False)
        assert trainer.step(1, ignore_stale_grad=True).applied

    for _ in range(3):
        step(kept, written)
    assert synced == []
    step(kept)
    written.data()[:] = 3.0  # as many writes as the update that left it out would have made
    step(kept, written)
    assert len(synced) == 1 and synced[0] is written.data()
    wide = {name: master.asnumpy()[0] for name, master in trainer.master_params().items()}
    assert wide["kept"] < 1.0 < 2.0 < wide["written"] < 3.0


def test_weights_win_over_masters_of_an_earlier_state_on_a_gpu_too(path, monkeypatch):
    monkeypatch.setattr(host, "_as_on_a_gpu", True)
    p = parameter("p", [1.0])
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale=8.0)
    run(trainer, [(p, [0.25])])
    trainer.save_states(path)
    run(trainer, [(p, [0.25])])
    trainer.load_states(path)  # and no parameters
    run(trainer, [(p, [0.0])])
    assert values(p)[0] == 0.5
