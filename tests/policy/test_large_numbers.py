"""Numbers above 65,504, the largest of float16, in a net whose tensors are float16.

Values reach every norm and softmax in float32 (keras-team/keras 22586). Where a float16 operator
gives such a value, it is infinite there already; where the value is an input or comes from a
float32 operator, no cast to float16 may stand before the norm.

Ids, indices and lengths stay exact (deepinsight gluon-face 28). Float16 holds whole numbers only up
to 2048.
"""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.graph import op_table
from tests.casting.nets import Net

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


def test_these_are_all_norms():
    kinds = {name: group.kind for group in op_table.GROUPS for name in group.names}
    assert {name for name, kind in kinds.items() if kind == "norm"} <= {*NORMS}
    assert {kinds[name] for name in NORMS} == {"norm", "float32"}


def outputs(net, data, training):
    with autograd.record(train_mode=training):
        results = net(mx.nd.array(data))
    results = results if isinstance(results, list) else [results]
    return [result.asnumpy() for result in results]


@pytest.mark.parametrize("norm, training", [*((n, True) for n in NORMS), ("BatchNorm", False)])
def test_a_norm_of_large_values_is_that_of_float32(norm, training):
    data = sym.var("data", dtype="float32")
    # operators that follow their input, behind one in float32
    x = sym.transpose(sym.relu(sym.square(data)), (0, 1, 3, 2))
    # a matrix product beside it reads a float16 cast of the same values
    both = sym.Group([NORMS[norm](x), sym.FullyConnected(x * 2.0**-14, num_hidden=2)])
    net = gluon.SymbolBlock(both, [data])
    net.initialize(mx.init.One())
    expected, _ = outputs(net, np.sqrt(LARGE), training)
    assert np.isfinite(expected).all()
    amp.cast(net, "float16")
    result, product = outputs(net, np.sqrt(LARGE), training)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    assert np.isfinite(product).all()
    dtypes = {row.op: row.compute_dtype for row in amp.describe(net).rows}
    assert (dtypes[norm], dtypes["FullyConnected"]) == ("float32", "float16")


ROWS = 70001
IDS = np.array([2049, 65537, 70000], "float32")


def with_a_peak(F, column, ids):
    """The column with its largest number at the second of the ids."""
    peak = F.one_hot(F.slice_axis(ids, axis=0, begin=1, end=2), ROWS)
    return column + 2000 * F.reshape(peak, (ROWS, 1))


# what is computed from a float16 column of ROWS numbers, and from ids
WITH_IDS = {
    "Embedding": lambda F, column, ids: F.Embedding(
        ids, F.arange(ROWS).reshape((ROWS, 1)), input_dim=ROWS, output_dim=1
    ),
    "take": lambda F, column, ids: F.take(column, ids),
    "SequenceMask": lambda F, column, ids: F.SequenceMask(
        F.tile(column, (1, 3)), ids, use_sequence_length=True, value=-1
    ),
    "arange_like": lambda F, column, ids: F.contrib.arange_like(column, axis=0),
    "topk": lambda F, column, ids: F.topk(with_a_peak(F, column, ids), axis=0),
    "arithmetic with ids": lambda F, column, ids: F.take(column, ids.reshape((3, 1)) - 1),
}


@pytest.mark.filterwarnings("ignore:.* is not used by any computation")
@pytest.mark.parametrize("name, dtype", [*((n, "float32") for n in WITH_IDS), ("take", "int32")])
def test_large_ids_stay_exact(name, dtype):
    x = mx.nd.array((np.arange(ROWS) % 1000).reshape(-1, 1).astype("float32"))
    ids = mx.nd.array(IDS, dtype=dtype)
    # a column of ROWS numbers comes from a matrix product
    column = nn.Dense(1, use_bias=False, weight_initializer="ones")
    net = Net(lambda net, F, x, ids: WITH_IDS[name](F, column(x), ids), column=column)
    net.initialize()
    expected = net(x, ids).asnumpy()
    assert expected.size
    amp.cast(net, "float16")
    np.testing.assert_array_equal(net(x, ids).asnumpy(), expected)
    products = [row for row in amp.describe(net).rows if row.op == "FullyConnected"]
    assert {row.compute_dtype for row in products} <= {"float16"}
