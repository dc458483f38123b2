"""Ids, indices and lengths above 65,504 stay exact in a net whose tensors are float16.

Float16 holds whole numbers only up to 2048, and none above 65,504 (deepinsight gluon-face 28).
"""

import numpy as np
import pytest

import gluon_amp as amp

import mxnet as mx
from mxnet import gluon, nd

pytestmark = pytest.mark.filterwarnings("ignore:.* is not used by any computation")

ROWS = 70001
IDS = np.array([2049, 65537, 70000], "float32")


def with_a_peak(F, column, ids):
    """The column with its largest number at the second of the ids."""
    peak = F.one_hot(F.slice_axis(ids, axis=0, begin=1, end=2), ROWS)
    return column + 2000 * F.reshape(peak, (ROWS, 1))


# what is computed from a float16 column of ROWS numbers, and from ids
LEGACY = {
    "Embedding": lambda F, column, ids: F.Embedding(
        ids, F.arange(ROWS).reshape((ROWS, 1)), input_dim=ROWS, output_dim=1
    ),
    "take": lambda F, column, ids: F.take(column, ids),
    "pick": lambda F, column, ids: F.pick(F.tile(column.reshape((1, ROWS)), (3, 1)), ids),
    "gather_nd": lambda F, column, ids: F.gather_nd(column, ids.reshape((1, 3))),
    "scatter_nd": lambda F, column, ids: F.scatter_nd(
        F.slice_axis(column, axis=0, begin=1, end=4), ids.reshape((1, 3)), shape=(ROWS, 1)
    ),
    "one_hot": lambda F, column, ids: F.argmax(F.one_hot(ids, ROWS), axis=1),
    "index_copy": lambda F, column, ids: F.contrib.index_copy(
        column, F.cast(ids, "int32"), F.slice_axis(column, axis=0, begin=1, end=4)
    ),
    "SequenceMask": lambda F, column, ids: F.SequenceMask(
        F.tile(column, (1, 3)), ids, use_sequence_length=True, value=-1
    ),
    "SequenceLast": lambda F, column, ids: F.SequenceLast(
        F.tile(column, (1, 3)), ids, use_sequence_length=True
    ),
    "SequenceReverse": lambda F, column, ids: F.SequenceReverse(
        F.tile(column, (1, 3)), ids, use_sequence_length=True
    ),
    "slice_like": lambda F, column, ids: F.slice_like(column, F.one_hot(ids, 2049), axes=(0,)),
    "arange_like": lambda F, column, ids: F.contrib.arange_like(column, axis=0),
    "argmax": lambda F, column, ids: F.argmax(with_a_peak(F, column, ids), axis=0),
    "topk": lambda F, column, ids: F.topk(with_a_peak(F, column, ids), axis=0),
    "ravel": lambda F, column, ids: F.ravel_multi_index(F.stack(ids * 0 + 1, ids), shape=(2, ROWS)),
    "softmax_cross_entropy": lambda F, column, ids: F.softmax_cross_entropy(
        F.tile(column.reshape((1, ROWS)), (3, 1)), F.cast(ids, "float32")
    ),
    "arithmetic with ids": lambda F, column, ids: F.take(column, ids.reshape((3, 1)) - 1),
}
NUMPY = {
    "embedding": lambda F, column, ids: F.npx.embedding(
        ids, F.np.arange(ROWS).reshape((ROWS, 1)), input_dim=ROWS, output_dim=1
    ),
    "take": lambda F, column, ids: F.np.take(column, ids, axis=0, mode="clip"),
    "pick": lambda F, column, ids: F.npx.pick(F.np.tile(column.reshape((1, ROWS)), (3, 1)), ids),
    "gather_nd": lambda F, column, ids: F.npx.gather_nd(column, ids.reshape((1, 3))),
    "one_hot": lambda F, column, ids: F.np.argmax(F.npx.one_hot(ids, ROWS), axis=1),
    "sequence_mask": lambda F, column, ids: F.npx.sequence_mask(
        F.np.tile(column, (1, 3)), ids, use_sequence_length=True, value=-1
    ),
    "arange_like": lambda F, column, ids: F.npx.arange_like(column, axis=0),
    "arithmetic with ids": lambda F, column, ids: F.np.take(
        column, ids.reshape((3, 1)) - 1, axis=0, mode="clip"
    ),
}


class Net(gluon.HybridBlock):
    """Makes a column of ROWS numbers with a matrix product, and calls one of the functions."""

    def __init__(self, function, numpy):
        super().__init__()
        self.function, self.numpy = function, numpy
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(1, 1), init=mx.init.One())

    def hybrid_forward(self, F, x, ids, weight):
        product = F.npx.fully_connected if self.numpy else F.FullyConnected
        column = product(x, weight, num_hidden=1, no_bias=True)
        return self.function(F, column, ids)


def results(function, numpy, dtype):
    xp = mx.np if numpy else nd
    x = xp.array((np.arange(ROWS) % 1000).reshape(-1, 1).astype("float32"))
    ids = xp.array(IDS, dtype=dtype)
    net = Net(function, numpy)
    net.initialize()
    expected = net(x, ids).asnumpy()
    amp.cast(net, "float16")
    result = net(x, ids).asnumpy()
    products = [row for row in amp.describe(net, x, ids).rows if row.op == "FullyConnected"]
    assert not products or products[0].compute_dtype == "float16"
    return result, expected


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("name", LEGACY)
def test_large_ids_stay_exact(name, dtype):
    result, expected = results(LEGACY[name], False, dtype)
    assert expected.size
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("name", NUMPY)
def test_large_ids_stay_exact_under_set_np(name, dtype):
    mx.npx.set_np()
    try:
        result, expected = results(NUMPY[name], True, dtype)
    finally:
        mx.npx.reset_np()
    assert expected.size
    np.testing.assert_array_equal(result, expected)


def test_the_ids_would_change_in_float16():
    with np.errstate(over="ignore"):
        assert IDS.astype("float16").tolist() == [2048.0, np.inf, np.inf]
