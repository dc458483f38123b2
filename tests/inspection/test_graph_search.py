"""The operator and the block that diagnose names, in nets of all kinds."""

import pytest

import gluon_amp as amp
from gluon_amp.base.array_kinds import of_user_kind
from gluon_amp.inspection.diagnose import diagnose
from tests import kinds
from tests.inspection.nets import L2, chain, images, labels, one, total

import mxnet as mx
from mxnet import nd
from mxnet.gluon import nn

pytestmark = pytest.mark.usefixtures("arrays")  # Law 13


def multiplied(F, left, right):
    return F.np.multiply(left, right) if mx.util.is_np_array() else F.broadcast_mul(left, right)


def multiply():
    """Return the name of the operator of `multiplied`."""
    return "_npi_multiply" if mx.util.is_np_array() else "broadcast_mul"


def test_an_operator_outside_all_blocks_is_pinned_by_its_name():
    class Square(nn.HybridBlock):
        def hybrid_forward(self, F, x):
            relu = kinds.npx_of(F).relu
            return relu(multiplied(F, relu(x), relu(x)) - 1)

    pinned = {"ops": ["relu", multiply()], "dtype": "float16"}
    net = amp.cast(Square(), amp.Policy.parse("float16").pin(**pinned))
    result = diagnose(net, total, one(300), None, 1)
    assert (result.verdict, result.block, result.op) == ("forward_overflow", "", multiply())
    assert f"policy.pin(ops=['{multiply()}'])" in result.advice
    assert "in the net itself" in str(result)


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
    result = diagnose(amp.cast(net, "float16"), total, one(1), None, 64)
    assert (result.verdict, result.block) == ("backward_overflow", "steep")
    assert result.value_range == (64, 64)
    assert result.recommended_scale == 8


def test_an_infinity_that_the_forward_pass_hides_again():
    class Hiding(nn.HybridBlock):
        def hybrid_forward(self, F, x):
            square = multiplied(F, x, x)
            return 1 / multiplied(F, square, square)  # 1 / inf is 0, its gradient 0 * inf

    net = nn.HybridSequential()
    net.add(nn.Dense(1, in_units=1, weight_initializer=mx.init.Constant(1000)), Hiding())
    net.initialize()
    divide = "_npi_rtrue_divide_scalar" if mx.util.is_np_array() else "_rdiv_scalar"
    amp.cast(net, amp.Policy.parse("float16").pin(ops=[multiply(), divide], dtype="float16"))
    assert net(one(1)).asnumpy().item() == 0
    result = diagnose(net, total, one(1), None, 1)
    assert (result.verdict, result.block, result.op) == ("forward_overflow", "1", multiply())
    assert result.value_range == (1000, 1000)


@pytest.mark.parametrize("policy", ["float16", "mixed_float16"])
def test_float16_weights_and_float32_weights(policy):
    result = diagnose(chain(1, 16, policy=policy), total, one(1), None, 2.0**12)
    assert (result.verdict, result.block, result.recommended_scale) == (
        "backward_overflow",
        "1",
        2048,
    )
    result = diagnose(chain(1e5, policy="mixed_float16"), total, one(1), None, 1)
    assert (result.verdict, result.block) == ("forward_overflow", "0")
    assert result.value_range == (1e5, 1e5)


def test_symbol_blocks():
    x = mx.sym.var("data")
    hidden = mx.sym.FullyConnected(x, num_hidden=1, no_bias=True, name="a")
    out = mx.sym.FullyConnected(hidden, num_hidden=1, no_bias=True, name="b")
    net = mx.gluon.SymbolBlock(of_user_kind(out), of_user_kind(x))
    net.initialize(mx.init.Constant(300))
    amp.cast(net, "float16")
    result = diagnose(net, total, one(1), None)
    assert (result.verdict, result.block, result.op) == ("forward_overflow", "", "FullyConnected")
    assert result.value_range == (300, 300)


