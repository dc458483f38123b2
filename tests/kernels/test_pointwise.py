"""Programs of elementwise instructions on blocked arrays compute what MXNet's operators do."""

import numpy as np
import pytest

from tests.kernels.images import (
    ELEMENTS,
    PRECISION,
    SHAPES,
    compute,
    normal,
    operator,
    reference,
    rounded,
    to_blocked,
    to_plain,
)
from tests.marks import needs_library

import mxnet as mx
from mxnet import nd

pytestmark = needs_library


def pointwise(program, count, element, channels):
    names = [f"x{k}" for k in range(count)]
    attrs = {"program": program, "num_inputs": count, "channels": channels}
    return operator("_gluon_amp_pointwise", names, element, low=names, **attrs)


def run(program, images, element, lanes=16, head=None):
    """Return the result and the gradients in the plain layout; the inputs' padding holds ones."""
    symbol = pointwise(program, len(images), element, images[0].shape[1])
    arrays = {f"x{k}": to_blocked(x, lanes, padding=1) for k, x in enumerate(images)}
    results = compute(symbol, arrays, None if head is None else to_blocked(head, lanes))
    kept = results if head is not None else ["result"]
    return {name: to_plain(results[name], images[0].shape[1]) for name in kept}


def close(actual, expected, element):
    """Allow one rounding of each result and gradient."""
    rtol = PRECISION[element]
    for name, values in actual.items():
        wanted = expected[name]
        size = np.abs(wanted[np.isfinite(wanted)]).max(initial=0)
        np.testing.assert_allclose(values, wanted, rtol, 1e-3 * rtol * size + 1e-6, err_msg=name)


def compare(program, function, images, lanes=16, head=None):
    """Compare forward and backward pass with MXNet's, in every element type."""
    for element in ELEMENTS:
        low = [rounded(x, element) for x in images]
        arrays = {f"x{k}": x for k, x in enumerate(low)}
        draw = (lambda s, e=element: normal(s, e, 9)) if head is None else lambda s: head
        expected, gradient = reference(function, arrays, draw)
        close(run(program, low, element, lanes, gradient), expected, element)


def random(shape, *seeds):
    return [normal(shape, "bfloat16", seed) for seed in seeds]


HARD_SWISH = "adds 0 3; clip 1 0 6; divs 2 6; mul 0 3"


def hard_swish(x):
    return x * (nd.clip(x + 3, 0, 6) / 6)


# Program, MXNet's operators; of one input
UNARY = {
    "": lambda x: x * 1,
    "relu 0": nd.relu,
    "clip 0 0 6": lambda x: nd.clip(x, 0, 6),
    "clip 0 -0.5 0.75": lambda x: nd.clip(x, -0.5, 0.75),
    "leaky 0 0.25": lambda x: nd.LeakyReLU(x, act_type="leaky", slope=0.25),
    "sigmoid 0": nd.sigmoid,
    "tanh 0": nd.tanh,
    "muls 0 0.5; exp 1": lambda x: nd.exp(x * 0.5),
    "square 0": nd.square,
    "abs 0": nd.abs,
    "adds 0 1.5": lambda x: x + 1.5,
    "muls 0 -1; adds 1 1.5": lambda x: 1.5 - x,
    "muls 0 1.5": lambda x: x * 1.5,
    "divs 0 1.5": lambda x: x / 1.5,
    "maxs 0 0.5": lambda x: nd.maximum(x, 0.5),
    "mins 0 0.5": lambda x: nd.minimum(x, 0.5),
    HARD_SWISH: hard_swish,
    "sigmoid 0; mul 0 1": lambda x: x * nd.sigmoid(x),
    "mul 0 0; add 1 0": lambda x: x * x + x,  # a value twice
}
BINARY = {
    "add 0 1": nd.elemwise_add,
    "add 1 0": nd.elemwise_add,
    "add 0 1; relu 2": lambda x, y: nd.relu(x + y),
    "relu 0; add 2 1": lambda x, y: nd.relu(x) + y,
    "sub 0 1": nd.elemwise_sub,
    "mul 0 1": nd.elemwise_mul,
    "square 1; adds 2 1; div 0 3": lambda x, y: x / (nd.square(y) + 1),
    "relu 1": lambda x, y: nd.relu(y) + 0 * x,  # the second alone
}


