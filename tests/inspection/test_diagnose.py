"""Verdicts of diagnose: the cause, the place, and advice that helps."""

import math
import re

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.inspection.diagnose import diagnose
from tests import kinds
from tests.inspection.nets import L2, chain, images, labels, make_net, one, total

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import nn

pytestmark = pytest.mark.usefixtures("arrays")  # Law 13


def test_ok():
    result = diagnose(chain(2, 3), total, one(5), None, loss_scale=8)
    assert (result.verdict, result.block, result.op, result.recommended_scale) == ("ok",) + (
        None,
    ) * 3
    assert result.value_range == (
        80,
        120,
    )  # 8 * 2 * 5 for the second weight, 8 * 3 * 5 for the first
    assert result.loss_scale == 8
    assert result.advice == "Nothing to do: everything is finite at loss scale 8."


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_data(bad):
    data = images().copy()
    data[1, 2, 3, 4] = bad
    result = diagnose(make_net(), L2, data, labels())
    assert result.verdict == "bad_data"
    assert result.block is None
    assert "sample 1 of this batch" in result.advice
    counts = "1 NaN and 0 infinite" if np.isnan(bad) else "0 NaN and 1 infinite"
    assert f"data holds {counts} values among 216" in result.advice
    assert 0 <= result.value_range[0] < result.value_range[1] <= 1


def test_bad_label_and_second_input():
    label = labels().copy()
    label[0, 1] = np.nan
    assert "label holds 1 NaN" in diagnose(make_net(), L2, images(), label).advice

    class Sum(nn.HybridBlock):
        def hybrid_forward(self, F, x, y):
            return x + y

    net = amp.cast(Sum(), "float16")
    result = diagnose(net, total, [one(1), one(np.inf)], None)
    assert "data[1] holds 0 NaN and 1 infinite" in result.advice
    assert result.value_range is None


def test_integer_data_and_labels_are_fine():
    net = nn.HybridSequential()
    net.add(nn.Embedding(5, 4), nn.Dense(3, in_units=8))
    net.initialize()
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    ids = kinds.array([[1, 4], [0, 2]], dtype="int32")
    result = diagnose(amp.cast(net, "float16"), loss, ids, kinds.array([0, 2], dtype="int32"), 128)
    assert result.verdict == "ok"


@pytest.mark.parametrize("name, block", [("weight", "3"), ("running_mean", "1")])
def test_non_finite_parameter(name, block):
    net = make_net()
    param = getattr(net[int(block)], name)
    value = param.data().copy()
    value[0] = np.nan
    param.set_data(value)
    result = diagnose(net, L2, images(), labels())
    assert (result.verdict, result.block) == ("non_finite_parameter", block)
    assert f"{param.name} is finite" in result.advice
    assert "clip the gradients" in result.advice


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
    assert "at most 65504" in result.advice


def follow(net, advice):
    """Cast again with the pin that an advice names."""
    pin = re.search(r"policy(\.pin\(.*?\]\))", advice)
    policy = amp.Policy.parse("float16")
    amp.cast(net, eval("policy" + pin[1], {"policy": policy}))


def test_following_the_advice_of_a_forward_overflow_ends_at_ok():
    class Logits(nn.HybridBlock):
        """A large sum that is squashed again, as in attention."""

        def __init__(self):
            super().__init__()
            self.inner = nn.Dense(1, in_units=400, use_bias=False, weight_initializer="ones")

        def hybrid_forward(self, F, x):
            twice = [self.inner(x), self.inner(x)]
            joined = F.np.concatenate(twice, 1) if mx.util.is_np_array() else F.concat(*twice)
            return kinds.npx_of(F).log_softmax(joined)

    net = nn.HybridSequential()
    net.add(nn.Dense(400, in_units=1, weight_initializer=mx.init.Constant(200)), Logits())
    net.initialize()
    amp.cast(net, "float16")
    result = diagnose(net, total, one(1), None, 1)
    assert (result.verdict, result.block) == ("forward_overflow", "1.inner")
    assert result.value_range == (200, 200)
    follow(net, result.advice)
    assert diagnose(net, total, one(1), None, 1).verdict == "ok"


