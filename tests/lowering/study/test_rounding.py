"""Formats for study: rounded operands and gradients, directions, and the ends of a network."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.base.formats import FORMATS, rounded_array
from gluon_amp.lowering import lower
from gluon_amp.lowering.study import delayed_scaling
from gluon_amp.policy import cast_pass
from tests.lowering import back_through
from tests.lowering.study.studied import (
    DIRECTIONS,
    E4M3,
    E5M2,
    HYBRID,
    arrays,
    one_product,
    rounded,
    run,
)
from tests.marks import needs_library
from tests.trainer.helpers import backward

import mxnet as mx
from mxnet import gluon, nd
from mxnet.gluon import nn

pytestmark = needs_library


def check_directions(net, x, head, narrow, wide=()):
    """Compare with products of rounded arrays, but exact ones in the `wide` directions."""
    w = net.weight.data().asnumpy()
    x8, w8, g8 = narrow
    products = {
        "forward": (x8 @ w8.T, x @ w.T),
        "data_gradient": (g8 @ w8, head @ w),
        "weight_gradient": (g8.T @ x8, head.T @ x),
    }
    for direction, actual in zip(DIRECTIONS, run(net, x, head)):
        rounded_product, exact = products[direction]
        expected = exact if direction in wide else rounded_product
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())
        assert not np.allclose(rounded_product, exact, rtol=1e-5)


def weight_of(net):
    return net.weight.data().asnumpy()


def test_operands_and_gradients_are_rounded_by_the_scale_of_each_tensor():
    x, head = arrays()
    net = one_product(HYBRID)
    narrow = rounded(x, E4M3), rounded(weight_of(net), E4M3), rounded(head, E5M2)
    check_directions(net, x, head, narrow)


def test_a_format_of_19_bits_has_no_scale():
    x, head = arrays()
    net = one_product("compute=tfloat32")
    x, head = x * np.float32(1e-5), head * np.float32(1e5)
    tf32 = FORMATS["tfloat32"]
    check_directions(net, x, head, [rounded_array(a, tf32) for a in (x, weight_of(net), head)])


@pytest.mark.parametrize("wide", DIRECTIONS)
def test_a_pin_of_a_direction_leaves_the_others_rounded(wide):
    x, head = arrays()
    net = nn.Dense(3, in_units=4, use_bias=False)
    policy = amp.Policy(HYBRID).pin(ops=["FullyConnected"], dtype="float8_e4m3")
    net = amp.cast(net, policy.pin(ops=["FullyConnected"], direction=wide))
    net.initialize(mx.init.Normal(1))
    narrow = rounded(x, E4M3), rounded(weight_of(net), E4M3), rounded(head, E5M2)
    check_directions(net, x, head, narrow, [wide])
    reason = amp.describe(net).rows[0].reason
    assert reason.endswith(f"pinned to float32 in {wide} by the policy's own pin")


def test_gradients_alone_may_be_rounded():
    x, head = arrays()
    net = one_product("gradients=bfloat16")
    y, dx, dw = run(net, x, head)
    g = rounded_array(head, FORMATS["bfloat16"])
    for actual, expected in ((y, x @ weight_of(net).T), (dx, g @ weight_of(net)), (dw, g.T @ x)):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wide", ["data_gradient", "weight_gradient"])
def test_a_bias_is_added_in_float32_and_has_the_sum_of_the_weight_s_gradient(wide):
    net = nn.Dense(2, in_units=2)
    policy = amp.Policy(HYBRID).pin(ops=["FullyConnected"], dtype="float8_e4m3")
    net = amp.cast(net, policy.pin(ops=["FullyConnected"], direction=wide))
    net.initialize()
    net.bias.set_data(nd.array([0.3, 1e-4]))
    x = nd.zeros((2, 2))
    head = np.array([[1, 0.3], [0.1, 0.7]], "f")
    y = back_through(net, x, head=nd.array(head))
    np.testing.assert_array_equal(y.asnumpy(), np.array([[0.3, 1e-4]] * 2, "f"))
    gradient = head if wide == "weight_gradient" else rounded(head, E5M2)
    np.testing.assert_allclose(net.bias.grad().asnumpy(), gradient.sum(0), rtol=1e-6)


# ------------------------------------------------------------------------- other operators


class _Products(gluon.HybridBlock):
    def hybrid_forward(self, F, a, b, images, kernel):
        conv = F.Convolution(images, kernel, kernel=(3, 3), num_filter=2, no_bias=True)
        deconv = F.Deconvolution(images, kernel, kernel=(3, 3), num_filter=2, no_bias=True)
        return F.dot(a, b), F.batch_dot(a.expand_dims(0), b.expand_dims(0)), conv, deconv


def test_each_kind_of_product_is_rounded():
    shapes = ((3, 4), (4, 2), (1, 2, 6, 6), (2, 2, 3, 3))
    tensors = [nd.random.normal(shape=shape) for shape in shapes]
    ops = ["dot", "batch_dot", "Convolution", "Deconvolution"]
    net = amp.cast(_Products(), amp.Policy("compute=float8_e4m3").pin(ops=ops, dtype="float8_e4m3"))
    expected = _Products()(*(nd.array(rounded(t.asnumpy(), E4M3)) for t in tensors))
    for y, exact in zip(net(*tensors), expected):
        np.testing.assert_allclose(y.asnumpy(), exact.asnumpy(), rtol=1e-5, atol=1e-6)
    assert {row.compute_dtype for row in amp.describe(net).rows if row.op in ops} == {"float8_e4m3"}


def test_an_rnn_stays_in_float32_and_says_so():
    net = amp.cast(gluon.rnn.LSTM(4), HYBRID)
    net.initialize()
    net(nd.ones((3, 2, 4)))
    row = next(row for row in amp.describe(net).rows if row.op == "RNN")
    assert (row.compute_dtype, row.reason) == (
        "float32",
        "its products are inside one operator and cannot be rounded",
    )


class _Loop(gluon.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.first = nn.Dense(4, in_units=4, flatten=False)
            self.cell = gluon.rnn.RNNCell(4, input_size=4)
            self.last = nn.Dense(4, in_units=4)

    def hybrid_forward(self, F, x):
        states = [F.zeros_like(F.slice_axis(x, axis=0, begin=0, end=1).reshape((-1, 4)))]
        outputs, _ = F.contrib.foreach(self.cell, self.first(x), states)
        outputs, _ = F.contrib.foreach(self.cell, outputs, states)
        return self.last(F.slice_axis(outputs, axis=0, begin=-1, end=None).reshape((-1, 4)))


def test_products_in_a_loop_are_rounded():
    net = amp.cast(_Loop(), HYBRID)
    net.initialize()
    trainer = amp.Trainer(net.collect_params(), "sgd")
    backward(trainer, net, nd.random.normal(shape=(3, 2, 4)))
    trainer.step(1)
    dtypes = [row.compute_dtype for row in amp.describe(net).rows if row.op == "FullyConnected"]
    assert dtypes == ["float32", *["float8_e4m3"] * 4, "float32"]
    assert len(delayed_scaling.collect(trainer.parameters)) == 12


# ----------------------------------------------------------------------------------- ends


def products(net, x):
    return [row.compute_dtype for row in amp.describe(net, x).rows if row.op == "FullyConnected"]


class _Plain(gluon.Block):
    def __init__(self, *layers):
        super().__init__()
        for layer in layers:
            self.register_child(layer)

    def forward(self, x):
        for layer in self._children.values():
            x = layer(x)
        return x


@pytest.mark.parametrize("container", ["hybrid", "plain", "nested"])
def test_the_ends_stay_in_float32(container):
    layers = [nn.Dense(4, in_units=4) for _ in range(4)]
    if container == "hybrid":
        net = nn.HybridSequential()
        net.add(*layers)
    elif container == "plain":
        net = _Plain(*layers)
    else:
        inner = nn.HybridSequential()
        inner.add(*layers[:2])
        net = _Plain(inner, *layers[2:])
    net = amp.cast(net, HYBRID)
    net.initialize()
    assert products(net, nd.ones((1, 4))) == ["float32", "float8_e4m3", "float8_e4m3", "float32"]
    reasons = [row.reason for row in amp.describe(net).rows]
    assert "first product" in reasons[0] and "last product" in reasons[-1]


def test_a_pin_returns_an_end_to_its_format():
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=4), nn.Dense(4, in_units=4))
    net = amp.cast(net, amp.Policy(HYBRID).pin(blocks=["^0$"], dtype="float8_e4m3"))
    net.initialize()
    assert products(net, nd.ones((1, 4))) == ["float8_e4m3", "float32"]


# --------------------------------------------------------------------------------- elsewhere


@pytest.mark.parametrize(
    "policy, message",
    [
        ("compute=tfloat32", r"emulated for study on a CPU only: train on mx.cpu\(\)"),
        ("compute=float16,accumulate=float16", "is for the emulation on a CPU, since on a GPU"),
    ],
)
@pytest.mark.parametrize("in_a_loop", [False, True])
def test_a_gpu_is_refused_before_anything_runs(policy, message, in_a_loop):
    def dense(data, states=()):
        out = mx.sym.FullyConnected(data, num_hidden=2, name="fc")
        return out, states

    x = mx.sym.var("x")
    symbol = mx.sym.contrib.foreach(dense, x, [])[0] if in_a_loop else dense(x)[0]
    with pytest.raises(ValueError, match=message):
        lower(cast_pass.apply(symbol, amp.Policy(policy), {}), {"x": "float32"}, "gpu")


def test_transposed_convolutions_train():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 1, in_channels=4), nn.Conv2DTranspose(4, 4, strides=2, in_channels=4))
    net.add(nn.Conv2D(2, 1, in_channels=4))
    net.initialize(mx.init.One())
    amp.cast(net, HYBRID)
    back_through(net, nd.ones((1, 4, 1, 1)))
    # the data is 4, and each of the two last filters sends back a gradient of 1
    assert (net[1].weight.grad().asnumpy() == 8).all()
