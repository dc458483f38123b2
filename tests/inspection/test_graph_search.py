"""The operator and the block that diagnose names, in nets of all kinds."""

import pytest

import gluon_amp as amp
from gluon_amp.inspection.diagnose import diagnose
from tests.casting.nets import Net
from tests.inspection.nets import L2, built, chain, images, labels, one, total, unit

import mxnet as mx
from mxnet import nd
from mxnet.gluon import nn


def place(net, loss=total, data=None, scale=1, label=None):
    result = diagnose(net, loss, one(1) if data is None else data, label, scale)
    return result.verdict, result.block, result.op, result.value_range


def pinned(*ops):
    return amp.Policy.parse("float16").pin(ops=[*ops], dtype="float16")


def test_an_operator_outside_all_blocks_is_pinned_by_its_name():
    net = nn.HybridLambda(lambda F, x: F.relu(F.broadcast_mul(F.relu(x), F.relu(x)) - 1))
    result = diagnose(amp.cast(net, pinned("relu", "broadcast_mul")), total, one(300), None, 1)
    assert (result.verdict, result.block, result.op) == ("forward_overflow", "", "broadcast_mul")
    assert "policy.pin(ops=['broadcast_mul'])" in result.advice
    assert "in the net itself" in str(result)


def heads(join):
    """Return layers that read the same data; `join` makes their results an output."""

    def forward(net, F, x):
        x = net.first(x)
        return join(net.flat(x), net.steep(x))

    return Net(forward, first=unit(1e-6), steep=unit(4096), flat=unit(1))


def test_the_branch_that_overflows_is_named_and_not_its_neighbour():
    net = built(heads(lambda flat, steep: steep + flat))
    found = ("backward_overflow", "0.steep", "FullyConnected", (64, 64))
    assert place(net, scale=64) == found


def test_several_outputs_and_losses():
    net = built(heads(lambda flat, steep: (flat, [steep, flat])), policy="mixed_float16")
    net[0].first.weight.set_data(one(1))
    found = place(net, lambda out, _: [out[0].sum(), out[1][0].sum()], one(100))
    assert found == ("forward_overflow", "0.steep", "FullyConnected", (100, 100))
    found = place(net, lambda out, _: [out[1][0].sum()], one(4), 2.0**14)
    assert found[:2] == ("backward_overflow", "0.steep")


def test_an_infinity_that_the_forward_pass_hides_again():
    def hiding(F, x):
        square = F.broadcast_mul(x, x)
        return 1 / F.broadcast_mul(square, square)  # 1 / inf is 0, its gradient 0 * inf

    policy = pinned("broadcast_mul", "_rdiv_scalar")
    net = built(unit(1000), nn.HybridLambda(hiding), policy=policy)
    assert net(one(1)).asscalar() == 0
    assert place(net) == ("forward_overflow", "1", "broadcast_mul", (1000, 1000))


class Plain(mx.gluon.Block):
    """A plain Block of two parts, with Python code between them that doubles."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = (chain(*weights, policy="float32") for weights in (first, second))

    def forward(self, x):
        return self.second(nd.relu(self.first(x)) * 2)


def test_plain_blocks():
    net = amp.cast(Plain([1, 2], [3e4, 1]))
    assert place(net) == ("forward_overflow", "second.0", "FullyConnected", (4, 4))
    found = place(amp.cast(Plain([2.0**-6, 16], [1, 1])), scale=2.0**14)
    assert found == ("backward_overflow", "first.1", "FullyConnected", (2**15,) * 2)


@pytest.mark.parametrize("op", [None, "FullyConnected"])
def test_nets_that_are_not_cast(op):
    net = built(unit(1e15), unit(1e15), unit(1e15), policy=None)
    if op:  # a block that is not hybridized has no graph
        net.hybridize()
    *found, span = place(net)
    assert (found, span) == (["forward_overflow", "2", op], pytest.approx((1e30, 1e30)))
    for layer, weight in zip(net, (1, 1e-15, 1e20)):
        layer.weight.set_data(one(weight))
    result = diagnose(net, total, one(1), None, 2.0**100)
    assert (result.verdict, result.block) == ("backward_overflow", "2")
    assert result.recommended_scale == 2.0**61  # times 1e20 it is 2.3e38


def test_a_net_of_layers_of_all_kinds():
    convolutions = nn.Conv2D(4, 3, padding=1), nn.LayerNorm(), nn.Conv2DTranspose(3, 2), nn.PReLU()
    others = nn.GroupNorm(3), nn.Dropout(0.5), nn.GlobalAvgPool2D(), nn.Dense(3), nn.GELU()
    net = built(*convolutions, *others)
    assert place(net, L2, images(), 1, labels())[0] == "ok"
    found = place(net, L2, images(), 2.0**16, labels() * 60000)
    assert found[:2] == ("backward_overflow", "8")
    lstm = built(mx.gluon.rnn.LSTM(4, layout="NTC", input_size=3))
    assert place(lstm, data=nd.ones((2, 5, 3)) * 1e6)[:3] == ("forward_overflow", "0", "RNN")


def test_scalars_and_booleans_of_mx_np():
    def clipped(net, F, x):
        x = net.dense(x)
        return F.np.where(x < x.mean(), x, x.mean() * 0.5)

    def mean(out, _):
        return out.mean()

    with mx.util.np_shape(True), mx.util.np_array(True):
        net = built(Net(clipped, dense=unit(16)))
        data = mx.np.array([[1.0], [2.0]])  # 16 and 32, of mean 24
        # The samples receive 1/2 + 1/8 and 1/8, of which 1/8 each through the mean.
        assert place(net, mean, data, 2.0**16) == ("ok", None, None, (0.875 * 2**16,) * 2)
        found = place(net, mean, data, 2.0**17)
        assert found[:3] == ("backward_overflow", "0.dense", "FullyConnected")
