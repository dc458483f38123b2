"""The float32 graph of a net, with its masters."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp import graph
from gluon_amp.base.messages import UsageError
from gluon_amp.handover.network import network_of
from tests.trainer.helpers import backward

import mxnet as mx
from mxnet import nd
from mxnet.gluon import nn, rnn


def small() -> nn.HybridSequential:
    mx.random.seed(0)
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Dense(3))
    net.initialize(mx.init.Xavier())
    return net


def test_the_masters_of_a_cast_net_are_run_in_float32():
    net, x = small(), nd.random.normal(shape=(2, 3, 8, 8))
    amp.cast(net, "float16")
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-4})
    backward(trainer, net, x)
    trainer.step(2)
    network = network_of(net, (x,), "f")
    assert {value.dtype.name for value in network.parameters.values()} == {"float32"}
    cast = net(x).asnumpy()
    amp.cast(net, "float32")  # keeps every bit of the masters
    (found,) = network.run(network.inputs)
    np.testing.assert_array_equal(found, net(x).asnumpy())
    assert abs(found - cast).max() > 0


def test_every_edge_has_a_value_a_shape_a_dtype_and_a_path():
    network = network_of(small(), (nd.ones((2, 3, 8, 8)),), "f")
    edges = graph.edges_of(network.json)
    shapes, dtypes = network.shapes(network.inputs), network.dtypes()
    values = network.run(network.inputs, edges)
    assert [v.shape for v in values] == [shapes[e] for e in edges]
    assert [v.dtype.name for v in values] == [dtypes[e] for e in edges]
    assert [network.path_of(i) for i, n in enumerate(network.nodes) if n["op"] != "null"] == [
        *("0", "1", "2")
    ]
    larger = network.shapes({"data": np.ones((5, 3, 8, 8), np.float32)})
    assert larger[network.outputs[0]] == (5, 3)
    with pytest.raises(UsageError, match="inferred shape"):
        network.shapes({"data": np.ones((5, 3, 9, 8), np.float32)})


def test_children_that_are_cast_are_in_the_graph_without_casts():
    net = small()
    amp.cast(net[0], "float16")
    network = network_of(net, (nd.ones((2, 3, 8, 8)),), "f")
    assert "amp_cast" not in [node["op"] for node in network.nodes]


def test_a_cast_network_computes_what_the_cast_net_does():
    net, x = small(), nd.random.normal(shape=(2, 3, 8, 8))
    net(x)
    network = network_of(net, (x,), "f").under(amp.Policy("float16"))
    assert network.parameters[net[0].weight.name].dtype == np.float16
    assert network.parameters[net[1].gamma.name].dtype == np.float32
    amp.cast(net, "float16")
    np.testing.assert_array_equal(network.run(network.inputs)[0], net(x).asnumpy())


def test_an_rnn_layer_creates_its_states():
    layer = rnn.LSTM(4, layout="NTC")
    layer.initialize()
    x = nd.random.normal(shape=(2, 5, 3))
    network = network_of(layer, (x,), "f")
    np.testing.assert_array_equal(network.run(network.inputs)[0], layer(x).asnumpy())
    states = network_of(layer, (x, layer.begin_state(2)), "f")
    assert list(states.inputs) == ["data0", "data1", "data2"]


def head(name, data=None, **attrs):
    """Return a Module with a loss head."""
    data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3) if data is None else data
    return mx.mod.Module(getattr(mx.sym, name)(data, name="s", **attrs), label_names=["s_label"])


@pytest.mark.parametrize(("name", "attrs", "shape", "labels"), [
    ("SoftmaxOutput", {"grad_scale": 2.0}, (2, 4), (2,)),
    ("SoftmaxOutput", {"multi_output": True}, (2, 3, 4), (2, 4)),
    ("SoftmaxOutput", {"preserve_shape": True}, (2, 3, 4), (2, 3)),
    ("SoftmaxOutput", {}, (2, 3, 4), (2, 3)),
    ("LinearRegressionOutput", {}, (2, 4), (2, 4)),
    ("MAERegressionOutput", {}, (2, 4), (2, 4)),
    ("LogisticRegressionOutput", {}, (2, 4), (2, 4)),
    ("SVMOutput", {"margin": 0.5}, (2, 4), (2,)),
])  # fmt: skip
def test_a_head_of_a_module_needs_no_label(name, attrs, shape, labels):
    module = head(name, mx.sym.var("data"), **attrs)
    module.bind([("data", shape)], [("s_label", labels)], for_training=False)
    module.init_params()
    x = nd.random.normal(shape=shape)
    module.forward(mx.io.DataBatch([x], [nd.zeros(labels)]), is_train=False)
    network = network_of(module, (x,), "f")
    assert list(network.inputs) == ["data"] and "s_label" not in network.parameters
    expected = module.get_outputs()[0].asnumpy()
    np.testing.assert_allclose(network.run(network.inputs)[0], expected, rtol=1e-6)


def test_a_module_has_to_be_bound_and_gets_its_data_alone():
    module, x = head("SoftmaxOutput"), nd.ones((2, 4))
    with pytest.raises(UsageError, match="bind and initialize it first"):
        network_of(module, (x,), "f")
    module.bind([("data", (2, 4))], [("s_label", (2,))])
    module.init_params()
    with pytest.raises(UsageError, match="got 2 inputs, expected 1: data"):
        network_of(module, (x, x), "f")


@pytest.mark.parametrize(("net", "inputs", "error"), [
    (nn.Dense(2), [nd.ones((2, 3))], "whose parameters have no values .*: initialize it"),
    (nn.Sequential(), [nd.ones((2, 3))], "got a Sequential, expected a HybridBlock"),
    (small(), [], "needs the net's inputs"),
    (small(), [np.ones((2, 3, 8, 8))], "needs the net's inputs"),
    (small(), [nd.ones((2, 3))], "does not accept these inputs"),
])  # fmt: skip
def test_what_has_no_graph_is_refused_in_a_sentence(net, inputs, error):
    with pytest.raises((UsageError, TypeError), match=error):
        network_of(net, tuple(inputs), "f")
