"""Sparse data in cast nets: they compute what they compute with dense data."""

import numpy as np
import pytest

import gluon_amp as amp
from tests.lowering import back_through

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn


class Dot(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(4, 3))

    def hybrid_forward(self, F, x, weight):
        return F.sparse.dot(x * 2, weight)


@pytest.mark.parametrize("stype", ["csr", "row_sparse"])
@pytest.mark.parametrize(
    "make, policy",
    [
        (Dot, "float16"),
        (lambda: nn.Dense(3), "mixed_float16"),
        (lambda: nn.Dense(3), "bfloat16"),
        (Dot, "compute=float8_e4m3,gradients=float32"),
    ],
)
def test_sparse_data_compute_what_dense_data_compute(policy, make, stype):
    net = make()
    net.initialize()
    amp.cast(net, policy)
    dense = nd.array([[0, 1, 0, 3], [0, 0, 0, 0]])
    outputs, gradients = [], []
    for x in (dense, dense.tostype(stype), dense):
        outputs.append(back_through(net, x).asnumpy())
        gradients.append(net.weight.grad().asnumpy())
    for other in (1, 2):
        np.testing.assert_array_equal(outputs[other], outputs[0])
        np.testing.assert_array_equal(gradients[other], gradients[0])


class Words(gluon.HybridBlock):
    """A table of words, whose gradient has the rows of the words in the data, and a dense layer."""

    def __init__(self, shape, transposed):
        super().__init__()
        self.transposed = transposed
        with self.name_scope():
            self.table = self.params.get("table", shape=shape, grad_stype="row_sparse")
            self.head = nn.Dense(1, in_units=2)

    def hybrid_forward(self, F, x, table):
        return self.head(F.sparse.dot(x, table, transpose_a=self.transposed))


@pytest.mark.parametrize("shape, transposed", [((4, 2), False), ((3, 2), True)])
@pytest.mark.parametrize(
    "policy", ["float16", "mixed_float16", "bfloat16", "fused_float32", "compute=tfloat32"]
)
def test_the_gradient_of_a_dot_is_row_sparse(policy, shape, transposed):
    words, tables = nd.array([[0, 1, 0, 0], [0, 0, 0, 3], [0, 0, 0, 1]]).tostype("csr"), []
    for one in (None, policy):
        net = Words(shape, transposed)
        net.initialize(mx.init.One())
        if one:
            amp.cast(net, one)
        trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.125})
        for _ in range(2):
            with autograd.record():
                loss = net(words).mean()
            trainer.backward(loss)
            trainer.step(1)
        assert net.table.grad().stype == "row_sparse"
        tables.append(net.table.data().asnumpy())
    assert not (tables[0] == 1).all()
    np.testing.assert_allclose(*tables, rtol=2.0**-8)
    if policy == "float16" and not transposed:
        (row, *_) = amp.describe(net, words).rows
        assert row.compute_dtype == "float32" and "sparse" in row.reason
