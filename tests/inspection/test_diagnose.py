"""diagnose names the first block and what helps; gradient_report measures the room that is left."""

import math
import random
import re

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.inspection.diagnose import diagnose
from gluon_amp.inspection.gradient_report import GradientReport, GradientRow, gradient_report

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import nn

L2 = mx.gluon.loss.L2Loss()
DATA = nd.array(np.random.RandomState(0).uniform(0, 1, (2, 3, 6, 6)))
LABEL = nd.ones((2, 3))


def total(out, _):
    """A loss whose gradient with respect to each output is 1."""
    return out.sum()


def make_net(policy="float16"):
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(4, 3, in_channels=3),
        nn.BatchNorm(in_channels=4),
        nn.Activation("relu"),
        nn.Dense(8, in_units=64),
        nn.Dense(3, in_units=8),
    )
    net.initialize(mx.init.Xavier())
    return amp.cast(net, policy) if policy else net


def chain(*weights, policy="float16"):
    """Dense layers of one unit with these weights: y = w3 * w2 * w1 * x."""
    net = nn.HybridSequential()
    for weight in weights:
        net.add(
            nn.Dense(1, in_units=1, use_bias=False, weight_initializer=mx.init.Constant(weight))
        )
    net.initialize()
    return amp.cast(net, policy)


def one(value):
    return nd.array([[value]])


# ---------------------------------------------------------------------------------- verdicts


def test_ok():
    found = diagnose(chain(2, 3), total, one(5), None, loss_scale=8)
    assert (found.verdict, found.block, found.op, found.recommended_scale) == ("ok",) + (None,) * 3
    assert found.value_range == (
        80,
        120,
    )  # 8 * 2 * 5 for the second weight, 8 * 3 * 5 for the first
    assert found.loss_scale == 8
    assert found.advice == "Nothing to do: everything is finite at loss scale 8."


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_data(bad):
    data = DATA.copy()
    data[1, 2, 3, 4] = bad
    found = diagnose(make_net(), L2, data, LABEL)
    assert found.verdict == "bad_data"
    assert found.block is None
    assert "sample 1 of this batch" in found.advice
    counts = "1 NaN and 0 infinite" if np.isnan(bad) else "0 NaN and 1 infinite"
    assert f"data holds {counts} values among 216" in found.advice
    assert 0 <= found.value_range[0] < found.value_range[1] <= 1


def test_bad_label_and_second_input():
    label = LABEL.copy()
    label[0, 1] = np.nan
    assert "label holds 1 NaN" in diagnose(make_net(), L2, DATA, label).advice

    class Sum(nn.HybridBlock):
        def hybrid_forward(self, F, x, y):
            return x + y

    net = amp.cast(Sum(), "float16")
    found = diagnose(net, total, [one(1), one(np.inf)], None)
    assert "data[1] holds 0 NaN and 1 infinite" in found.advice
    assert found.value_range is None


def test_integer_data_and_labels_are_fine():
    net = nn.HybridSequential()
    net.add(nn.Embedding(5, 4), nn.Dense(3, in_units=8))
    net.initialize()
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    ids = nd.array([[1, 4], [0, 2]], dtype="int32")
    found = diagnose(amp.cast(net, "float16"), loss, ids, nd.array([0, 2], dtype="int32"), 128)
    assert found.verdict == "ok"


@pytest.mark.parametrize("name, block", [("weight", "3"), ("running_mean", "1")])
def test_non_finite_parameter(name, block):
    net = make_net()
    param = getattr(net[int(block)], name)
    value = param.data().copy()
    value[0] = np.nan
    param.set_data(value)
    found = diagnose(net, L2, DATA, LABEL)
    assert (found.verdict, found.block) == ("non_finite_parameter", block)
    assert f"{param.name} is finite" in found.advice
    assert "clip the gradients" in found.advice


