"""Trainers that were built before the cast, and stock trainers of a cast net."""

import re
import warnings

import pytest

import gluon_amp as amp
from gluon_amp import Trainer
from tests.trainer.helpers import backward, fine, norm_net

from mxnet import autograd, gluon


@pytest.mark.parametrize("kind", [gluon.Trainer, Trainer])
@pytest.mark.parametrize("policy", ["float16", "mixed_float16"])
def test_a_trainer_built_before_the_cast_refuses_to_step(kind, policy):
    net = norm_net()
    old = kind(net.collect_params(), "sgd")
    amp.cast(net, policy)
    new = Trainer(net.collect_params(), "sgd", loss_scale=8)
    backward(new, net, fine())
    for call in (old.step, old.update):
        with pytest.raises(RuntimeError, match="before the cast of .*: build it after amp.cast"):
            call(1)
    with pytest.raises(RuntimeError, match="was built before the cast"):
        old.allreduce_grads() if kind is gluon.Trainer else old.clip_global_norm(1.0, 1)
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


def warnings_of(net, trainer):
    """Make two steps, between which the net is cast once more; return gluon_amp's warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            if hasattr(trainer, "loss_scale"):
                backward(trainer, net, fine())
            else:
                backward_plain(net)
            trainer.step(1)
            amp.cast(net, amp.policy_of(net))
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
    found = warnings_of(net, gluon.Trainer(net.collect_params(), "sgd"))
    assert len(found) == bool(text)
    for one in found:
        assert re.search(text, str(one.message)) and one.filename == __file__


@pytest.mark.parametrize(
    "kind", [gluon.Trainer, type("Distributed", (gluon.Trainer,), {}), Trainer]
)
def test_trainers_with_a_loss_scale_do_not_warn(kind):
    net = amp.cast(norm_net(), "float16")
    trainer = kind(net.collect_params(), "sgd")
    if kind is not Trainer:
        amp.init_trainer(trainer)
    assert warnings_of(net, trainer) == []
    assert isinstance(trainer, kind)


def test_frozen_layers_need_no_scale():
    net = amp.cast(norm_net(), "float16")
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    net.collect_params().setattr("grad_req", "null")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.step(1)
