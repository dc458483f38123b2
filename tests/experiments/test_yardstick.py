"""The float64 yardstick: MXNet's float64 beside numpy, decibels, and the page of a network."""

import json
import math

import numpy as np
import pytest

from experiments.yardstick import __main__ as command
from experiments.yardstick import measure
from experiments.yardstick.networks import BATCH, NETWORKS, Network, chain

from mxnet import nd
from mxnet.gluon import nn

DENSE = Network(lambda: chain(nn.Dense(5, activation="relu"), nn.Dense(3)), 0.1)
generator = np.random.default_rng(0)
BATCH_OF_8 = generator.standard_normal((8, 6)).astype("f4"), generator.integers(3, size=8)
PARAMETERS = [generator.standard_normal(shape).astype("f4") for shape in ((5, 6), 5, (3, 5), 3)]


def in_numpy(x, label):
    """The loss, and the gradients of both weights, by hand."""
    w1, b1, w2, b2 = (parameter.astype(np.float64) for parameter in PARAMETERS)
    hidden = x @ w1.T + b1
    active = np.maximum(hidden, 0)
    logits = active @ w2.T + b2
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    loss = -np.log(probabilities[range(8), label]).mean()
    sent = (probabilities - np.eye(3)[label]) / 8
    return loss, [((sent @ w2) * (hidden > 0)).T @ x, sent.T @ active]


def test_float64_is_that_of_numpy():
    net = measure.new(DENSE, PARAMETERS, BATCH_OF_8[0], "float64")
    found = measure.backward(net, *BATCH_OF_8, dtype="float64")
    loss, gradients = in_numpy(*BATCH_OF_8)
    assert found.loss == pytest.approx(loss, rel=1e-14)
    for one, other in zip(found.gradients, gradients):
        assert measure.decibels(other, one - other) > 290
    assert measure.check(net, BATCH_OF_8, found.gradients) > 130
    wrong = [gradient * (1 + 1e-6) for gradient in found.gradients]
    assert 110 < measure.check(net, BATCH_OF_8, wrong) < 130


def test_mxnets_gelu_is_not_float64():
    x = np.linspace(-4, 4, 81)
    found = nd.LeakyReLU(nd.array(x, dtype="float64"), act_type="gelu").asnumpy()
    exact = [value * (1 + math.erf(value / math.sqrt(2))) / 2 for value in x]
    assert 1e-7 < np.abs(found - exact).max() < 3e-7


def test_decibels():
    assert measure.decibels([3.0, 4.0], [0.03, 0.04]) == pytest.approx(40)
    assert measure.decibels(1.0, 2.0**-11) == pytest.approx(66.2, abs=0.1)  # a half unit of float16
    assert measure.decibels(5.0, 0.0) == pytest.approx(313, abs=0.1)  # what float64 resolves


def test_wider_formats_are_nearer_to_float64():
    found = measure.at(DENSE, PARAMETERS, BATCH_OF_8)["formats"]
    lowest = {name: min(values["layers"]) for name, values in found.items()}
    assert lowest["float32"] > 110 > lowest["float16"] > lowest["bfloat16"] + 9
    assert found["float16"]["scale"] == 2.0**16 and found["bfloat16"]["scale"] == 1


def test_the_scale_of_float16_is_the_highest_that_does_not_overflow():
    large = [parameter * np.float32(30) for parameter in PARAMETERS]
    found = measure.in_format(DENSE, large, BATCH_OF_8, "float16")
    assert found.scale < 2.0**16 and np.isfinite(found.gradients[0]).all()


def test_the_page_of_a_network(tmp_path, monkeypatch, capsys):
    name = "dense, 12 layers, tanh"
    monkeypatch.setattr(measure, "STEPS", 2)
    monkeypatch.setattr(command, "NETWORKS", {name: NETWORKS[name]})
    assert command.main(["--output", str(tmp_path)]) == 0
    values = json.loads((tmp_path / "yardstick.json").read_text())["networks"][name]
    assert values["layers"] == [f"{number}.weight" for number in range(12)]
    assert len(values["trained"]["watch"]["bfloat16"]) == 12
    assert values["outputs"]["float16"]["in batches of 8"]["of"] == BATCH
    page = (tmp_path / "yardstick.md").read_text()
    assert f"| {name} | " in page and "in batches of 8" in page
    assert (tmp_path / "yardstick.png").read_bytes().startswith(b"\x89PNG")