class Plain(mx.gluon.Block):
    """A plain Block of two parts, with Python code between them."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x):
        return self.second(kinds.npx_of(nd).relu(self.first(x)) * 2)


def test_plain_blocks():
    def build(first, second):
        net = Plain(chain(*first, policy="float32"), chain(*second, policy="float32"))
        return amp.cast(net, "float16")

    result = diagnose(build([1, 2], [3e4, 1]), total, one(1), None, 1)
    assert (result.verdict, result.block, result.value_range) == (
        "forward_overflow",
        "second.0",
        (4, 4),
    )
    result = diagnose(build([2.0**-6, 16], [1, 1]), total, one(1), None, 2.0**14)
    assert (result.verdict, result.block) == ("backward_overflow", "first.1")
    assert result.value_range == (2.0**15, 2.0**15)  # the Python code between them doubles
    assert result.recommended_scale == 2.0**10
    assert diagnose(build([1, 1], [1, 1]), total, one(1), None, 1).verdict == "ok"


@pytest.mark.parametrize("hybridize", [False, True])
def test_nets_that_are_not_cast(hybridize):
    net = nn.HybridSequential()
    for _ in range(3):
        net.add(nn.Dense(1, in_units=1, use_bias=False, weight_initializer=mx.init.Constant(1e15)))
    net.initialize()
    if hybridize:
        net.hybridize()
    result = diagnose(net, total, one(1), None, None)
    assert (result.verdict, result.block) == ("forward_overflow", "2")
    assert result.value_range == pytest.approx((1e30, 1e30))
    net[2].weight.set_data(one(1e-20))
    net[0].weight.set_data(one(1e-10))
    result = diagnose(net, total, one(1), None, 2.0**100)
    assert (result.verdict, result.block) == ("ok", None)
    net[2].weight.set_data(one(1e20))
    net[1].weight.set_data(one(1e-15))
    net[0].weight.set_data(one(1))
    result = diagnose(net, total, one(1), None, 2.0**100)
    assert (result.verdict, result.block) == ("backward_overflow", "2")
    assert result.recommended_scale == 2.0**61  # times 1e20 it is 2.3e38


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
    result = diagnose(net, lambda out, _: [out[0].sum(), out[1][0].sum()], one(1), None, 1)
    assert (result.verdict, result.block) == ("forward_overflow", "b")
    net.b.weight.set_data(one(1))
    result = diagnose(net, lambda out, _: [out[1][0].sum()], one(4), None, 2.0**15)
    assert (result.verdict, result.block) == ("backward_overflow", "b")


def test_recurrent_cells_and_shared_blocks():
    class Loop(nn.HybridBlock):
        def __init__(self):
            super().__init__()
            self.step = nn.Dense(
                1, in_units=1, use_bias=False, weight_initializer=mx.init.Constant(64)
            )

        def hybrid_forward(self, F, x):
            return self.step(self.step(self.step(x)))

    net = Loop()
    net.initialize()
    result = diagnose(amp.cast(net, "float16"), total, one(1), None, 1)
    assert (result.verdict, result.block, result.value_range) == (
        "forward_overflow",
        "step",
        (4096, 4096),
    )


@kinds.only_nd  # MXNet's GroupNorm does not run with arrays of mx.np
def test_a_net_of_layers_of_all_kinds():
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(4, 3, padding=1),
        nn.LayerNorm(),
        nn.Conv2DTranspose(3, 2),
        nn.PReLU(),
        nn.GroupNorm(3),
        nn.Dropout(0.5),
        nn.GlobalAvgPool2D(),
        nn.Dense(3),
        nn.GELU(),
    )
    net.initialize()
    amp.cast(net, "float16")
    assert diagnose(net, L2, images(), labels(), 1).verdict == "ok"
    result = diagnose(net, L2, images(), labels() * 60000, 2.0**16)
    assert (result.verdict, result.block) == ("backward_overflow", "8")
    lstm = mx.gluon.rnn.LSTM(4, layout="NTC", input_size=3)
    lstm.initialize()
    amp.cast(lstm, "float16")
    result = diagnose(lstm, total, kinds.ones((2, 5, 3)) * 1e6, None)
    assert (result.verdict, result.op) == ("forward_overflow", "RNN")


@kinds.only_np
def test_scalars_and_booleans_of_mx_np():
    class Clipped(nn.HybridBlock):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(1, in_units=1, weight_initializer=mx.init.Constant(16))

        def hybrid_forward(self, F, x):
            x = self.dense(x)
            mean = x.mean()
            return F.np.where(x < mean, x, mean * 0.5)

    net = Clipped()
    net.initialize()
    amp.cast(net, "float16")
    data = kinds.array([[1.0], [2.0]])  # 16 and 32, of mean 24
    result = diagnose(net, lambda out, _: out.mean(), data, None, 2.0**16)
    # The samples receive 1/2 + 1/8 and 1/8, of which 1/8 each through the mean.
    assert (result.verdict, result.value_range) == ("ok", (0.75 * 2**16, 0.875 * 2**16))
    result = diagnose(net, lambda out, _: out.mean(), data, None, 2.0**17)
    assert (result.verdict, result.block, result.op) == (
        "backward_overflow",
        "dense",
        "FullyConnected",
    )
