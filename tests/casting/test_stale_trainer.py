"""Trainers that were built before the cast, and stock trainers of a cast net."""

import re
import warnings

import pytest

import gluon_amp as amp
from gluon_amp import Trainer
from tests.trainer.helpers import backward, fine, norm_net

from mxnet import autograd, gluon


def notebook_output():
    """Return a list that keeps objects alive, as a notebook's Out[] does."""
    return []


@pytest.mark.parametrize("kind", [gluon.Trainer, Trainer])
@pytest.mark.parametrize("policy", ["float16", "mixed_float16"])
def test_a_trainer_built_before_the_cast_refuses_to_step(kind, policy):
    held = notebook_output()
    net = norm_net()
    held.append(kind(net.collect_params(), "sgd"))
    amp.cast(net, policy)  # whether or not the old trainer is still referenced
    new = Trainer(net.collect_params(), "sgd", loss_scale=8)
    backward(new, net, fine())
    for call in (held[0].step, held[0].update):
        with pytest.raises(RuntimeError, match="was built before the cast, build a new one"):
            call(1)
    with pytest.raises(RuntimeError, match="was built before the cast"):
        held[0].allreduce_grads() if kind is gluon.Trainer else held[0].clip_global_norm(1.0)
    assert new.step(1).applied


def test_a_stock_trainer_is_right_for_bfloat16_and_after_the_cast_is_undone():
    net = norm_net()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    amp.cast(net, "mixed_float16")
    amp.cast(net, "bfloat16")
    backward_plain(net)
    trainer.step(1)
    amp.cast(net, "float32")
    backward_plain(net)
    trainer.step(1)


def backward_plain(net):
    with autograd.record():
        loss = net(fine()).sum()
    loss.backward()


def test_init_trainer_takes_a_stock_trainer_that_was_built_before_the_cast():
    net = norm_net()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"multi_precision": True})
    amp.cast(net, "float16")
    amp.init_trainer(trainer, loss_scale=8)
    backward(trainer, net, fine())
    assert trainer.step(1).applied


def steps_of(net, trainer, policy):
    """Make two steps; return the warnings of gluon_amp."""
    amp.cast(net, policy)  # once more, which a correct trainer survives
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            if hasattr(trainer, "loss_scale"):
                backward(trainer, net, fine())
            else:
                backward_plain(net)
            trainer.step(1)
    return [one for one in caught if "amp." in str(one.message)]


@pytest.mark.parametrize(
    "policy, text",
    [
        ("float16", "trains in float16 without a loss scale and float32 masters, so .*amp.Trainer"),
        ("mixed_float16", "without a loss scale, so that .* call amp.init_trainer"),
        ("bfloat16", None),
        ("fused_float32", None),
    ],
)
def test_a_stock_trainer_warns_once_if_it_needs_a_scale(policy, text):
    net = amp.cast(norm_net(), policy)
    found = steps_of(net, gluon.Trainer(net.collect_params(), "sgd"), policy)
    assert len(found) == bool(text)
    for one in found:
        assert re.search(text, str(one.message)) and one.filename == __file__


@pytest.mark.parametrize("subclass", [gluon.Trainer, type("Distributed", (gluon.Trainer,), {})])
def test_init_trainer_gives_what_is_missing_and_nothing_warns(subclass):
    net = amp.cast(norm_net(), "float16")
    trainer = subclass(net.collect_params(), "sgd")
    amp.init_trainer(trainer, loss_scale=8)
    assert steps_of(net, trainer, "float16") == []
    assert steps_of(net, Trainer(net.collect_params(), "sgd", loss_scale=8), "float16") == []


def test_a_stock_trainer_of_frozen_float16_layers_does_not_warn():
    net = amp.cast(norm_net(), "float16")
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    net.collect_params().setattr("grad_req", "null")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.step(1)