def test_forward_overflow_names_the_first_block_and_a_pin_that_helps():
    net = chain(300, 300, 1e-6, 2)  # 1, 300, 90000
    found = diagnose(net, total, one(1), None)
    assert (found.verdict, found.block, found.op) == ("forward_overflow", "1", "FullyConnected")
    assert found.value_range == (300, 300)
    assert "lower loss scale can help" in found.advice
    assert diagnose(net, total, one(1), None, 2.0**-20).verdict == "forward_overflow"
    follow(net, found.advice)
    # What follows reads 90000 in float16, so it is the next one to pin.
    found = diagnose(net, total, one(1), None, 1)
    assert (found.verdict, found.block) == ("forward_overflow", "2")
    assert found.value_range == (90000, 90000)
    assert "at most 65504" in found.advice


def follow(net, advice):
    """Do what an advice says: cast again with the pin in it."""
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
            return F.log_softmax(F.concat(self.inner(x), self.inner(x)))

    net = nn.HybridSequential()
    net.add(nn.Dense(400, in_units=1, weight_initializer=mx.init.Constant(200)), Logits())
    net.initialize()
    amp.cast(net, "float16")
    found = diagnose(net, total, one(1), None, 1)
    assert (found.verdict, found.block) == ("forward_overflow", "1.inner")
    assert found.value_range == (200, 200)
    follow(net, found.advice)
    assert diagnose(net, total, one(1), None, 1).verdict == "ok"


def test_data_too_large_for_float16():
    net = make_net()
    found = diagnose(net, L2, DATA * 1e6, LABEL)
    assert (found.verdict, found.block) == ("forward_overflow", "0")
    assert found.value_range[1] > 65504
    assert found.advice.startswith("Scale what goes in there, which does not fit float16")
    assert diagnose(make_net("bfloat16"), L2, DATA * 1e6, LABEL, None).verdict == "ok"


def test_an_operator_outside_all_blocks_is_pinned_by_its_name():
    class Square(nn.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.relu(F.broadcast_mul(F.relu(x), F.relu(x)) - 1)

    net = amp.cast(Square(), amp.Policy.parse("float16").pin(ops=["relu", "broadcast_mul"],
                                                             dtype="float16"))  # fmt: skip
    found = diagnose(net, total, one(300), None, 1)
    assert (found.verdict, found.block, found.op) == ("forward_overflow", "", "broadcast_mul")
    assert "policy.pin(ops=['broadcast_mul'])" in found.advice
    assert "in the net itself" in str(found)


def test_what_float32_cannot_hold_either_is_not_to_be_pinned():
    class Log(nn.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.log(x)

    found = diagnose(amp.cast(Log(), "float16"), total, one(-1), None)
    assert (found.verdict, found.op) == ("forward_overflow", "log")
    assert (
        "it computes in float32, so neither a pin nor a lower loss scale can help" in found.advice
    )


def test_a_loss_that_is_not_finite_for_finite_outputs():
    found = diagnose(chain(1), lambda out, _: nd.log(out), one(-2), None)
    assert (found.verdict, found.block) == ("forward_overflow", "loss")
    assert found.value_range == (-2, -2)
    assert "for outputs from -2 to -2" in found.advice


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
    found = diagnose(net, total, one(x), None, scale)
    assert (found.verdict, found.block, found.op) == ("backward_overflow", block, "FullyConnected")
    assert found.value_range == (received, received)
    assert found.recommended_scale == recommended
    assert f"Lower the loss scale to {recommended:g}," in found.advice
    assert ("min_scale" in found.advice) == (recommended < 1)
    assert diagnose(net, total, one(x), None, recommended).verdict == "ok"
    assert diagnose(net, total, one(x), None, 2 * recommended).verdict == "backward_overflow"


def test_the_recommended_scale_is_the_largest_that_works_on_a_real_net():
    net = make_net()
    found = diagnose(net, L2, DATA, LABEL * 3000)
    assert found.verdict == "backward_overflow"
    scale = found.recommended_scale
    assert math.log2(scale).is_integer()
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 0}, loss_scale=scale)
    with autograd.record():
        loss = L2(net(DATA), LABEL * 3000)
    trainer.backward(loss)
    assert trainer.step(2).applied
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 0}, loss_scale=2 * scale)
    with autograd.record():
        loss = L2(net(DATA), LABEL * 3000)
    trainer.backward(loss)
    assert not trainer.step(2).applied


