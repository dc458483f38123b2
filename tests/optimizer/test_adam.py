"""Adam and AdamW: accuracy, and sparse gradients."""

import numpy as np
import pytest

from gluon_amp import Trainer
from tests.optimizer.reference import build

import mxnet as mx
from mxnet import autograd, gluon, nd


def test_adams_first_update_is_the_learning_rate_to_3_ulp(way):
    # |m'| / sqrt(v') is 1. With 1 - 0.999 in the correction and 1 - float32(0.999) in the kernel
    # it was 73 ulp off, and 900 ulp with 0.9999.
    ulp = np.spacing(np.float32(0.01))
    for beta2, dtype in [(0.9, "float16"), (0.999, "float32"), (0.99999, "float16")]:
        _, updater = build("adam", learning_rate=0.01, beta2=beta2, epsilon=0.0)
        weight = nd.zeros((1000,), dtype=dtype)
        grad = np.random.RandomState(0).randn(1000).astype(dtype)
        updater([0], [nd.array(grad, dtype=dtype)], [weight])
        found = weight if dtype == "float32" else updater.states[0][0]
        errors = np.abs(np.abs(found.asnumpy().astype("float64")) - 0.01) / ulp
        # MXNet's multi-tensor op computes g**2 - beta2 * g**2, each of them rounded
        share_lost = 2.0**-24 / (1 - beta2) if way == "fused" else 0
        assert errors.max() <= 3 + share_lost * 0.01 / ulp, beta2


def test_a_small_decay_of_adamw_is_not_rounded_away(way):
    # 1 - 1e-6 is 1 - 17/16 e-6 in float32
    _, updater = build("adamw", learning_rate=1e-4, wd=0.01)
    weight = nd.array(np.random.RandomState(0).uniform(1, 2, 10000), dtype="float16")
    before = weight.asnumpy().astype("float64")
    updater([0], [nd.zeros((10000,), dtype="float16")], [weight])
    after = updater.states[0][0].asnumpy().astype("float64")
    assert (before - after).sum() / before.sum() == pytest.approx(1e-6, rel=2e-3)


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_sparse_gradient_of_adamw_decays_all_rows_and_adds_no_l2(dtype, lazy):
    # Adam's first step is lr · g / |g|: 0.5 where there is a gradient. Each row decays by lr · wd.
    # With L2 the stored zero would be a gradient too, and its row 0.25.
    _, updater = build("adamw", learning_rate=0.5, wd=0.5, epsilon=1e-6, lazy_update=lazy)
    weight = nd.ones((3, 1), dtype=dtype)
    rows = nd.array([[1], [0]], dtype=dtype), nd.array([0, 1], dtype="int64")
    updater([0], [nd.sparse.row_sparse_array(rows, shape=(3, 1))], [weight])
    np.testing.assert_allclose(weight.asnumpy(), [[0.25], [0.75], [0.75]], rtol=1e-3)


def test_the_master_follows_a_written_weight_also_in_a_lazy_update():
    trained = gluon.Parameter("p", shape=(2, 1), dtype="float16", grad_stype="row_sparse")
    trained.initialize(mx.init.One())
    trainer = Trainer([trained], "adam", {"learning_rate": 0.125, "epsilon": 0.0}, loss_scale=None)
    for _ in range(2):
        trained.set_data(nd.full((2, 1), 4, dtype="float16"))
        with autograd.record():
            loss = nd.take(trained.data(), nd.array([1])).astype("float32").sum()
        loss.backward()
        trainer.step(1)
    (master,) = trainer.master_params().values()
    np.testing.assert_allclose(master.asnumpy(), [[4], [3.875]], rtol=1e-3)
