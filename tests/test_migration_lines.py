"""What gluon_amp offers in place of each function of mxnet.contrib.amp, run."""

import numpy as np
import pytest

import gluon_amp as amp

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn


def small(policy=None):
    mlp = nn.HybridSequential()
    mlp.add(nn.Dense(8, in_units=4), nn.Activation("tanh"), nn.Dense(2, in_units=8))
    mlp.initialize()
    if policy is not None:
        amp.cast(mlp, policy)
    return mlp


def backward(mlp, owner):
    with autograd.record():
        loss = (mlp(nd.ones((3, 4))) ** 2).mean()
    owner.backward(loss)


def sgd(mlp, **settings):
    return amp.Trainer(mlp.collect_params(), "sgd", {"learning_rate": 0.1}, **settings)


def computes_in(mlp, op):
    rows = amp.describe(mlp, nd.ones((3, 4))).rows
    return {row.compute_dtype for row in rows if row.op == op}


def test_init():
    mlp = small()
    amp.cast(mlp, "mixed_float16")
    assert computes_in(mlp, "FullyConnected") == {"float16"}
    amp.cast(mlp, "float32")
    assert computes_in(mlp, "FullyConnected") == {"float32"}


def test_bfloat16():
    policies = {one["policy"]: one for one in amp.doctor().to_dict()["policies"]}
    if not policies["bfloat16"]["runs"]:
        pytest.skip("this CPU cannot run bfloat16")
    assert computes_in(small("bfloat16"), "FullyConnected") == {"bfloat16"}


def test_pin():
    policy = amp.Policy.parse("mixed_float16").pin(ops=["Activation"])
    mlp = small(policy)
    assert computes_in(mlp, "Activation") == {"float32"}
    assert computes_in(mlp, "FullyConnected") == {"float16"}


def test_masters():
    mlp = small("float16")
    owner = sgd(mlp)
    backward(mlp, owner)
    owner.step(3)
    assert {np.dtype(v.dtype).name for v in owner.master_params().values()} == {"float32"}


def test_init_trainer():
    mlp = small("float16")
    owner = gluon.Trainer(mlp.collect_params(), "sgd", {"multi_precision": True})
    amp.init_trainer(owner)
    backward(mlp, owner)
    assert owner.step(3).applied


def test_scale_loss():
    mlp = small("float16")
    owner = sgd(mlp)
    with autograd.record():
        loss = (mlp(nd.ones((3, 4))) ** 2).mean()
        with amp.scale_loss(loss, owner) as scaled:
            autograd.backward(scaled)
    assert owner.step(3).applied


def test_step_report():
    mlp = small("float16")
    owner = sgd(mlp)
    backward(mlp, owner)
    report = owner.step(3)
    assert report.applied and report.loss_scale == 65536


def test_clip():
    mlp = small("mixed_float16")
    owner = sgd(mlp)
    backward(mlp, owner)
    assert owner.clip_global_norm(1e-3, batch_size=3) > 1e-3
    owner.step(3)
    backward(mlp, owner)
    amp.unscale(owner)
    owner.step(3)


def test_read_scale():
    for asked, expected in (("dynamic", 65536), (128, 128), (None, 1)):
        assert sgd(small("float16"), loss_scale=asked).loss_scale.scale == expected


def test_kept_scale(tmp_path):
    mlp = small("float16")
    owner = sgd(mlp, loss_scale=amp.DynamicLossScale(2.0**10))
    backward(mlp, owner)
    owner.step(3)
    owner.loss_scale.update(False)
    owner.save_states(str(tmp_path / "states"))
    fresh = sgd(mlp, loss_scale=amp.DynamicLossScale(2.0**10))
    fresh.load_states(str(tmp_path / "states"))
    assert fresh.loss_scale.scale == 512


def test_convert_symbol():
    out = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc")
    converted = amp.symbolic.convert(mx.sym.SoftmaxOutput(out, name="softmax"), "float16")
    dtypes = {"data": "float32", "softmax_label": "float32"}
    types = dict(zip(converted.list_arguments(), converted.infer_type(**dtypes)[0]))
    assert np.dtype(types["fc_weight"]) == np.float16
    assert np.dtype(converted.infer_type(**dtypes)[1][0]) == np.float32


def test_convert_block():
    mlp = small("float16")
    owner = sgd(mlp)
    losses = []
    for _ in range(20):
        with autograd.record():
            loss = ((mlp(nd.ones((3, 4))) - 1) ** 2).sum()
        owner.backward(loss)
        owner.step(3)
        losses.append(loss.asscalar())
    assert losses[-1] < losses[0] / 2


def test_bucketing():
    def generate(length):
        out = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, flatten=False, name="fc")
        return mx.sym.SoftmaxOutput(out.sum(axis=1), name="softmax"), ("data",), ("softmax_label",)

    buckets = amp.symbolic.BucketingModule(
        generate, default_bucket_key=5, policy="float16", loss_scale=128
    )
    buckets.bind([("data", (2, 5, 3))], [("softmax_label", (2,))])
    buckets.init_params()
    buckets.init_optimizer()
    for length in (5, 3):
        batch = mx.io.DataBatch(
            [nd.ones((2, length, 3))],
            [nd.zeros((2,))],
            bucket_key=length,
            provide_data=[("data", (2, length, 3))],
            provide_label=[("softmax_label", (2,))],
        )
        buckets.forward(batch)
        buckets.backward()
        buckets.update()
    assert buckets.last_report.applied
