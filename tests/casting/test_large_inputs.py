"""Values above 65,504 reach every norm and softmax in float32 (keras-team/keras 22586).

Where a float16 operator gives such a value, it is infinite there already; where the value is an
input or comes from a float32 operator, no cast to float16 may stand before the norm.
"""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.policy import op_table

import mxnet as mx
from mxnet import autograd, gluon, sym
from mxnet.gluon import nn

LARGE = 1e5 * np.random.RandomState(0).uniform(0.7, 3, (4, 4, 3, 3)).astype("float32")

# every operator that the table calls a norm, and those that sum exponentials
NORMS = {
    "BatchNorm": lambda x: sym.BatchNorm(x, fix_gamma=False),
    "BatchNorm_v1": lambda x: sym.BatchNorm_v1(x, fix_gamma=False),
    "_contrib_BatchNormWithReLU": lambda x: sym.contrib.BatchNormWithReLU(x, fix_gamma=False),
    "_contrib_SyncBatchNorm": lambda x: sym.contrib.SyncBatchNorm(x, key="k", ndev=1),
    "LayerNorm": lambda x: sym.LayerNorm(x, axis=1),
    "GroupNorm": lambda x: sym.GroupNorm(x, num_groups=2),
    "InstanceNorm": sym.InstanceNorm,
    "L2Normalization": sym.L2Normalization,
    "LRN": lambda x: sym.LRN(x, nsize=3),
    "softmax": lambda x: sym.softmax(x, axis=1),
    "log_softmax": lambda x: sym.log_softmax(x, axis=1),
    "softmin": lambda x: sym.softmin(x, axis=1),
    "SoftmaxActivation": lambda x: sym.SoftmaxActivation(x, mode="channel"),
}

# what stands before the norm, and the data that make its input LARGE
PLACES = {
    "first": (lambda x: x, LARGE),
    "after a float32 operator": (sym.square, np.sqrt(LARGE)),
    "after operators that follow it": (
        lambda x: sym.transpose(sym.relu(sym.square(x)), (0, 1, 3, 2)),
        np.sqrt(LARGE),
    ),
}


def test_these_are_all_norms():
    kinds = {name: kind for kind, _, names in op_table.GROUPS for name in names.split()}
    assert {name for name, kind in kinds.items() if kind == "norm"} <= {*NORMS}
    assert {kinds[name] for name in NORMS} == {"norm", "float32"}


def outputs(net, data, training):
    with autograd.record(train_mode=training):
        results = net(mx.nd.array(data))
    results = results if isinstance(results, list) else [results]
    return [result.asnumpy() for result in results]


@pytest.mark.parametrize("policy", ["float16", "mixed_float16"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("norm", NORMS)
def test_a_norm_of_large_values_is_that_of_float32(norm, place, policy):
    before, data = PLACES[place]
    variable = sym.var("data", dtype="float32")
    x = before(variable)
    # a matrix product beside it reads a float16 cast of the same values
    both = sym.Group([NORMS[norm](x), sym.FullyConnected(x * 2.0**-14, num_hidden=2)])
    net = gluon.SymbolBlock(both, [variable])
    net.initialize(mx.init.One())
    for training in (False, True):
        expected, _ = outputs(net, data, training)
        assert np.isfinite(expected).all()
        amp.cast(net, policy)
        result, product = outputs(net, data, training)
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
        assert np.isfinite(product).all()
        dtypes = {row.op: row.compute_dtype for row in amp.describe(net, mx.nd.array(data)).rows}
        assert (dtypes[norm], dtypes["FullyConnected"]) == ("float32", "float16")
        amp.cast(net, "float32")


LAYERS = {  # those that accept mx.np arrays
    "BatchNorm": lambda: nn.BatchNorm(in_channels=4),
    "LayerNorm": lambda: nn.LayerNorm(in_channels=3),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_of_gluon_normalizes_large_inputs(layer, arrays):
    net = nn.HybridSequential()
    net.add(LAYERS[layer](), nn.Dense(3, in_units=36))
    net.initialize(mx.init.One())
    data = arrays.array(LARGE)
    with autograd.record():
        expected = net(data).asnumpy()
    amp.cast(net, "mixed_float16")
    data.attach_grad()
    with autograd.record():
        result = net(data)
        result.backward()
    assert np.isfinite(data.grad.asnumpy()).all()
    np.testing.assert_allclose(result.asnumpy(), expected, atol=0.05)
