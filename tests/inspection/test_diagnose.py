"""Verdicts of diagnose: the cause, the place, and advice that helps."""

import re

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.inspection.diagnose import diagnose
from tests.inspection.nets import L2, built, chain, images, labels, make_net, one, total, unit

import mxnet as mx
from mxnet import nd
from mxnet.gluon import nn


def test_ok():
    result = diagnose(chain(2, 3), total, one(5), None, loss_scale=8)
    assert result == amp.Diagnosis(
        "ok",
        # 8 * 2 * 5 for the second weight, 8 * 3 * 5 for the first
        value_range=(80, 120),
        loss_scale=8,
        advice="Nothing to do: everything is finite at loss scale 8.",
    )
    # A net whose shapes are not known yet is initialized.
    assert diagnose(built(nn.Dense(3)), L2, images(), labels(), 1).ok


def test_bad_data():
    data, label = images().copy(), labels().copy()
    data[1, 2, 3, 4] = -np.inf
    result = diagnose(make_net(), L2, data, labels())
    assert (result.verdict, result.block) == ("bad_data", None)
    assert "sample 1 of this batch" in result.advice
    assert "data holds 0 NaN and 1 infinite values among 216" in result.advice
    assert 0 <= result.value_range[0] < result.value_range[1] <= 1
    label[0, 1] = np.nan
    assert "label holds 1 NaN" in diagnose(make_net(), L2, images(), label).advice

    adding = amp.cast(nn.HybridLambda(lambda F, x, y: x + y), "float16")
    result = diagnose(adding, total, [one(1), one(np.inf)], None)
    assert "data[1] holds 0 NaN and 1 infinite" in result.advice
    assert result.value_range is None
    # Integers are finite.
    net = built(nn.Embedding(5, 4), nn.Dense(3, in_units=8))
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    ids, label = nd.array([[1, 4], [0, 2]], dtype="int32"), nd.array([0, 2], dtype="int32")
    assert diagnose(net, loss, ids, label, 128).verdict == "ok"


@pytest.mark.parametrize("name, block", [("weight", "3"), ("running_mean", "1")])
def test_non_finite_parameter(name, block):
    net = make_net()
    param = getattr(net[int(block)], name)
    param.set_data(param.data() * np.nan)
    result = diagnose(net, L2, images(), labels())
    assert (result.verdict, result.block) == ("non_finite_parameter", block)
    assert result.advice.startswith(f"Go back to a checkpoint in which {param.name} is finite")


def follow(net, advice):
    """Cast again with the pin that an advice names."""
    pin = re.search(r"policy(\.pin\(.*?\]\))", advice)
    amp.cast(net, eval("policy" + pin[1], {"policy": amp.Policy.parse("float16")}))


def test_forward_overflow_names_the_first_block_and_a_pin_that_helps():
    net = chain(300, 300, 1e-6, 2)  # 1, 300, 90000
    result = diagnose(net, total, one(1), None)
    assert (result.verdict, result.block, result.op) == ("forward_overflow", "1", "FullyConnected")
    assert result.value_range == (300, 300)
    assert "lower loss scale can help" in result.advice
    assert diagnose(net, total, one(1), None, 2.0**-20).verdict == "forward_overflow"
    follow(net, result.advice)
    # What follows reads 90000 in float16, so it is the next one to pin.
    result = diagnose(net, total, one(1), None, 1)
    assert (result.verdict, result.block) == ("forward_overflow", "2")
    assert result.value_range == (90000, 90000)
    assert result.advice.startswith("Scale the input down: float16 ends at 65504.")


def test_following_the_advice_of_a_forward_overflow_ends_at_ok():
    # It divides two zeros that float16 has made.
    net = built(unit(1), nn.HybridLambda(lambda F, x: x * 2.0**-13 / (x * 2.0**-13)))
    result = diagnose(net, total, one(2.0**-14), None)
    assert (result.verdict, result.block) == ("forward_overflow", "1")
    follow(net, result.advice)
    assert diagnose(net, total, one(2.0**-14), None, 1).ok


@pytest.mark.parametrize("compute, reason", [
    (lambda F, x: x / x, "its result is not finite in float32 either"),
    (lambda F, x: 1 / x, "it computes in float32"),
])  # fmt: skip
def test_what_no_dtype_can_compute_is_named(compute, reason):
    net = built(unit(1), nn.HybridLambda(compute))
    result = diagnose(net, total, one(0), None)
    assert (result.verdict, result.block) == ("forward_overflow", "1")
    assert result.advice.startswith("Look there for a division by 0, a log or root of what is not")
    assert f": {reason}, so neither a pin nor a lower loss scale can help" in result.advice


