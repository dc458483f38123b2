"""Law 10: what the policy runs in float16 runs in float16, and programs print what they saw."""

import pytest

import gluon_amp as amp
from gluon_amp.training.data import open_digits
from gluon_amp.training.runs.loop import TrainingError
from gluon_amp.training.runs.observe import observe

import mxnet as mx
from mxnet import nd
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

PRODUCTS = ("Convolution", "Deconvolution", "FullyConnected", "dot")


def every_product():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), nn.Conv2DTranspose(4, 3), nn.Flatten(), nn.Dense(6))
    net.add(nn.HybridLambda(lambda F, x: F.dot(x, x, transpose_b=True)))
    return net


@pytest.mark.parametrize(
    "make, count",
    [(every_product, 4), (lambda: vision.resnet18_v1(classes=5, thumbnail=True), 21)],
    ids=["every product", "resnet"],
)
@pytest.mark.parametrize("policy, low", [("float16", "float16"), ("bfloat16", "bfloat16")])
def test_every_product(policy, low, make, count):
    net = make()
    net.initialize(mx.init.Xavier())
    amp.cast(net, policy)
    rows = [row for row in amp.describe(net, nd.ones((2, 3, 8, 8))).rows if row.op in PRODUCTS]
    if policy == "bfloat16":  # MXNet has no bfloat16 kernel of the others
        rows = [row for row in rows if row.op in ("Convolution", "FullyConnected")]
    assert count - 2 <= len(rows) <= count
    assert {row.compute_dtype for row in rows} == {low}


@pytest.mark.parametrize("asked, seen", [("float16", "float32"), ("float32", "float16")])
def test_a_run_in_another_dtype_than_asked_for_stops(asked, seen):
    data = open_digits(0, range(10), 32)
    net = vision.resnet18_v1(classes=10, thumbnail=True)
    net.initialize(mx.init.Xavier())
    amp.cast(net, seen)
    with pytest.raises(TrainingError, match=f"{asked} was requested, but net computes in {seen}"):
        observe(net, data, mx.cpu(), "net", amp.Policy.parse(asked))
    found = observe(net, data, mx.cpu(), "net", amp.Policy.parse(seen))
    assert (found["conv_compute"], found["logits"]) == (seen, "float32")
