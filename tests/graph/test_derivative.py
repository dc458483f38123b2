"""The derivative of a graph by an input: each rule against MXNet's gradient and differences."""

import numpy as np
import pytest

from gluon_amp import graph
from gluon_amp.graph.derivative import derivative
from gluon_amp.graph.derivative_rules import RULES

import mxnet as mx

SHAPE = (2, 4, 6, 6)

# Functions of F and x; the rules of elementwise operators stand together in a few of them
FUNCTIONS = {
    "relu": lambda F, x: F.Activation(x, act_type="relu"),
    "sigmoid": lambda F, x: F.Activation(x, act_type="sigmoid"),
    "tanh": lambda F, x: F.Activation(x, act_type="tanh"),
    "softrelu": lambda F, x: F.Activation(x, act_type="softrelu"),
    "softsign": lambda F, x: F.Activation(x, act_type="softsign"),
    "leaky": lambda F, x: F.LeakyReLU(x, slope=0.2),
    "prelu": lambda F, x: F.LeakyReLU(x, act_type="prelu", name="p"),
    "elu": lambda F, x: F.LeakyReLU(x, act_type="elu", slope=0.7),
    "gelu": lambda F, x: F.LeakyReLU(x, act_type="gelu"),
    "layer norm": lambda F, x: F.LayerNorm(x, axis=1, name="n"),
    "average pooling": lambda F, x: F.Pooling(x, pool_type="avg", kernel=(2, 3), stride=(2, 3)),
    "global pooling": lambda F, x: F.Pooling(x, pool_type="avg", global_pool=True, kernel=(1, 1)),
    "convolution": lambda F, x: F.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=6, name="c"),
    "strided": lambda F, x: F.Convolution(
        x, kernel=(4, 4), stride=(3, 3), pad=(1, 1), num_filter=3, name="c"
    ),
    "dilated groups": lambda F, x: F.Convolution(
        x, kernel=(3, 2), stride=(2, 1), dilate=(2, 2), num_group=2, num_filter=8, name="c"
    ),
    "dense": lambda F, x: F.FullyConnected(x, num_hidden=3, name="d"),
    "dense of each pixel": lambda F, x: F.FullyConnected(x, num_hidden=3, flatten=False, name="d"),
    "operators": lambda F, x: F.relu(x) + F.tanh(x) * F.exp(0.1 * x) + F.softsign(x),
    "broadcast": lambda F, x: F.broadcast_mul(x, F.mean(x, axis=(1, 2), keepdims=True)),
    "broadcast to": lambda F, x: F.broadcast_add(x, F.sum(x, axis=1, keepdims=True)) / 3 - 2,
    "product": lambda F, x: x * F.sigmoid(x) - x / (x * x + 2),
    "root": lambda F, x: (x * x + 1) ** 0.5 + F.sqrt(x * x + 2) - 3 / (x * x + 1),
    "maximum": lambda F, x: F.maximum(x, 0.1) * x,
    "matrix product": lambda F, x: F.dot(F.flatten(x), F.transpose(F.flatten(F.tanh(x)))),
    "log": lambda F, x: F.log(F.abs(x) + 1) - (1 - x),
    "shapes": lambda F, x: F.transpose(F.reshape(x, (0, -3, 0)), (2, 0, 1)) * 2,
    "concat": lambda F, x: F.concat(x, -2 * x, F.negative(x), dim=2),
    "stopped": lambda F, x: F.BlockGrad(x) + x * (x > 0) * F.sign(x) + F.ones_like(x),
    "excluded": lambda F, x: F.square(F.sum(x, axis=1, exclude=True)),
}


def run(symbol, arrays):
    """Return the sum of a symbol's output, and its gradients by all arrays."""
    names = symbol.list_inputs()
    inputs = [mx.nd.array(arrays[name], dtype="float64") for name in names]
    for x in inputs:
        x.attach_grad()
    with mx.autograd.record():
        out = mx.nd.CachedOp(symbol)(*inputs)
    out.backward()
    return out.asnumpy(), {name: x.grad.asnumpy() for name, x in zip(names, inputs)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_is_mxnets_gradient_and_can_be_differentiated(name):
    """The tanh in front makes the second derivative of a linear operator other than zero."""
    symbol = FUNCTIONS[name](mx.sym, mx.sym.tanh(mx.sym.var("x")))
    slopes = derivative(symbol, "x", {"x": SHAPE})
    penalty = mx.sym.sum(mx.sym.square(slopes))
    random = np.random.RandomState(0)
    shapes = zip(symbol.list_arguments(), symbol.infer_shape(x=SHAPE)[0])
    arrays = {arg: random.normal(size=shape) for arg, shape in shapes}
    found, _ = run(slopes, arrays)
    np.testing.assert_allclose(found, run(symbol, arrays)[1]["x"], rtol=1e-5, atol=1e-8)
    for arg, gradient in run(penalty, arrays)[1].items():
        step = 1e-6 * random.normal(size=arrays[arg].shape)
        after, before = (
            run(penalty, {**arrays, arg: arrays[arg] + sign * step})[0].item() for sign in (1, -1)
        )
        expected, exact = (after - before) / 2, (gradient * step).sum()
        assert abs(exact - expected) <= 1e-4 * abs(exact) + 1e-11 * abs(after), arg


def test_the_new_operators_have_the_label_of_the_block_whose_operator_they_differentiate():
    with mx.AttrScope(**{graph.BLOCK_ATTR: "body"}):
        y = mx.sym.tanh(mx.sym.var("x"))
    nodes = graph.to_json(derivative(y * 2, "x", {"x": (2,)}))["nodes"]
    slopes = [node for node in nodes if node["name"].endswith(("square", "elemwise_mul"))]
    assert slopes and {node["attrs"][graph.BLOCK_ATTR] for node in slopes} == {"body"}


@pytest.mark.parametrize(
    "body, message",
    [
        (lambda F, x: F.BatchNorm(x), "no rule for BatchNorm"),
        (lambda F, x: F.Pooling(x, kernel=(2, 2)), "no rule for Pooling"),
        (lambda F, x: F.Pooling(x, kernel=(2, 2), pool_type="avg"), "no rule for Pooling"),
        (lambda F, x: F.Convolution(x, kernel=(1, 1), pad=(1, 1), num_filter=2), "for Convolution"),
        (lambda F, x: F.dot(x, x, transpose_b=True), "no rule for dot"),
        (lambda F, x: F.split(x, 2, axis=1)[0], "no rule for SliceChannel"),
        (lambda F, x: F.split(x, 2, axis=1)[1], "no rule for SliceChannel"),
        (lambda F, x: F.ones((1,)), "No output of the net depends on x"),
        (lambda F, x: F.BlockGrad(x), "No output of the net depends on x"),
        (lambda F, x: F.np.sign(x.as_np_ndarray()), "No output of the net depends on x"),
    ],
)
def test_what_has_no_rule_is_refused_in_one_sentence(body, message):
    with pytest.raises(ValueError, match=message) as caught:
        derivative(body(mx.sym, mx.sym.var("x")), "x", {"x": SHAPE})
    assert "\n" not in str(caught.value)


def test_the_rules_are_for_operators_of_mxnet():
    assert {*RULES} <= set(mx.operator.get_all_registered_operators())