def test_data_too_large_for_float16():
    net = make_net()
    result = diagnose(net, L2, images() * 1e6, labels())
    assert (result.verdict, result.block) == ("forward_overflow", "0")
    assert result.value_range[1] > 65504
    assert result.advice.startswith("Scale what goes in there, which does not fit float16")
    assert diagnose(make_net("bfloat16"), L2, images() * 1e6, labels(), None).verdict == "ok"


def test_what_float32_cannot_hold_either_is_not_to_be_pinned():
    class Log(nn.HybridBlock):
        def hybrid_forward(self, F, x):
            return kinds.np_of(F).log(x)

    result = diagnose(amp.cast(Log(), "float16"), total, one(-1), None)
    log = "_npi_log" if mx.util.is_np_array() else "log"
    assert (result.verdict, result.op) == ("forward_overflow", log)
    assert (
        "it computes in float32, so neither a pin nor a lower loss scale can help" in result.advice
    )


@pytest.mark.parametrize("policy", ["float16", "float32"])
@pytest.mark.parametrize(
    "compute, x, cause",
    [
        (lambda F, x: x / x, 0, "a division of 0 by 0"),
        (lambda F, x: 1 / x, 0, "a division by 0"),
        (lambda F, x: kinds.np_of(F).log(x), 0, "the logarithm of 0"),
        (lambda F, x: kinds.np_of(F).sqrt(x), -1, "the root of a negative number"),
        (lambda F, x: x * float("inf"), 0, "a product of 0 and infinity"),
    ],
)
def test_what_no_dtype_can_compute_is_named(policy, compute, x, cause):
    class Compute(nn.HybridBlock):
        def hybrid_forward(self, F, x):
            return compute(F, x)

    net = nn.HybridSequential()
    net.add(nn.Dense(1, in_units=1, weight_initializer="ones"), Compute())
    net.initialize()
    net.hybridize()
    result = diagnose(amp.cast(net, policy), total, one(x), None)
    assert (result.verdict, result.block) == ("forward_overflow", "1")
    assert result.advice.startswith(f"Look there for {cause}: ")
    assert "neither a pin nor a lower loss scale can help" in result.advice


def test_a_zero_that_float16_made_is_to_be_pinned():
    class Ratio(nn.HybridBlock):
        def hybrid_forward(self, F, x):
            return x * 2.0**-13 / (x * 2.0**-13)

    net = nn.HybridSequential()
    net.add(nn.Dense(1, in_units=1, weight_initializer="ones"), Ratio())
    net.initialize()
    amp.cast(net, "float16")
    result = diagnose(net, total, one(2.0**-14), None)
    assert (result.verdict, result.block) == ("forward_overflow", "1")
    follow(net, result.advice)
    assert diagnose(net, total, one(2.0**-14), None, 1).ok


def test_a_loss_that_is_not_finite_for_finite_outputs():
    result = diagnose(chain(1), lambda out, _: kinds.np_of(nd).log(out), one(-2), None)
    assert (result.verdict, result.block) == ("forward_overflow", "loss")
    assert result.value_range == (-2, -2)
    assert "for outputs from -2 to -2" in result.advice


@pytest.mark.parametrize(
    "weights, x, scale, block, received, recommended",
    [
        # Layer 1 gets the scale and sends it back 16 times as large: 65536 does not fit.
        ((1.0, 16.0), 1.0, 2.0**12, "1", 2.0**12, 2.0**11),
        # The gradient of its weight is scale * w0 * x.
        ((1.0, 1.0), 8.0, 2.0**14, "1", 2.0**14, 2.0**12),
        # A head gradient of 65536 does not fit either.
        ((1.0, 1.0), 1.0, 2.0**16, "1", 2.0**16, 2.0**15),
        ((0.5, 0.5), 2.0**-4, 2.0**20, "1", 2.0**20, 2.0**15),
        # Deeper in the net, down to scales below 1: scale * w2 * w1 has to fit.
        ((2.0**-20, 2.0**10, 2.0**10), 1.0, 4.0, "1", 2.0**12, 2.0**-5),
    ],
)
def test_backward_overflow(weights, x, scale, block, received, recommended):
    net = chain(*weights)
    result = diagnose(net, total, one(x), None, scale)
    assert (result.verdict, result.block, result.op) == (
        "backward_overflow",
        block,
        "FullyConnected",
    )
    assert result.value_range == (received, received)
    assert result.recommended_scale == recommended
    assert f"Lower the loss scale to {recommended:g}," in result.advice
    assert "min_scale" not in result.advice
    assert diagnose(net, total, one(x), None, recommended).verdict == "ok"
    assert diagnose(net, total, one(x), None, 2 * recommended).verdict == "backward_overflow"