def test_a_loss_that_is_not_finite_for_finite_outputs():
    result = diagnose(chain(1), lambda out, _: nd.log(out), one(-2), None)
    assert (result.verdict, result.block) == ("forward_overflow", "loss")
    assert result.value_range == (-2, -2)
    assert "for outputs from -2 to -2" in result.advice
    result = diagnose(chain(0.0), lambda out, _: nd.sqrt(out), one(1), None)
    assert (result.verdict, result.block) == ("backward_overflow", "loss")
    assert result.recommended_scale is None


@pytest.mark.parametrize("weights, x, scale, received, recommended", [
    # Layer 1 gets the scale and sends it back 16 times as large: 65536 does not fit.
    ((1.0, 16.0), 1.0, 2.0**12, 2.0**12, 2.0**11),
    # The gradient of its weight is scale * w0 * x.
    ((1.0, 1.0), 8.0, 2.0**14, 2.0**14, 2.0**12),
    # A head gradient of 65536 does not fit either.
    ((1.0, 1.0), 1.0, 2.0**16, 2.0**16, 2.0**15),
    # Deeper in the net, down to scales below 1: scale * w2 * w1 has to fit.
    ((2.0**-20, 2.0**10, 2.0**10), 1.0, 4.0, 2.0**12, 2.0**-5),
])  # fmt: skip
def test_backward_overflow(weights, x, scale, received, recommended):
    net = chain(*weights)
    result = diagnose(net, total, one(x), None, scale)
    assert (result.verdict, result.block, result.op) == ("backward_overflow", "1", "FullyConnected")
    assert result.value_range == (received, received)
    assert result.recommended_scale == recommended
    assert f"Lower the loss scale to {recommended:g}," in result.advice
    assert diagnose(net, total, one(x), None, recommended).verdict == "ok"
    assert diagnose(net, total, one(x), None, 2 * recommended).verdict == "backward_overflow"


@pytest.mark.parametrize("floor, named", [(2.0**-5, False), (2.0**-4, True)])
def test_the_advice_names_a_floor_that_is_too_high(floor, named):
    scale = amp.DynamicLossScale(4, min_scale=floor)
    advice = diagnose(chain(2.0**-20, 2.0**10, 2.0**10), total, one(1.0), None, scale).advice
    assert "Lower the loss scale to 0.03125," in advice
    assert ("goes that low with min_scale=0.03125)" in advice) is named
    assert ("(a dynamic scale goes there alone)" in advice) is not named


def test_a_gradient_that_no_scale_can_save():
    result = diagnose(built(unit(0), nn.HybridLambda("sqrt")), total, one(1), None)
    assert (result.verdict, result.block, result.op) == ("backward_overflow", "1", "sqrt")
    assert result.recommended_scale is None
    assert "a derivative is infinite or NaN" in result.advice
    assert "no lower loss scale can help" in result.advice


def test_bfloat16_has_float32s_range():
    assert diagnose(chain(300, 300, policy="bfloat16"), total, one(1), None, None).ok
    result = diagnose(chain(1e20, 1e20, policy="bfloat16"), total, one(1), None, None)
    assert result.verdict == "forward_overflow"
    assert "neither a pin nor a lower loss scale can help" in result.advice


@pytest.mark.parametrize("make_trainer, scale, owner", [
    (lambda params: None, 65536, "a Trainer before its first step"),
    (lambda params: amp.Trainer(params, "sgd", loss_scale=128), 128, "the net's Trainer"),
    (lambda params: mx.gluon.Trainer(params, "sgd"), 1, "the net's Trainer"),
])  # fmt: skip
def test_the_scale_is_that_of_the_trainer(make_trainer, scale, owner):
    net = make_net()
    trainer = make_trainer(net.collect_params())
    result = diagnose(net, L2, images(), labels())
    assert (result.loss_scale, result.scale_of) == (scale, owner)
    assert f"loss scale {scale} of {owner}" in " ".join(str(result).split())
    assert diagnose(net, L2, images(), labels(), 2).loss_scale == 2
    if trainer is not None and scale > 1:
        head = amp.Trainer(net[4].collect_params(), "sgd", loss_scale=512)
        assert diagnose(net, L2, images(), labels()).loss_scale == head.loss_scale.scale


def test_misuse():
    net = make_net()
    with pytest.raises(TypeError, match="data of type ndarray, expected NDArrays"):
        diagnose(net, L2, images().asnumpy(), labels())
    with pytest.raises(ValueError, match="power of two"):
        diagnose(net, L2, images(), labels(), 1000)


def test_text_is_readable_in_80_columns():
    result = diagnose(chain(1, 16), total, one(1), None, 2.0**12)
    assert str(result) == (
        "backward_overflow in 1 (FullyConnected)\n"
        "  input range: 4096 to 4096, loss scale 4096\n"
        "  Lower the loss scale to 2048, where this batch has finite gradients."
    )
    place = "backward_overflow in 1 (FullyConnected)"
    assert repr(result) == f"Diagnosis({place}, scale 4096, recommended 2048)"
    text = str(diagnose(make_net(), L2, images() * 1e6, labels()))
    assert max(map(len, text.splitlines())) <= 80
