"""Checkpoints of another net, policy or trainer, and settings that a trainer keeps."""

import logging

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.checkpoint import load_checkpoint, read_extra, save_checkpoint
from tests.checkpoint.helpers import make_net, make_trainer, refused, run

from mxnet.gluon import nn


def used(policy="float16", steps=1, channels=4, **kwargs):
    net = make_net(policy, channels)
    trainer = make_trainer(net, **kwargs)
    run(net, trainer, range(steps))
    return net, trainer


def test_another_structure_is_refused_with_near_matches(saved):
    path, *_ = saved
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), nn.Activation("relu"), nn.BatchNorm(), nn.Dense(3))
    net.initialize()
    trainer = make_trainer(amp.cast(net, "float16"))
    run(net, trainer, [0])
    refused(r"it has no 2.gamma, .*\(did you mean .1.gamma", path, net, trainer)


def test_a_smaller_net_is_refused(saved):
    path, *_ = saved
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3))
    net.initialize()
    trainer = make_trainer(amp.cast(net, "float16"))
    run(net, trainer, [0])
    refused("this one has no 1.gamma, 1.beta, 1.running_mean and 3 more", path, net, trainer)


def test_other_sizes_are_refused(saved):
    path, *_ = saved
    refused(
        r"it has 0.weight with the shape \(4, 3, 3, 3\) and not \(8, 3, 3, 3\)",
        path,
        *used(channels=8),
    )


def test_other_sizes_of_a_deferred_net_are_refused_and_it_stays_deferred(saved):
    path, *_ = saved
    net = make_net(channels=8)
    with pytest.raises(ValueError, match=r"\(4, 3, 3, 3\) and not \(8, 0, 3, 3\)"):
        load_checkpoint(path, net, make_trainer(net))
    assert net[0].weight.shape == (8, 0, 3, 3)
    assert net[0].weight._data is None


@pytest.mark.parametrize(
    "policy, name",
    [
        ("bfloat16", "'bfloat16'"),
        ("mixed_float16", "'mixed_float16'"),
        ("float32", "'float32'"),
        ("params=float16,compute=float16,output=float16", "'params=float16,compute=float16,out"),
    ],
)
def test_another_policy_is_refused_and_both_are_named(saved, policy, name):
    path, *_ = saved
    net = make_net(policy)
    match = f"cast with 'float16', and this net is cast with {name}.*cast it with 'float16' before"
    with pytest.raises(ValueError, match=match):
        load_checkpoint(path, net, make_trainer(net))


def test_the_way_to_another_policy_that_the_error_names(saved):
    path, first, trainer = saved
    net = make_net()
    again = make_trainer(net)
    load_checkpoint(path, net, again)
    amp.cast(net, "float32")
    masters = trainer.master_params()
    for param, old in zip(net.collect_params().values(), first.collect_params().values()):
        assert np.array_equal(param.data().asnumpy(), masters[old.name].asnumpy())


@pytest.mark.parametrize(
    "kwargs, match",
    [
        ({"optimizer": "adam"}, r"state of the optimizer .*\.SGD, and this trainer has .*\.Adam"),
        ({"loss_scale": 128}, "loss scale .*DynamicLossScale, and this trainer has .*Static"),
        ({"loss_scale": None}, "loss scale .*DynamicLossScale, and this trainer has .*NoLoss"),
        ({"momentum": 0.0}, "another kind of optimizer state .*momentum=0.9 and not 0.0"),
    ],
)
def test_another_kind_of_trainer_is_refused(saved, kwargs, match):
    path, *_ = saved
    refused(match, path, *used(**kwargs))


def test_a_setting_that_changes_the_arrays_of_the_state_is_refused(tmp_path):
    net, trainer = used(optimizer="rmsprop", centered=True)
    path = save_checkpoint(tmp_path / "net.ckpt", net, trainer)
    other = used(optimizer="rmsprop", centered=False)
    refused("another kind of optimizer state for .*centered=True and not False", path, *other)


def test_a_trainer_of_other_parameters_is_refused(saved):
    path, *_ = saved
    net = make_net()
    scale = amp.DynamicLossScale(2.0**10, growth_interval=3)
    trainer = amp.Trainer(net[3].collect_params(), "sgd", {"momentum": 0.9}, loss_scale=scale)
    match = r"had 8 parameters and this one has 2, different in 0.bias, 0.weight, 1.beta and 3 more"
    with pytest.raises(ValueError, match=match):
        load_checkpoint(path, net, trainer)


# ------------------------------------------------------------------------------------ settings stay


def test_learning_rate_and_weight_decay_stay_the_trainers_own(saved, caplog):
    path, *_ = saved
    net = make_net()
    trainer = make_trainer(net, learning_rate=0.5, wd=0.0)
    with caplog.at_level(logging.WARNING, "gluon_amp"):
        load_checkpoint(path, net, trainer)
    assert trainer.learning_rate == 0.5
    assert trainer.optimizer.wd == 0.0
    (record,) = caplog.records
    assert record.getMessage() == (
        "net.ckpt was saved with lr=0.01 and not 0.5, wd=0.001 and not 0.0; this run keeps its own."
    )


def test_nothing_is_logged_if_nothing_differs(saved, caplog, recwarn):
    path, *_ = saved
    net = make_net()
    with caplog.at_level(logging.INFO, "gluon_amp"):
        load_checkpoint(path, net, make_trainer(net))
    assert not caplog.records
    assert not [w for w in recwarn if "saved" in str(w.message)]


def test_the_optimizer_object_stays_the_same(saved):
    path, *_ = saved
    net = make_net()
    trainer = make_trainer(net)
    optimizer = trainer.optimizer
    load_checkpoint(path, net, trainer)
    assert trainer.optimizer is optimizer


def test_the_loss_scale_is_restored_whole(saved):
    path, _, trainer = saved
    net = make_net()
    again = make_trainer(net, loss_scale=amp.DynamicLossScale(2.0**16, growth_interval=500))
    load_checkpoint(path, net, again)
    assert again.loss_scale.state_dict() == trainer.loss_scale.state_dict()
    assert again.loss_scale.growth_interval == 3


def test_extra_can_be_read_alone(saved, tmp_path):
    path, net, trainer = saved
    save_checkpoint(path, net, trainer, epoch=7, best={"top1": 0.5}, order=np.arange(3))
    extra = read_extra(path)
    assert (extra["epoch"], extra["best"], extra["order"].tolist()) == (7, {"top1": 0.5}, [0, 1, 2])
    with open(path, "r+b") as file:
        file.truncate(1000)
    with pytest.raises(ValueError, match="is truncated or damaged"):
        read_extra(path)