@pytest.mark.parametrize("floor", [2.0**-5, 2.0**-4])
def test_the_advice_names_a_floor_that_is_too_high(floor):
    scale = amp.DynamicLossScale(4, min_scale=floor)
    net = chain(2.0**-20, 2.0**10, 2.0**10)
    advice = diagnose(net, total, one(1.0), None, scale).advice
    assert "Lower the loss scale to 0.03125," in advice
    assert ("goes that low with min_scale=0.03125)" in advice) == (floor == 2.0**-4)


def test_the_recommended_scale_is_the_largest_that_works_on_a_real_net():
    net = make_net()
    result = diagnose(net, L2, images(), labels() * 3000)
    assert result.verdict == "backward_overflow"
    scale = result.recommended_scale
    assert math.log2(scale).is_integer()
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 0}, loss_scale=scale)
    with autograd.record():
        loss = L2(net(images()), labels() * 3000)
    trainer.backward(loss)
    assert trainer.step(2).applied
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 0}, loss_scale=2 * scale)
    with autograd.record():
        loss = L2(net(images()), labels() * 3000)
    trainer.backward(loss)
    assert not trainer.step(2).applied


def test_a_gradient_that_no_scale_can_save():
    class Norm(nn.HybridBlock):
        def hybrid_forward(self, F, x):
            return kinds.np_of(F).sqrt(x)

    net = nn.HybridSequential()
    net.add(nn.Dense(1, in_units=1, weight_initializer="zeros"), Norm())
    net.initialize()
    result = diagnose(amp.cast(net, "float16"), total, one(1), None)
    sqrt = "_npi_sqrt" if mx.util.is_np_array() else "sqrt"
    assert (result.verdict, result.block, result.op) == ("backward_overflow", "1", sqrt)
    assert result.recommended_scale is None
    assert "a derivative is infinite or NaN" in result.advice
    assert "no lower loss scale can help" in result.advice


def test_a_loss_whose_gradient_is_not_finite():
    result = diagnose(chain(0.0), lambda out, _: kinds.np_of(nd).sqrt(out), one(1), None)
    assert (result.verdict, result.block) == ("backward_overflow", "loss")
    assert result.recommended_scale is None


def test_bfloat16_and_float32_have_float32s_range():
    for policy in ("bfloat16", "float32"):
        assert diagnose(chain(300, 300, policy=policy), total, one(1), None, None).verdict == "ok"
        result = diagnose(chain(1e20, 1e20, policy=policy), total, one(1), None, None)
        assert result.verdict == "forward_overflow"
        assert "neither a pin nor a lower loss scale can help" in result.advice


def test_misuse():
    net = make_net()
    with pytest.raises(TypeError, match="data of type ndarray, expected NDArrays"):
        diagnose(net, L2, images().asnumpy(), labels())
    with pytest.raises(TypeError, match="The loss is float16"):
        diagnose(net, lambda out, label: out.astype("float16"), images(), labels())
    with pytest.raises(ValueError, match="power of two"):
        diagnose(net, L2, images(), labels(), 1000)


def test_text_is_readable_in_80_columns():
    net = chain(1, 16)
    assert str(diagnose(net, total, one(1), None, 2.0**12)) == (
        "backward_overflow in 1 (FullyConnected)\n"
        "  what went in: 4096 to 4096, loss scale 4096\n"
        "  Lower the loss scale to 2048, where this batch has finite gradients."
    )
    for result in (
        diagnose(make_net(), L2, images() * 1e6, labels()),
        diagnose(make_net(), L2, images() * np.nan, labels()),
        diagnose(make_net(), L2, images(), labels() * 1e6),
        diagnose(chain(300, 300), total, one(1), None),
    ):
        text = str(result)
        assert text.startswith(result.verdict)
        assert max(map(len, text.splitlines())) <= 80
        assert " ".join(result.advice.split()) in " ".join(text.split())
        assert result.advice.count(". ") == 0
        assert result.advice.endswith(".")
