"""Which dtypes a network really uses."""

import pytest

import gluon_amp as amp
from gluon_amp.base.messages import UsageError
from gluon_amp.policy import Policy
from gluon_amp.training.data import open_synthetic
from gluon_amp.training.runs.loop import TrainingError
from gluon_amp.training.runs.observe import check_compute_dtype, join_dtypes, observe

import mxnet as mx
from mxnet.gluon import nn

DATA = open_synthetic(10, (3, 8, 8), 5)


def observed(*layers, policy="float16", requested=None):
    net = nn.HybridSequential()
    net.add(*layers)
    net.initialize()
    amp.cast(net, policy)
    return observe(net, DATA, mx.cpu(), "net", Policy(requested or policy))


def test_every_dtype_is_named():
    seen = observed(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Dense(5))
    assert seen == {
        "conv_weight": "float16",
        "conv_compute": "float16",
        "batchnorm": "float32",
        "logits": "float32",
        "loss": "float32",
    }
    kept = observed(nn.Dense(5), policy="mixed_float16")
    assert (kept["conv_weight"], kept["batchnorm"]) == ("float32", "none")
    assert join_dtypes(["float32", "float16", "float32"]) == "float16+float32"


def test_another_dtype_than_requested_ends_the_run():
    with pytest.raises(TrainingError, match="^float16 was requested, but net computes in float32"):
        observed(nn.Dense(5), policy="float32", requested="float16")
    study = Policy("compute=float8_e4m3")  # its first and last product stay in float32
    check_compute_dtype(study, "float32+float8_e4m3", "net")
    with pytest.raises(TrainingError):
        check_compute_dtype(study, "float8_e4m3", "net")


@pytest.mark.parametrize(
    "layer, sentence",
    [
        (nn.Dense(4), r"returns \(2, 4\) for 2 images of 5 classes"),
        (nn.Conv2D(5, 9), "net does not accept images of 3×8×8: "),
    ],
)
def test_what_is_no_classifier_of_these_images(layer, sentence):
    with pytest.raises(UsageError, match=sentence):
        observed(layer)
