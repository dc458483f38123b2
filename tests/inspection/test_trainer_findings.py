"""check: what a trainer does that costs accuracy, or leaves parameters untrained."""

import pytest

import gluon_amp as amp
from gluon_amp.inspection.trainer_findings import trainer_findings
from tests.inspection.nets import built

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn

EPSILON = (
    "epsilon: Adam's epsilon 1e-08 is 0 in float16, so the update divides by 0: use amp.Trainer, "
    "which updates float32 masters, or multi_precision=True"
)
KVSTORE = (
    "kvstore: the trainer updates on the kvstore, before an overflow can be seen: use amp.Trainer, "
    "or gluon.Trainer(..., update_on_kvstore=False)"
)


def found(net, trainer):
    return [f"{each.kind}: {each.problem}: {each.fix}" for each in trainer_findings(net, trainer)]


@pytest.mark.parametrize("policy, optimizer, options, expected", [
    ("float16", "adam", {}, [EPSILON]),
    ("float16", "adam", {"multi_precision": True}, []),
    ("float16", "adam", {"epsilon": 1e-4}, []),
    ("mixed_float16", "adam", {}, []),  # its parameters are float32
])  # fmt: skip
def test_an_epsilon_that_float16_does_not_have(policy, optimizer, options, expected):
    net = built(nn.Dense(8, in_units=8), policy=policy)
    assert found(net, gluon.Trainer(net.collect_params(), optimizer, options)) == expected


@pytest.mark.parametrize("options, devices, expected", [
    ({"update_on_kvstore": True}, 1, [KVSTORE]),
    ({"kvstore": "dist_sync"}, 1, [KVSTORE]),
    ({"kvstore": "dist_sync", "update_on_kvstore": False}, 1, []),
    ({}, 1, []),
    ({}, 2, [KVSTORE]),
    ({"kvstore": None}, 2, []),
])  # fmt: skip
def test_updates_on_the_kvstore(options, devices, expected, monkeypatch):
    net = nn.Dense(8, in_units=8)
    net.initialize(ctx=[mx.cpu(k) for k in range(devices)])
    trainer = gluon.Trainer(amp.cast(net).collect_params(), "sgd", **options)
    assert found(net, trainer) == expected
    assert found(net, amp.Trainer(net.collect_params(), "sgd")) == []
    if not options:
        monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", "0")
        assert found(net, trainer) == []


def test_frozen_parameters():
    net = built(nn.Dense(8, in_units=8), nn.BatchNorm(in_channels=8))
    trainer = amp.Trainer(net.collect_params(), "adam")
    assert found(net, trainer) == []  # running statistics are not meant
    net[0].collect_params().setattr("grad_req", "null")
    assert found(net, trainer) == [
        f"frozen: the trainer holds {net[0].bias.name}, {net[0].weight.name} with grad_req='null', "
        "never updated: set grad_req='write' to train them, or leave them out of the trainer"
    ]


def test_parameters_that_the_trainer_does_not_hold():
    net = built(nn.Dense(8, in_units=8), nn.Dense(8, in_units=8))
    first, *others = net.collect_params()
    few = amp.Trainer({first: net[0].weight}, "sgd")
    assert found(net, few) == [
        f"frozen: the trainer does not hold {others[0]}, {others[1]} and 1 more, so they stay as "
        "they are: give it net.collect_params(), or set grad_req='null' to freeze them on purpose"
    ]