def test_the_branch_that_overflows_is_named_and_not_its_neighbour():
    class Residual(nn.HybridBlock):
        def __init__(self):
            super().__init__()
            self.first = nn.Dense(1, in_units=1, weight_initializer=mx.init.Constant(1e-6))
            self.steep = nn.Dense(1, in_units=1, weight_initializer=mx.init.Constant(4096))

        def hybrid_forward(self, F, x):
            x = self.first(x)
            return self.steep(x) + x

    net = Residual()
    net.initialize()
    found = diagnose(amp.cast(net, "float16"), total, one(1), None, 64)
    assert (found.verdict, found.block) == ("backward_overflow", "steep")
    assert found.value_range == (64, 64)
    assert found.recommended_scale == 8


def test_a_gradient_that_no_scale_can_save():
    class Norm(nn.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.sqrt(x)

    net = nn.HybridSequential()
    net.add(nn.Dense(1, in_units=1, weight_initializer="zeros"), Norm())
    net.initialize()
    found = diagnose(amp.cast(net, "float16"), total, one(1), None)
    assert (found.verdict, found.block, found.op) == ("backward_overflow", "1", "sqrt")
    assert found.recommended_scale is None
    assert "a derivative is infinite or NaN" in found.advice
    assert "no lower loss scale can help" in found.advice


def test_an_infinity_that_the_forward_pass_hides_again():
    class Hiding(nn.HybridBlock):
        def hybrid_forward(self, F, x):
            square = F.broadcast_mul(x, x)
            return 1 / F.broadcast_mul(square, square)  # 1 / inf is 0, its gradient 0 * inf

    net = nn.HybridSequential()
    net.add(nn.Dense(1, in_units=1, weight_initializer=mx.init.Constant(1000)), Hiding())
    net.initialize()
    policy = amp.Policy.parse("float16").pin(ops=["broadcast_mul", "_rdiv_scalar"], dtype="float16")
    amp.cast(net, policy)
    assert net(one(1)).asscalar() == 0
    found = diagnose(net, total, one(1), None, 1)
    assert (found.verdict, found.block, found.op) == ("forward_overflow", "1", "broadcast_mul")
    assert found.value_range == (1000, 1000)


def test_a_loss_whose_gradient_is_not_finite():
    found = diagnose(chain(0.0), lambda out, _: nd.sqrt(out), one(1), None)
    assert (found.verdict, found.block) == ("backward_overflow", "loss")
    assert found.recommended_scale is None


# ---------------------------------------------------------------------------------- kinds of nets


@pytest.mark.parametrize("policy", ["float16", "mixed_float16"])
def test_float16_weights_and_float32_weights(policy):
    found = diagnose(chain(1, 16, policy=policy), total, one(1), None, 2.0**12)
    assert (found.verdict, found.block, found.recommended_scale) == ("backward_overflow", "1", 2048)
    found = diagnose(chain(1e5, policy="mixed_float16"), total, one(1), None, 1)
    assert (found.verdict, found.block) == ("forward_overflow", "0")
    assert found.value_range == (1e5, 1e5)


def test_bfloat16_and_float32_have_float32s_range():
    for policy in ("bfloat16", "float32"):
        assert diagnose(chain(300, 300, policy=policy), total, one(1), None, None).verdict == "ok"
        found = diagnose(chain(1e20, 1e20, policy=policy), total, one(1), None, None)
        assert found.verdict == "forward_overflow"
        assert "neither a pin nor a lower loss scale can help" in found.advice


def test_symbol_blocks():
    x = mx.sym.var("data")
    hidden = mx.sym.FullyConnected(x, num_hidden=1, no_bias=True, name="a")
    out = mx.sym.FullyConnected(hidden, num_hidden=1, no_bias=True, name="b")
    net = mx.gluon.SymbolBlock(out, x)
    net.initialize(mx.init.Constant(300))
    amp.cast(net, "float16")
    found = diagnose(net, total, one(1), None)
    assert (found.verdict, found.block, found.op) == ("forward_overflow", "", "FullyConnected")
    assert found.value_range == (300, 300)


class Plain(mx.gluon.Block):
    """A plain Block of two parts, with Python code between them."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x):
        return self.second(nd.relu(self.first(x)) * 2)


def test_plain_blocks():
    def build(first, second):
        net = Plain(chain(*first, policy="float32"), chain(*second, policy="float32"))
        return amp.cast(net, "float16")

    found = diagnose(build([1, 2], [3e4, 1]), total, one(1), None, 1)
    assert (found.verdict, found.block, found.value_range) == (
        "forward_overflow",
        "second.0",
        (4, 4),
    )
    found = diagnose(build([2.0**-6, 16], [1, 1]), total, one(1), None, 2.0**14)
    assert (found.verdict, found.block) == ("backward_overflow", "first.1")
    assert found.value_range == (2.0**15, 2.0**15)  # the Python code between them doubles
    assert found.recommended_scale == 2.0**10
    assert diagnose(build([1, 1], [1, 1]), total, one(1), None, 1).verdict == "ok"


@pytest.mark.parametrize("hybridize", [False, True])
def test_nets_that_are_not_cast(hybridize):
    net = nn.HybridSequential()
    for _ in range(3):
        net.add(nn.Dense(1, in_units=1, use_bias=False, weight_initializer=mx.init.Constant(1e15)))
    net.initialize()
    if hybridize:
        net.hybridize()
    found = diagnose(net, total, one(1), None, None)
    assert (found.verdict, found.block) == ("forward_overflow", "2")
    assert found.value_range == pytest.approx((1e30, 1e30))
    net[2].weight.set_data(one(1e-20))
    net[0].weight.set_data(one(1e-10))
    found = diagnose(net, total, one(1), None, 2.0**100)
    assert (found.verdict, found.block) == ("ok", None)
    net[2].weight.set_data(one(1e20))
    net[1].weight.set_data(one(1e-15))
    net[0].weight.set_data(one(1))
    found = diagnose(net, total, one(1), None, 2.0**100)
    assert (found.verdict, found.block) == ("backward_overflow", "2")
    assert found.recommended_scale == 2.0**61  # times 1e20 it is 2.3e38


def test_a_deferred_net_is_initialized():
    net = nn.HybridSequential()
    net.add(nn.Dense(3))
    net.initialize()
    assert diagnose(amp.cast(net, "float16"), L2, DATA, LABEL, 1).verdict == "ok"
    assert net[0].weight.shape == (3, 108)


def test_several_outputs_and_losses():
    class Heads(nn.HybridBlock):
        def __init__(self):
            super().__init__()
            self.a = nn.Dense(1, in_units=1, weight_initializer="ones")
            self.b = nn.Dense(1, in_units=1, weight_initializer=mx.init.Constant(1e5))

        def hybrid_forward(self, F, x):
            return self.a(x), [self.b(x), self.a(x)]

    net = Heads()
    net.initialize()
    amp.cast(net, "mixed_float16")
    found = diagnose(net, lambda out, _: [out[0].sum(), out[1][0].sum()], one(1), None, 1)
    assert (found.verdict, found.block) == ("forward_overflow", "b")
    net.b.weight.set_data(one(1))
    found = diagnose(net, lambda out, _: [out[1][0].sum()], one(4), None, 2.0**15)
    assert (found.verdict, found.block) == ("backward_overflow", "b")


def test_recurrent_cells_and_shared_blocks():
    class Loop(nn.HybridBlock):
        def __init__(self):
            super().__init__()
            self.step = nn.Dense(1, in_units=1, use_bias=False,
                                 weight_initializer=mx.init.Constant(64))  # fmt: skip

        def hybrid_forward(self, F, x):
            return self.step(self.step(self.step(x)))

    net = Loop()
    net.initialize()
    found = diagnose(amp.cast(net, "float16"), total, one(1), None, 1)
    assert (found.verdict, found.block, found.value_range) == (
        "forward_overflow", "step", (4096, 4096),
    )  # fmt: skip


def test_a_net_of_layers_of_all_kinds():
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(4, 3, padding=1), nn.LayerNorm(), nn.Conv2DTranspose(3, 2), nn.PReLU(),
        nn.GroupNorm(3), nn.Dropout(0.5), nn.GlobalAvgPool2D(), nn.Dense(3), nn.GELU(),
    )  # fmt: skip
    net.initialize()
    amp.cast(net, "float16")
    assert diagnose(net, L2, DATA, LABEL, 1).verdict == "ok"
    found = diagnose(net, L2, DATA, LABEL * 60000, 2.0**16)
    assert (found.verdict, found.block) == ("backward_overflow", "8")
    lstm = mx.gluon.rnn.LSTM(4, layout="NTC", input_size=3)
    lstm.initialize()
    amp.cast(lstm, "float16")
    found = diagnose(lstm, total, nd.ones((2, 5, 3)) * 1e6, None)
    assert (found.verdict, found.op) == ("forward_overflow", "RNN")


# ---------------------------------------------------------------------------------- nothing changes


@pytest.mark.parametrize("scale, factor", [(1, 1), (2.0**20, 1), (1, 1e7)])
def test_it_changes_nothing(scale, factor):
    net = make_net()
    for param in net.collect_params().values():
        if param.grad_req != "null":
            param.grad_req = "add"
    trainer = amp.Trainer(net.collect_params(), "adam", loss_scale=4)
    for _ in range(2):
        with autograd.record():
            loss = L2(net(DATA), LABEL)
        trainer.backward(loss)
    params = net.collect_params().values()

    def content():
        values = [p.data().asnumpy().tobytes() for p in params]
        grads = [p.grad().asnumpy().tobytes() for p in params if p.grad_req != "null"]
        flags = [p.data()._fresh_grad for p in params]
        return values, grads, flags, random.getstate(), np.random.get_state()[1].tobytes()

    before = content()
    owners = [p._trainer for p in params]
    diagnose(net, L2, DATA * factor, LABEL, scale)
    assert content() == before
    assert [p._trainer for p in params] == owners
    assert not any("forward" in vars(block) for block in (net, *net))
    # Another backward pass adds to the same buffers, and the step uses them.
    with autograd.record():
        loss = L2(net(DATA), LABEL)
    trainer.backward(loss)
    after = [p.grad().asnumpy() for p in params if p.grad_req != "null"]
    assert any(new.tobytes() != old for new, old in zip(after, before[1]))
    report = trainer.step(2)
    assert report.applied
    assert report.loss_scale == 4


def test_a_run_with_a_diagnosis_in_it_is_bit_for_bit_the_run_without():
    def run(look):
        np.random.seed(0)
        mx.random.seed(0)
        net = make_net()
        scale = amp.DynamicLossScale(2.0**12, growth_interval=2)
        trainer = amp.Trainer(net.collect_params(), "sgd", {"momentum": 0.9}, loss_scale=scale)
        verdicts = []
        for step in range(4):
            label = LABEL * (1e5 if step == 1 else 1)
            if look:
                verdicts.append(diagnose(net, L2, DATA, label, trainer.loss_scale).verdict)
            with autograd.record():
                loss = L2(net(DATA), label)
            if look:
                diagnose(net, L2, DATA, label, trainer.loss_scale)
            trainer.backward(loss)
            if look:
                diagnose(net, L2, DATA, label, 1)
            applied = trainer.step(2).applied
            assert not look or applied == (verdicts[-1] == "ok")
        return [p.data().asnumpy().tobytes() for p in net.collect_params().values()]

    assert run(True) == run(False)


def test_everything_is_put_back_when_the_loss_function_fails():
    net = make_net()
    with pytest.raises(ZeroDivisionError):
        diagnose(net, lambda out, label: 1 / 0, DATA, LABEL)
    assert not any("forward" in vars(block) for block in (net, *net))
    with autograd.record():
        loss = L2(net(DATA), LABEL)
    loss.backward()
    assert net[0].weight.grad().asnumpy().any()


# ---------------------------------------------------------------------------------- misuse and text


def test_misuse():
    net = make_net()
    with pytest.raises(TypeError, match="data of type ndarray, expected NDArrays"):
        diagnose(net, L2, DATA.asnumpy(), LABEL)
    with pytest.raises(TypeError, match="The loss is float16"):
        diagnose(net, lambda out, label: out.astype("float16"), DATA, LABEL)
    with pytest.raises(ValueError, match="power of two"):
        diagnose(net, L2, DATA, LABEL, 1000)


def test_text_is_readable_in_80_columns():
    net = chain(1, 16)
    assert str(diagnose(net, total, one(1), None, 2.0**12)) == (
        "backward_overflow in 1 (FullyConnected)\n"
        "  what went in: 4096 to 4096, loss scale 4096\n"
        "  Lower the loss scale to 2048, where this batch has finite gradients."
    )
    for found in (
        diagnose(make_net(), L2, DATA * 1e6, LABEL),
        diagnose(make_net(), L2, DATA * np.nan, LABEL),
        diagnose(make_net(), L2, DATA, LABEL * 1e6),
        diagnose(chain(300, 300), total, one(1), None),
    ):
        text = str(found)
        assert text.startswith(found.verdict)
        assert max(map(len, text.splitlines())) <= 80
        assert " ".join(found.advice.split()) in " ".join(text.split())
        assert found.advice.count(". ") == 0
        assert found.advice.endswith(".")


# ---------------------------------------------------------------------------------- gradient report


def backward(net, data, scale, loss_fn=total):
    trainer = amp.Trainer(net.collect_params(), "sgd", loss_scale=scale)
    with autograd.record():
        loss = loss_fn(net(data), None)
    trainer.backward(loss)
    return trainer


def test_report_of_literal_numbers():
    net = nn.Dense(1, in_units=4, use_bias=False)
    net.initialize()
    amp.cast(net, "float16")
    # The gradient is the input times the scale: one zero, one below 2**-14, one flushed.
    trainer = backward(net, nd.array([[4.0, 0.0, 2.0**-20, 2.0**-24]]), 0.5)
    report = gradient_report(net, trainer)
    (row,) = report.rows
    assert row._asdict() == {
        "name": net.weight.name, "dtype": "float16", "size": 4, "largest": 2.0, "zero": 0.5,
        "subnormal": 0.25, "headroom": math.log2(65504 / 2),
    }  # fmt: skip
    assert report.loss_scale == 0.5
    # The true largest is 4: times 2**14 it is 65536, too large, so 2**13 less 3 bits.
    assert report.recommended_scale == 2.0**10


@pytest.mark.parametrize("scale", [1.0, 2.0**7, 2.0**12])
def test_the_recommended_scale_does_not_depend_on_the_present_one(scale):
    net = nn.Dense(1, in_units=2, use_bias=False)
    net.initialize()
    amp.cast(net, "float16")
    trainer = backward(net, nd.array([[8.0, 0.25]]), scale)
    report = gradient_report(net, trainer)
    assert report.recommended_scale == 2.0**9
    headroom = 65504 / (report.recommended_scale * 8)
    assert 2.0**3 <= headroom < 2.0**4


def test_the_recommended_scale_works():
    net = make_net("mixed_float16")
    trainer = backward(net, DATA, 16, lambda out, _: L2(out, LABEL))
    scale = gradient_report(net, trainer).recommended_scale
    assert diagnose(net, L2, DATA, LABEL, scale).verdict == "ok"
    report = gradient_report(net, backward(net, DATA, scale, lambda out, _: L2(out, LABEL)))
    assert 3 <= min(row.headroom for row in report.rows) < 4.1


def test_rows_tell_what_was_computed_in_float16():
    for policy in ("float16", "mixed_float16"):
        net = make_net(policy)
        trainer = backward(net, DATA, 16)
        dtypes = [row.dtype for row in gradient_report(net, trainer).rows]
        assert dtypes == ["float16"] * 2 + ["float32"] * 2 + ["float16"] * 4
    net = make_net("bfloat16")
    report = gradient_report(net, backward(net, DATA, None))
    assert {row.dtype for row in report.rows} == {"float32"}
    assert {row.headroom for row in report.rows} == {math.inf}
    assert report.loss_scale == 1
    assert report.recommended_scale is None
    assert "nothing to recommend" in str(report)


def test_frozen_parameters_are_left_out_and_sparse_gradients_taken_in():
    net = nn.HybridSequential()
    net.add(nn.Embedding(10, 2, sparse_grad=True), nn.Dense(1))
    net.initialize()
    net[1].bias.grad_req = "null"
    amp.cast(net, "mixed_float16")
    trainer = backward(net, nd.array([[1, 1]]), 4)
    report = gradient_report(net, trainer)
    assert [row.name for row in report.rows] == [net[0].weight.name, net[1].weight.name]
    assert report.rows[0].size == 20
    assert report.rows[0].zero == 0.9  # one row of ten


def test_several_devices_are_taken_together():
    net = nn.Dense(1, in_units=1, use_bias=False)
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    amp.cast(net, "float16")
    trainer = amp.Trainer(net.collect_params(), "sgd", loss_scale=1)
    with autograd.record():
        losses = [net(nd.array([[x]], ctx=mx.cpu(k))).sum() for k, x in enumerate((0, 3))]
    trainer.backward(losses)
    (row,) = gradient_report(net, trainer).rows
    assert (row.size, row.largest, row.zero) == (2, 3, 0.5)


@pytest.mark.parametrize(
    "scale, told",
    [
        (1.0, "1"),
        (2.0**16, "65536"),
        (2.0**-7, "0.0078125"),
        (2.0**38, "2^38"),
        (2.0**-20, "2^-20"),
    ],
)
def test_scales_are_told_exactly(scale, told):
    row = GradientRow("w", "float16", 1, 2.0**12, 0.0, 0.0, 4.0)
    report = GradientReport([row], scale)
    assert str(report).splitlines()[-1] == f"loss scale {told}, recommended {told}"
    assert f"loss scale {told}" in str(amp.Diagnosis("ok", value_range=(0, 1), loss_scale=scale))


def test_after_an_overflow_nothing_is_recommended():
    net = chain(1, 16)
    report = gradient_report(net, backward(net, one(1), 2.0**12))
    assert report.overflowed == [net[0].weight.name]
    assert report.rows[0].headroom == -math.inf
    assert report.recommended_scale is None
    assert "overflowed: lower it and look again" in str(report)


def test_report_needs_a_scaled_backward_pass():
    net = chain(1)
    with pytest.raises(RuntimeError, match=r"call trainer.backward\(loss\) first"):
        gradient_report(net, amp.Trainer(net.collect_params(), "sgd"))
    stock = mx.gluon.Trainer(net.collect_params(), "sgd", {"multi_precision": True})
    with pytest.raises(TypeError, match="init_trainer"):
        gradient_report(net, stock)


def test_the_table_is_80_columns_wide():
    net = nn.HybridSequential(prefix="a_net_with_a_name_that_is_much_too_long_for_the_table_")
    with net.name_scope():
        net.add(nn.Dense(2, in_units=2), nn.BatchNorm())
    net.initialize()
    amp.cast(net, "float16")
    report = gradient_report(net, backward(net, nd.array([[1, 2], [0, 4]]), 4))
    lines = str(report).splitlines()
    assert len(lines) == 6
    assert {len(line) for line in lines[:-1]} == {80}
    assert lines[0].split() == ["gradient", "of", "dtype", "largest", "0", "<2^-14", "headroom"]
    assert lines[1].startswith("…") and "dense0_weight" in lines[1]
    assert lines[-1].startswith("loss scale 4, ")
