"""What a prompt and a notebook show of the public objects: one line, and tables."""

import html

import numpy as np
import pytest

import gluon_amp as amp

import mxnet as mx
from mxnet.gluon import nn


@pytest.fixture
def net():
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(2, in_units=3), nn.BatchNorm(in_channels=2))
    net.initialize(mx.init.One())
    return amp.cast(net, "float16")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ((True, 65536, 65536), "applied, scale 65536"),
        ((True, 2**23, 2**24, 1.25), "applied, scale 2^23 → 2^24, gradient norm 1.25"),
        ((False, 2, 1, None, ("w",)), "skipped, scale 2 → 1, overflow in 1 parameter: w"),
        (
            (False, 65536, 32768, None, ("conv0_weight", *["b"] * 22), 7),
            "skipped, scale 65536 → 32768, overflow in 23 parameters: conv0_weight, …",
        ),
    ],
)
def test_a_step_report_is_one_line(fields, expected):
    assert repr(amp.StepReport(*fields)) == f"StepReport({expected})"


def test_a_trainer_names_its_optimizer_scale_and_skips(net):
    trainer = amp.Trainer(net.collect_params(), "nag", {"learning_rate": 0.1})
    start = "Trainer(NAG, learning_rate=0.1, 6 parameters, DynamicLossScale at "
    assert repr(trainer) == f"{start}65536)"
    with mx.autograd.record():
        loss = net(mx.nd.ones((4, 3))).sum() * np.inf
    trainer.backward(loss)
    report = trainer.step(4)
    assert repr(trainer) == f"{start}{report.next_loss_scale:g}, 1 step skipped)"
    amp.cast(net, "float32")
    plain = amp.Trainer([net[0].bias], "sgd")
    assert repr(plain) == "Trainer(SGD, learning_rate=0.01, 1 parameter)"


@pytest.mark.parametrize(
    "text",
    [
        "Policy('float32')",
        "Policy('float16')",
        "Policy('mixed_float16')",
        "Policy('bfloat16')",
        "Policy('compute=float16,output=float16')",
        "Policy('params=float16,compute=float16,accumulate=float16')",
        "Policy('float16').pin(ops=['tanh', 'dot']).pin(blocks=['f.*0'], dtype='float16')",
    ],
)
def test_a_policy_is_shown_as_the_code_that_makes_it(text):
    policy = eval(text, {"Policy": amp.Policy})
    assert repr(policy) == text


def test_a_diagnosis_is_one_line_and_says_whether_it_is_ok(net):
    data = mx.nd.ones((2, 3))
    ok = amp.diagnose(net, mx.gluon.loss.L2Loss(), data, mx.nd.zeros((2, 2)), loss_scale=8)
    assert ok.ok and repr(ok) == "Diagnosis(ok, scale 8)"
    bad = amp.Diagnosis("backward_overflow", "0", "dot", None, 2**30, 2**24, "Lower it.")
    assert not bad.ok
    assert repr(bad) == "Diagnosis(backward_overflow in 0 (dot), scale 2^30, recommended 2^24)"


def test_a_description_is_one_line_and_a_table(net):
    description = amp.describe(net, mx.nd.ones((2, 3)))
    assert repr(description) == "Description(2 operators: 1 in float16 (emulated), 1 in float32)"
    assert description._repr_html_() == f"<pre>{html.escape(str(description))}</pre>"


def test_a_gradient_report_is_one_line_and_a_table(net):
    trainer = amp.Trainer(net.collect_params(), "sgd", loss_scale=8)
    with mx.autograd.record():
        loss = net[0](mx.nd.ones((2, 3)))
    trainer.backward(loss)
    report = amp.gradient_report(net, trainer)
    assert repr(report) == "GradientReport(4 gradients, loss scale 8, recommended 2048)"
    rows = [line.split() for line in report._repr_html_().splitlines()]
    assert rows[0] == ["<pre>gradient", "of", "dtype", "largest", "0", "&lt;2^-14", "headroom"]
    assert rows[1] == ["net_dense0_weight", "float16", "1.6e+01", "0.0%", "0.0%", "12.0"]


def test_findings_and_the_doctor_are_texts(net):
    for report in (amp.check(net, None, mx.nd.ones((8, 3))), amp.doctor(device="cpu")):
        assert report._repr_html_() == f"<pre>{html.escape(str(report))}</pre>"
