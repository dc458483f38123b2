"""Sparse data in cast nets: they compute what they compute with dense data."""

import numpy as np
import pytest

import gluon_amp as amp

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
        with autograd.record():
            out = net(x)
        out.backward()
        outputs.append(out.asnumpy())
        gradients.append(net.weight.grad().asnumpy())
    for other in (1, 2):
        np.testing.assert_array_equal(outputs[other], outputs[0])
        np.testing.assert_array_equal(gradients[other], gradients[0])
