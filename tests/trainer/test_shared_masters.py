"""Masters belong to the parameter: trainers share them, copies have them, no order rounds them."""

import copy

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp import Trainer, init_trainer
from tests.trainer.helpers import TWO

import mxnet as mx
from mxnet import autograd, gluon, nd

THIRD = nd.array([[1 / 3, 1 / 7, -1 / 9]])


def cast_net(ctx=None):
    net = gluon.nn.Dense(1, in_units=3, use_bias=False)
    net.initialize(mx.init.One(), ctx=ctx)
    return amp.cast(net, "float16")


def trainer_of(net, optimizer="sgd", **settings):
    settings = {"learning_rate": 2.0**-14, **settings}
    return Trainer(net.collect_params(), optimizer, settings, loss_scale=64)


def step(net, trainer):
    losses = []
    with autograd.record():
        for ctx in net.weight.list_ctx():
            losses.append(net(nd.array([[1, 2, 3]], ctx=ctx)).sum())
    trainer.backward(losses)
    assert trainer.step(1).applied


def master(trainer):
    (value,) = trainer.master_params().values()
    return value.asnumpy()


@pytest.mark.parametrize("second", ["sgd", "adam", "rmsprop", "ftml"])
@pytest.mark.parametrize("ctx", [None, TWO])
def test_a_second_trainer_starts_from_the_masters_of_the_first(second, ctx, tmp_path):
    net = cast_net(ctx)
    first = trainer_of(net)
    step(net, first)
    values = master(first).copy()
    assert not np.array_equal(values, net.weight.data().asnumpy())
    last = trainer_of(net, second)
    net.save_parameters(str(tmp_path / "p"))
    assert np.array_equal(nd.load(str(tmp_path / "p"))["weight"].asnumpy(), values)
    assert np.array_equal(master(last), values)
    del first
    step(net, last)
    assert 0 < np.abs(master(last) - values).max() < 2.0**-10
    amp.cast(net, "float32")
    assert np.array_equal(net.weight.data().asnumpy(), master(last))


def test_trainers_in_turn_see_each_others_updates():
    net, alone = cast_net(), cast_net()
    pair = trainer_of(net), init_trainer_of(net)
    one = trainer_of(alone)
    for number in range(6):
        step(net, pair[number % 2])
        step(alone, one)
        assert np.array_equal(master(pair[0]), master(one))
        assert np.array_equal(master(pair[1]), master(one))


def init_trainer_of(net):
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 2.0**-14})
    init_trainer(trainer, loss_scale=64)
    return trainer


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda net: net])
def test_a_copy_of_a_net_has_its_masters(copier):
    net = cast_net()
    first = trainer_of(net)
    step(net, first)
    other = copier(net)
    again = trainer_of(other)
    assert np.array_equal(master(again), master(first))
    if other is not net:
        step(other, again)
        assert not np.array_equal(master(again), master(first))


@pytest.mark.parametrize("order", ["pl", "lp", "plp", "pll"])
def test_stock_states_without_masters_round_none(order, tmp_path):
    paths = {"p": str(tmp_path / "p"), "l": str(tmp_path / "l")}
    stock = gluon.nn.Dense(1, in_units=3, use_bias=False)
    stock.initialize()
    stock.weight.set_data(THIRD)
    trainer = gluon.Trainer(stock.collect_params(), "sgd", {"momentum": 0.5})
    with autograd.record():
        loss = stock(THIRD).sum()
    loss.backward()
    trainer.step(1)
    stock.save_parameters(paths["p"])
    trainer.save_states(paths["l"])
    net = cast_net()
    trainer = trainer_of(net, momentum=0.5, learning_rate=0.01)
    for what in order:
        {"p": net.load_parameters, "l": trainer.load_states}[what](paths[what])
    assert np.array_equal(master(trainer), stock.weight.data().asnumpy())


def test_an_earlier_state_is_loaded_exactly_though_it_is_the_rounding_of_a_later_one(tmp_path):
    net, path = cast_net(), str(tmp_path / "states")
    trainer = trainer_of(net, momentum=0.5)
    net.weight.set_data(nd.ones((1, 3)))
    trainer.save_states(path)
    start = master(trainer).copy()
    step(net, trainer)
    assert not np.array_equal(master(trainer), start)
    trainer.load_states(path)
    assert np.array_equal(master(trainer), start)


def test_a_checkpoint_before_the_first_step_of_a_second_trainer(tmp_path):
    net, path = cast_net(), tmp_path / "net.ckpt"
    step(net, trainer_of(net))
    last = trainer_of(net)
    amp.save_checkpoint(path, net, last)
    other = cast_net()
    again = trainer_of(other)
    amp.load_checkpoint(path, other, again)
    assert np.array_equal(master(again), master(last))
    step(net, last)
    step(other, again)
    assert np.array_equal(master(again), master(last))


def test_new_initial_values_have_no_bits_of_the_old_masters():
    net = cast_net()
    step(net, trainer_of(net))
    net.initialize(mx.init.One(), force_reinit=True)
    assert np.array_equal(master(trainer_of(net)), np.ones((1, 3)))


def test_masters_move_to_another_device():
    net = cast_net()
    first = trainer_of(net)
    step(net, first)
    values = master(first).copy()
    net.weight.reset_ctx(TWO)
    last = trainer_of(net)
    assert np.array_equal(master(last), values)
    step(net, last)
    weights = [one.asnumpy() for _, _, one in last.masters()]
    assert np.array_equal(*weights)


def test_a_frozen_parameter_keeps_its_master_and_takes_loaded_values():
    net = cast_net()
    first = trainer_of(net)
    step(net, first)
    values = master(first).copy()
    net.weight.grad_req = "null"
    assert np.array_equal(master(trainer_of(net)), values)
    net.weight.set_data(THIRD)
    assert np.array_equal(master(trainer_of(net)), THIRD.asnumpy())
