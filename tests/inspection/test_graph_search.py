"""The operator and the block that diagnose names, in nets of all kinds."""

import pytest

import gluon_amp as amp
from gluon_amp.inspection.diagnose import diagnose
from tests.inspection.nets import L2, built, chain, images, labels, one, total, unit

import mxnet as mx
from mxnet import nd
from mxnet.gluon import nn

FLOAT16 = amp.Policy.parse("float16")


def place(result):
    return result.verdict, result.block, result.op


def test_an_operator_outside_all_blocks_is_pinned_by_its_name():
    class Square(nn.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.relu(F.broadcast_mul(F.relu(x), F.relu(x)) - 1)

    net = amp.cast(Square(), FLOAT16.pin(ops=["relu", "broadcast_mul"], dtype="float16"))
    result = diagnose(net, total, one(300), None, 1)
    assert place(result) == ("forward_overflow", "", "broadcast_mul")
    assert "policy.pin(ops=['broadcast_mul'])" in result.advice
    assert "in the net itself" in str(result)


class Heads(nn.HybridBlock):
    """Two layers that read the same data, as sums or as a structure of outputs."""

    def __init__(self, add):
        super().__init__()
        self.add = add
        self.first, self.steep, self.flat = unit(1e-6), unit(4096), unit(1)

    def hybrid_forward(self, F, x):
        x = self.first(x)
        return self.steep(x) + x if self.add else (self.flat(x), [self.steep(x), self.flat(x)])


def test_the_branch_that_overflows_is_named_and_not_its_neighbour():
    net = built(Heads(add=True))[0]
    result = diagnose(net, total, one(1), None, 64)
    assert place(result)[:2] == ("backward_overflow", "0.steep")
    assert (result.value_range, result.recommended_scale) == ((64, 64), 8)


def test_several_outputs_and_losses():
    net = built(Heads(add=False), policy="mixed_float16")
    net[0].first.weight.set_data(one(1))

    def loss(out, _):
        return [out[0].sum(), out[1][0].sum()]

    result = diagnose(net, loss, one(100), None, 1)
    assert place(result)[:2] == ("forward_overflow", "0.steep")
    result = diagnose(net, lambda out, _: [out[1][0].sum()], one(4), None, 2.0**14)
    assert place(result)[:2] == ("backward_overflow", "0.steep")


def test_an_infinity_that_the_forward_pass_hides_again():
    class Hiding(nn.HybridBlock):
        def hybrid_forward(self, F, x):
            square = F.broadcast_mul(x, x)
            return 1 / F.broadcast_mul(square, square)  # 1 / inf is 0, its gradient 0 * inf

    pinned = FLOAT16.pin(ops=["broadcast_mul", "_rdiv_scalar"], dtype="float16")
    net = built(unit(1000), Hiding(), policy=pinned)
    assert net(one(1)).asscalar() == 0
    result = diagnose(net, total, one(1), None, 1)
    assert place(result) == ("forward_overflow", "1", "broadcast_mul")
    assert result.value_range == (1000, 1000)


class Plain(mx.gluon.Block):
    """A plain Block of two parts, with Python code between them."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = (chain(*weights, policy="float32") for weights in (first, second))

    def forward(self, x):
        return self.second(nd.relu(self.first(x)) * 2)


@pytest.mark.parametrize(
    "first, second, scale, where, span, recommended",
    [
        ([1, 2], [3e4, 1], 1, ("forward_overflow", "second.0"), (4, 4), None),
        # the Python code between the two doubles
        ([2.0**-6, 16], [1, 1], 2.0**14, ("backward_overflow", "first.1"), (2**15,) * 2, 2.0**10),
    ],
)
def test_plain_blocks(first, second, scale, where, span, recommended):
    net = amp.cast(Plain(first, second), "float16")
    result = diagnose(net, total, one(1), None, scale)
    assert place(result)[:2] == where
    assert (result.value_range, result.recommended_scale) == (span, recommended)


@pytest.mark.parametrize("hybridize", [False, True])
def test_nets_that_are_not_cast(hybridize):
    net = built(unit(1e15), unit(1e15), unit(1e15), policy=None)
    if hybridize:
        net.hybridize()
    result = diagnose(net, total, one(1), None, None)
    assert place(result) == ("forward_overflow", "2", "FullyConnected" if hybridize else None)
    assert result.value_range == pytest.approx((1e30, 1e30))
    for layer, weight in zip(net, (1, 1e-15, 1e20)):
        layer.weight.set_data(one(weight))
    result = diagnose(net, total, one(1), None, 2.0**100)
    assert place(result)[:2] == ("backward_overflow", "2")
    assert result.recommended_scale == 2.0**61  # times 1e20 it is 2.3e38


def test_a_net_of_layers_of_all_kinds():
    net = built(
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
    assert diagnose(net, L2, images(), labels(), 1).verdict == "ok"
    result = diagnose(net, L2, images(), labels() * 60000, 2.0**16)
    assert place(result)[:2] == ("backward_overflow", "8")
    lstm = mx.gluon.rnn.LSTM(4, layout="NTC", input_size=3)
    lstm.initialize()
    result = diagnose(amp.cast(lstm), total, nd.ones((2, 5, 3)) * 1e6, None)
    assert (result.verdict, result.op) == ("forward_overflow", "RNN")


def test_scalars_and_booleans_of_mx_np():
    class Clipped(nn.HybridBlock):
        def __init__(self):
            super().__init__()
            self.dense = unit(16)

        def hybrid_forward(self, F, x):
            x = self.dense(x)
            mean = x.mean()
            return F.np.where(x < mean, x, mean * 0.5)

    def mean(out, _):
        return out.mean()

    with mx.util.np_shape(True), mx.util.np_array(True):
        net = built(Clipped())
        data = mx.np.array([[1.0], [2.0]])  # 16 and 32, of mean 24
        result = diagnose(net, mean, data, None, 2.0**16)
        # The samples receive 1/2 + 1/8 and 1/8, of which 1/8 each through the mean.
        assert (result.verdict, result.value_range) == ("ok", (0.875 * 2**16,) * 2)
        result = diagnose(net, mean, data, None, 2.0**17)
        assert place(result) == ("backward_overflow", "0.dense", "FullyConnected")
