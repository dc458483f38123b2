"""The binding of a cast block."""

import gluon_amp as amp
from gluon_amp.casting.binding import binding_of
from gluon_amp.policy import Policy

from mxnet import gluon, nd
from mxnet.gluon import nn


def test_every_cast_block_has_a_binding_and_no_other_block():
    net, other = nn.HybridSequential(), nn.Dense(2)
    net.add(nn.Dense(2, in_units=2))
    net.initialize()
    assert binding_of(net) is binding_of(net[0]) is None

    amp.cast(net, "mixed_float16")
    assert binding_of(net).policy == binding_of(net[0]).policy == Policy.parse("mixed_float16")
    assert (binding_of(net).path, binding_of(net[0]).path) == ("", "0")
    assert binding_of(net).graph is None  # it has not run yet
    net(nd.ones((1, 2)))
    inputs, symbol = binding_of(net).graph
    assert [variable.name for variable in inputs] == ["data"]
    assert [node.op for node in binding_of(net).nodes] == ["FullyConnected"]
    assert "amp_cast" in symbol.tojson(remove_amp_cast=False)
    assert binding_of(other) is None

    amp.cast(net, "float32")
    assert binding_of(net) is binding_of(net[0]) is None


def test_a_plain_block_has_no_binding_and_its_hybrid_parts_have():
    net = gluon.nn.Sequential()
    net.add(nn.Dense(2))
    amp.cast(net)
    assert binding_of(net) is None
    assert binding_of(net[0]).path == "0"
