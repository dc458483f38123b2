"""`policy_of`: the policy by which a net was cast."""

import numpy as np
import pytest

import gluon_amp as amp

import mxnet as mx
from mxnet.gluon import nn


def dense_pair(kind=nn.HybridSequential):
    net = kind()
    net.add(nn.Dense(2, in_units=3), nn.Dense(2, in_units=2))
    return net


@pytest.mark.parametrize("kind", [nn.HybridSequential, nn.Sequential])
def test_a_net_has_the_policy_of_its_last_cast(kind):
    net = dense_pair(kind)
    assert amp.policy_of(net) == amp.Policy("float32")
    for policy in (np.float16, "mixed_float16", amp.Policy("bfloat16").pin(ops=["tanh"])):
        amp.cast(net, policy)
        assert amp.policy_of(net) == amp.policy_of(net[0]) == amp.Policy.parse(policy)
    amp.cast(net, "float32")
    assert amp.policy_of(net) == amp.Policy()


def test_parts_with_different_policies_are_named():
    net = dense_pair(nn.Sequential)
    amp.cast(net[1], "float16")
    with pytest.raises(
        ValueError, match=r"0 has Policy\('float32'\) and 1 has Policy\('float16'\); ask for that"
    ):
        amp.policy_of(net)


def test_what_is_no_net_is_refused():
    with pytest.raises(TypeError, match=r"policy_of\(\) got a Symbol, expected a gluon Block\."):
        amp.policy_of(mx.sym.var("x"))