@pytest.mark.parametrize("program", UNARY)
def test_instructions_of_one_value(program, instruction_set):
    (x,) = random((2, 19, 7, 9), 0)
    x *= 4
    # Bounds and zeros, where gradients jump
    x.ravel()[:8] = [0, 0.5, -0.5, 0.75, 6, 3, -3, 7]
    compare(program, UNARY[program], [x])


@pytest.mark.parametrize("program", BINARY)
def test_instructions_of_two_values(program, instruction_set):
    compare(program, BINARY[program], random((2, 19, 7, 9), 1, 2))


@pytest.mark.parametrize("shape", SHAPES)
def test_any_shape(shape):
    *plain, lanes = shape
    x, y = random(plain, 1, 2)
    compare("relu 0", nd.relu, [x], lanes)
    compare(HARD_SWISH, hard_swish, [x], lanes)
    compare("mul 0 1", nd.elemwise_mul, [x, y], lanes)


@pytest.mark.parametrize("shape", SHAPES)
def test_inputs_with_one_value_per_channel(shape):
    x, y = random(shape[:4], 1)[0], random((*shape[:2], 1, 1), 2)[0]
    # A sum of gradients is rounded once here and in float32 there; it may cancel.
    x, head = np.abs(x), np.abs(random(shape[:4], 3)[0])
    for program, function in {
        "sigmoid 1; mul 0 2": lambda x, y: nd.broadcast_mul(x, nd.sigmoid(y)),
        "add 0 1": nd.broadcast_add,
        "add 0 1; relu 2": lambda x, y: nd.relu(nd.broadcast_add(x, y)),
    }.items():
        compare(program, function, [x, y], shape[4], head)
    compare("mul 1 0", nd.broadcast_mul, [y, x], shape[4], head)  # the other input first


@pytest.mark.parametrize("element", sorted({*ELEMENTS} - {"float32"}))
def test_round_rounds_values_and_gradients(element):
    # 257 and 2049 are not bfloat16 or float16 values
    big = 1 / PRECISION[element]
    x = np.full((1, 1, 1, 2), big, np.float32)
    result = run("adds 0 1; round 1; adds 2 -1", [x], element)["result"]
    np.testing.assert_array_equal(result, rounded(x - 1, element))
    np.testing.assert_array_equal(run("adds 0 1; adds 1 -1", [x], element)["result"], x)
    # The gradient of muls is rounded to that of the last sub.
    results = run(f"round 0; muls 1 {1 + 1 / big!r}; sub 2 0", [x], element, head=x)
    np.testing.assert_array_equal(results["x0"], np.zeros_like(x))


@pytest.mark.parametrize("name", ["exp", "sigmoid", "tanh"])
def test_the_limits_of_functions(name, instruction_set):
    x = np.array([0, 1e-4, -1e-4, 0.5, 20, -20, 80, 89, -80, -89, -200, 200], np.float32)
    x = np.array([*x, np.inf, -np.inf] * 3, np.float32).reshape(1, 42, 1, 1)
    element = ELEMENTS[0]
    x = rounded(x, element)
    with np.errstate(over="ignore"):
        expected = {"result": rounded(getattr(nd, name)(nd.array(x)).asnumpy(), element)}
    close(run(f"{name} 0", [x], element), expected, element)


def test_nan_stays_nan_and_has_no_gradient_in_relu():
    x = np.full((1, 16, 1, 3), np.nan, np.float32)
    for program in ("clip 0 0 6", "maxs 0 1", "mins 0 1", "sigmoid 0", "tanh 0", "exp 0"):
        assert np.isnan(run(program, [x], ELEMENTS[0])["result"]).all()
    gradient = run("relu 0", [x], ELEMENTS[0], head=np.ones_like(x))["x0"]
    np.testing.assert_array_equal(gradient, np.zeros_like(x))


def test_an_empty_batch_is_no_error():
    with mx.util.np_shape(True):
        x = np.zeros((0, 1, 3, 3, 16), np.float32)
        assert compute(pointwise("relu 0", 1, "float16", 16), {"x0": x})["result"].shape == x.shape
