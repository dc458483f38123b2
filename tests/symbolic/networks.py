"""Small networks, their data, and Modules that train them, for the tests of this folder."""

import numpy as np

from gluon_amp import graph
from gluon_amp.base.dtypes import dtype_name
from gluon_amp.symbolic import Module

import mxnet as mx
from mxnet import nd
from mxnet.io import DataBatch, NDArrayIter


def conv_net(**head):
    """Return a convolution, a norm of an unusual name, a dense layer and the FAQ's head."""
    x = mx.sym.var("data")
    x = mx.sym.Convolution(x, kernel=(3, 3), num_filter=8, name="conv")
    x = mx.sym.BatchNorm(x, fix_gamma=False, name="stats_of_conv")
    x = mx.sym.Activation(x, act_type="relu")
    x = mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max")
    x = mx.sym.FullyConnected(x, num_hidden=4, name="fc")
    return mx.sym.SoftmaxOutput(x, name="softmax", **head)


def images(count=64):
    """Return noise with a bright square, whose position is the label."""
    rng = np.random.RandomState(1)
    label = rng.randint(0, 4, count)
    data = rng.randn(count, 1, 8, 8) * 0.5
    for k in range(4):
        data[label == k, :, k : k + 4, k : k + 4] += 1
    return data.astype("float32"), label.astype("float32")


def linear_net(hidden=1, head=mx.sym.LinearRegressionOutput, **attrs):
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=hidden, no_bias=True, name="fc")
    return head(x, mx.sym.var("softmax_label"), name="head", **attrs)


def batch_of(data, label=None):
    return DataBatch([nd.array(data)], None if label is None else [nd.array(label)])


def linear_module(weight, rows=1, sgd=None, bind=None, kvstore="local", **kwargs):
    """Return a module of one weight matrix, ready to train; its learning rate is 1.

    `kwargs` are those of Module, `bind` those of its method, and `symbol` is another network of
    that weight.
    """
    module = Module(kwargs.pop("symbol", linear_net(len(weight))), **kwargs)
    label = [("softmax_label", (rows, len(weight)))] if module.label_names else None
    module.bind([("data", (rows, len(weight[0])))], label, **(bind or {}))
    module.init_params(arg_params={"fc_weight": nd.array(weight)}, aux_params={})
    module.init_optimizer(kvstore, optimizer_params={"learning_rate": 1.0, **(sgd or {})})
    return module


def step(module, data, label=None, out_grads=None):
    module.forward(batch_of(data, label), is_train=True)
    module.backward(out_grads)
    module.update()
    return module.last_report


def train(module, data, label, batch=16, epochs=2, **fit):
    np.random.seed(3)
    mx.random.seed(3)
    settings = {
        "optimizer": "sgd",
        "optimizer_params": {"learning_rate": 0.1, "momentum": 0.9},
        "initializer": mx.init.Xavier(),
        **fit,
    }
    module.fit(NDArrayIter(data, label, batch), num_epoch=epochs, **settings)
    return module


def values(module):
    """Return all parameters and running statistics, as numpy arrays."""
    arg_params, aux_params = module.get_params()
    return {name: a.asnumpy() for name, a in {**arg_params, **aux_params}.items()}


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def on_device(module, name="fc_weight"):
    return module.executors[0].arg_dict[name]


def types_of(symbol, **fed):
    """Return the dtype of every tensor of a graph by its name."""
    internals = symbol.get_internals()
    _, dtypes, _ = internals.infer_type(**fed)
    return dict(zip(internals.list_outputs(), map(dtype_name, dtypes)))


def ops_of(symbol):
    return [node["op"] for node in graph.to_json(symbol)["nodes"]]
