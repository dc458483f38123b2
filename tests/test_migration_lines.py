"""What gluon_amp offers in place of each function of mxnet.contrib.amp, run."""

import numpy as np
import pytest

import gluon_amp as amp

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

DATA = nd.ones((3, 4))


def small(policy="float16"):
    mlp = nn.HybridSequential()
    mlp.add(nn.Dense(8, in_units=4), nn.Activation("tanh"), nn.Dense(2, in_units=8))
    mlp.initialize()
    return amp.cast(mlp, policy)


def computes_in(mlp, op):
    return {row.compute_dtype for row in amp.describe(mlp, DATA).rows if row.op == op}


def test_init_and_its_lists():
    mlp = small("mixed_float16")
    assert computes_in(mlp, "FullyConnected") == computes_in(mlp, "Activation") == {"float16"}
    assert computes_in(amp.cast(mlp, "float32"), "FullyConnected") == {"float32"}
    pinned = small(amp.Policy.parse("mixed_float16").pin(ops=["Activation"]))
    assert computes_in(pinned, "Activation") == {"float32"}
    assert computes_in(pinned, "FullyConnected") == {"float16"}


def test_init_trainer_scale_loss_step_and_unscale():
    mlp = small("mixed_float16")
    stock = gluon.Trainer(mlp.collect_params(), "sgd", {"multi_precision": True})
    amp.init_trainer(stock)
    with autograd.record():
        loss = (mlp(DATA) ** 2).mean()
        with amp.scale_loss(loss, stock) as scaled:
            autograd.backward(scaled)
    amp.unscale(stock)
    report = stock.step(3)
    assert report.applied and report.loss_scale == 65536


@pytest.mark.parametrize("asked, scale", [("dynamic", 65536), (128, 128), (None, 1)])
def test_the_loss_scale_of_a_trainer_that_clips_and_keeps_it(asked, scale, tmp_path):
    mlp = small()
    own, fresh = (amp.Trainer(mlp.collect_params(), "sgd", loss_scale=asked) for _ in range(2))
    assert own.loss_scale.scale == scale
    with autograd.record():
        loss = (mlp(DATA) ** 2).mean()
    own.backward(loss)
    assert own.clip_global_norm(1e-3, batch_size=3) > 1e-3
    own.step(3)
    own.loss_scale.update(False)
    own.save_states(str(tmp_path / "states"))
    fresh.load_states(str(tmp_path / "states"))
    assert fresh.loss_scale.scale == (scale / 2 if asked == "dynamic" else scale)


def test_convert_symbol():
    out = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc")
    converted = amp.symbolic.convert(mx.sym.SoftmaxOutput(out, name="softmax"), "float16")
    arguments, outputs, _ = converted.infer_type(data="float32", softmax_label="float32")
    types = dict(zip(converted.list_arguments(), arguments))
    assert np.dtype(types["fc_weight"]) == np.float16 and np.dtype(outputs[0]) == np.float32


def test_convert_bucketing_module():
    def generate(length):
        out = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, flatten=False, name="fc")
        return mx.sym.SoftmaxOutput(out.sum(axis=1), name="softmax"), ("data",), ("softmax_label",)

    options = {"default_bucket_key": 5, "policy": "float16", "loss_scale": 128}
    buckets = amp.symbolic.BucketingModule(generate, **options)
    buckets.bind([("data", (2, 5, 3))], [("softmax_label", (2,))])
    buckets.init_params()
    buckets.init_optimizer()
    for length in (5, 3):
        shapes = {"provide_data": [("data", (2, length, 3))]}
        shapes["provide_label"] = [("softmax_label", (2,))]
        arrays = [nd.ones((2, length, 3))], [nd.zeros((2,))]
        buckets.forward(mx.io.DataBatch(*arrays, bucket_key=length, **shapes))
        buckets.backward()
        buckets.update()
    assert buckets.last_report.applied
