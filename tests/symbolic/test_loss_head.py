"""How the loss scale enters the gradients of loss heads."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.symbolic import Module, convert, loss_head
from tests.symbolic.networks import conv_net, linear_module, ops_of, step, values

import mxnet as mx
from mxnet import nd


def scaled_gradient(symbol, x, scale, **label):
    """Return the outputs of a graph with the scale, and the gradient of its variable `data`."""
    scaled, _ = loss_head.scale_gradients(symbol, amp.Policy(), {"softmax_label"})
    reqs = {**dict.fromkeys(scaled.list_arguments(), "null"), "data": "write"}
    inputs = {"data": x, **label}
    shapes = {name: values.shape for name, values in inputs.items()}
    executor = scaled.simple_bind(mx.cpu(), grad_req=reqs, **shapes)
    executor.arg_dict[loss_head.SCALE][:] = scale
    executor.forward(is_train=True, **{name: nd.array(values) for name, values in inputs.items()})
    executor.backward()
    return executor.outputs[0].asnumpy(), executor.grad_dict["data"].asnumpy()


X = np.array([[0.5, -1.25, 3.0], [2.0, 0.0, -0.75]], "float32")
HEADS = {
    "SoftmaxOutput": (np.array([2.0, 0.0], "float32"), {"grad_scale": 3.0}),
    "LinearRegressionOutput": (X[::-1] * 2, {}),
    "LogisticRegressionOutput": (np.abs(X) / 4, {}),
    "MAERegressionOutput": (X[::-1] * 2, {"grad_scale": 0.3}),
    "SVMOutput": (np.array([2.0, 0.0], "float32"), {}),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_give_the_scaled_gradient_exactly(name):
    label, attrs = HEADS[name]
    head = getattr(mx.sym, name)(mx.sym.var("data"), mx.sym.var("softmax_label"), **attrs)
    plain = head.simple_bind(mx.cpu(), data=X.shape, softmax_label=label.shape)
    plain.forward(is_train=True, data=nd.array(X), softmax_label=nd.array(label))
    plain.backward()
    for scale in (2.0**-3, 2.0**16):
        out, grad = scaled_gradient(head, X, scale, softmax_label=label)
        np.testing.assert_array_equal(out, plain.outputs[0].asnumpy())
        np.testing.assert_array_equal(grad, plain.grad_dict["data"].asnumpy() * np.float32(scale))


def test_make_loss_is_scaled_and_values_pass_bit_for_bit():
    x = np.array([np.inf, -np.inf, np.nan, -0.0, 0.0, 1e-45, -3e38, 1 / 3], "float32")
    data = mx.sym.var("data")  # -inf is that of masked logits
    for loss, gradient in (
        (mx.sym.MakeLoss(data, grad_scale=0.37), 0.37),
        (mx.sym.make_loss(data), 1),
    ):
        out, grad = scaled_gradient(loss, x, 2.0**16)
        np.testing.assert_array_equal(out.view("int32"), x.view("int32"))
        np.testing.assert_array_equal(grad, np.full(8, np.float32(gradient) * 2**16))


def test_outputs_of_heads_are_distinguished_from_others():
    x = mx.sym.var("data")
    head = mx.sym.SoftmaxOutput(x, mx.sym.var("softmax_label"))
    asking = mx.sym.SoftmaxOutput(x, mx.sym.var("softmax_label"), out_grad=True)
    group = convert(mx.sym.Group([x * 2, head, asking, mx.sym.MakeLoss(x)]), "float16")
    _, inside = loss_head.scale_gradients(group, amp.Policy.parse("float16"), set())
    assert inside == {1, 3}
    scaled, inside = loss_head.scale_gradients(x * 2, amp.Policy(), set())
    assert inside == set() and loss_head.SCALE not in scaled.list_arguments()


def test_module_scales_the_gradient_before_float16():
    # d/dw of (w·x - y)²/2 with x = 1, w·x - y = 2**-26: below float16 without a scale
    for scale, expected in ((1.0, 0), (256.0, 2.0**-18)):
        module = linear_module([[0.0]], loss_scale=scale)
        step(module, [[1.0]], [[-(2.0**-26)]])
        grad = module.executors[0].grad_dict["fc_weight"]
        assert (grad.dtype, grad.asscalar()) == (np.float16, expected)
        assert values(module)["fc_weight"].item() == -expected / scale


def test_heads_and_other_outputs_in_one_symbol():
    # loss (w·x - 0)²/2 plus, from outside, 4 · w·x: gradient 3·x + 4·x
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, no_bias=True, name="fc")
    head = mx.sym.LinearRegressionOutput(x, mx.sym.var("softmax_label"))
    module = linear_module([[3.0]], symbol=mx.sym.Group([head, x]), loss_scale=2.0**8)
    step(module, [[1.0]], [[0.0]], [nd.array([[99.0]]), nd.array([[4.0]])])
    assert values(module)["fc_weight"].item() == 3 - (3 + 4)


class HalfDistance(mx.operator.CustomOp):
    """A loss that computes its own gradient: (x - label) / 2."""

    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], (in_data[0] - in_data[1]) / 2)


class Double(mx.operator.CustomOp):
    """Not a loss: 2 · x, and twice the head gradient."""

    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * 2)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * 2)


@mx.operator.register("gluon_amp_test")
class Properties(mx.operator.CustomOpProp):
    def __init__(self, loss):
        super().__init__(need_top_grad=loss == "0")
        self.loss = loss == "1"

    def list_arguments(self):
        return ["data", "label"] if self.loss else ["data"]

    def infer_shape(self, in_shape):
        return in_shape[:1] * len(in_shape), in_shape[:1], []

    def create_operator(self, ctx, shapes, dtypes):
        return HalfDistance() if self.loss else Double()


def test_a_custom_operator_as_head():
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, no_bias=True, name="fc")
    symbol = mx.sym.Custom(x, mx.sym.var("softmax_label"), op_type="gluon_amp_test", loss=1)
    module = linear_module([[4.0]], symbol=symbol, loss_scale=2.0**7)
    step(module, [[1.0]], [[1.0]])
    assert values(module)["fc_weight"].item() == 4 - 1.5
    ops = ops_of(module.executors[0].get_optimized_symbol())
    assert sum(op.endswith("sign_ste") for op in ops) == 1  # the label gets no gradient


def test_a_custom_operator_that_passes_gradients_on():
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, no_bias=True, name="fc")
    symbol = mx.sym.Custom(x, op_type="gluon_amp_test", loss=0)
    module = linear_module([[4.0]], symbol=symbol, label_names=None, loss_scale=2.0**7)
    step(module, [[1.0]], None, [nd.array([[0.25]])])
    assert values(module)["fc_weight"].item() == 4 - 0.5


def test_heads_that_cannot_be_scaled_are_refused_under_a_scale():
    policy = amp.Policy.parse("float16").pin(ops=["SoftmaxOutput"], dtype="float16")
    with pytest.raises(ValueError, match="loss head softmax is pinned to float16"):
        Module(conv_net(), policy=policy)
    Module(conv_net(), policy=policy, loss_scale=None)
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2)
    x = mx.sym.IdentityAttachKLSparseReg(mx.sym.sigmoid(x), name="sparse")
    symbol = mx.sym.SoftmaxOutput(x, name="softmax")
    with pytest.raises(ValueError, match="sparse adds a term of its own to the gradients"):
        Module(symbol)
    Module(symbol, loss_scale=None)
