"""Programs of elementwise instructions on blocked arrays compute what MXNet's operators do."""

import numpy as np
import pytest

from gluon_amp.graph import from_json
from tests.lowering.blocked_programs import (
    DTYPES,
    SHAPES,
    assert_close,
    normal,
    rounded,
    run_mxnet,
    run_operator,
)
from tests.marks import needs_library

import mxnet as mx
from mxnet import nd

pytestmark = needs_library

POINTWISE = "_gluon_amp_pointwise"


def compare(program, function, images, dtype, lanes, seed=9, **options):
    attrs = {"program": program, "num_inputs": str(len(images))}
    expected = run_mxnet(function, images, None)
    head = normal(expected.result.shape, dtype, seed)
    actual = run_operator(POINTWISE, attrs, images, head, dtype, lanes, **options)
    assert_close(actual, run_mxnet(function, images, head), dtype)
    return actual


HARD_SWISH = "adds 0 3; clip 1 0 6; divs 2 6; mul 0 3"


def hard_swish(x):
    return x * (nd.clip(x + 3, 0, 6) / 6)


# Name, program, MXNet's operators; of one input
UNARY = {
    "nothing": ("", lambda x: x * 1),
    "relu": ("relu 0", nd.relu),
    "clip": ("clip 0 0 6", lambda x: nd.clip(x, 0, 6)),
    "clip around zero": ("clip 0 -0.5 0.75", lambda x: nd.clip(x, -0.5, 0.75)),
    "leaky": ("leaky 0 0.25", lambda x: nd.LeakyReLU(x, act_type="leaky", slope=0.25)),
    "sigmoid": ("sigmoid 0", nd.sigmoid),
    "tanh": ("tanh 0", nd.tanh),
    "exp": ("muls 0 0.5; exp 1", lambda x: nd.exp(x * 0.5)),
    "sqrt": ("adds 0 8; sqrt 1", lambda x: nd.sqrt(x + 8)),
    "square": ("square 0", nd.square),
    "abs": ("abs 0", nd.abs),
    "negative": ("negative 0", nd.negative),
    "adds": ("adds 0 1.5", lambda x: x + 1.5),
    "subs": ("subs 0 1.5", lambda x: x - 1.5),
    "rsubs": ("rsubs 0 1.5", lambda x: 1.5 - x),
    "muls": ("muls 0 1.5", lambda x: x * 1.5),
    "divs": ("divs 0 1.5", lambda x: x / 1.5),
    "maxs": ("maxs 0 0.5", lambda x: nd.maximum(x, 0.5)),
    "mins": ("mins 0 0.5", lambda x: nd.minimum(x, 0.5)),
    "hard-swish": (HARD_SWISH, hard_swish),
    "swish": ("sigmoid 0; mul 0 1", lambda x: x * nd.sigmoid(x)),
    "a value twice": ("mul 0 0; add 1 0", lambda x: x * x + x),
}
BINARY = {
    "add": ("add 0 1", nd.elemwise_add),
    "add in the other order": ("add 1 0", nd.elemwise_add),
    "add and relu": ("add 0 1; relu 2", lambda x, y: nd.relu(x + y)),
    "sub": ("sub 0 1", nd.elemwise_sub),
    "mul": ("mul 0 1", nd.elemwise_mul),
    "div": ("square 1; adds 2 1; div 0 3", lambda x, y: x / (nd.square(y) + 1)),
    "the second alone": ("relu 1", lambda x, y: nd.relu(y) + 0 * x),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_instructions_of_one_value(name, dtype, instruction_set):
    program, function = UNARY[name]
    x = normal((2, 19, 7, 9), dtype) * 4
    # Bounds and zeros, where gradients jump
    x.ravel()[:8] = [0, 0.5, -0.5, 0.75, 6, 3, -3, 7]
    compare(program, function, [x], dtype, 16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BINARY)
def test_instructions_of_two_values(name, dtype, instruction_set):
    program, function = BINARY[name]
    shape = (2, 19, 7, 9)
    compare(program, function, [normal(shape, dtype, 1), normal(shape, dtype, 2)], dtype, 16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_any_shape(shape, dtype):
    *plain, lanes = shape
    x, y = normal(plain, dtype, 1), normal(plain, dtype, 2)
    compare("relu 0", nd.relu, [x], dtype, lanes)
    compare(HARD_SWISH, hard_swish, [x], dtype, lanes)
    compare("add 0 1; relu 2", lambda a, b: nd.relu(a + b), [x, y], dtype, lanes)
    compare("mul 0 1", nd.elemwise_mul, [x, y], dtype, lanes)


BROADCAST = {
    "mul": ("mul 0 1", nd.broadcast_mul),
    "gate": ("sigmoid 1; mul 0 2", lambda x, y: nd.broadcast_mul(x, nd.sigmoid(y))),
    "add": ("add 0 1", nd.broadcast_add),
    "add and relu": ("add 0 1; relu 2", lambda x, y: nd.relu(nd.broadcast_add(x, y))),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", BROADCAST)
def test_inputs_with_one_value_per_channel(name, shape, dtype):
    program, function = BROADCAST[name]
    lanes = shape[4]
    x, y = normal(shape[:4], dtype, 1), normal((*shape[:2], 1, 1), dtype, 2)
    # A sum of gradients is rounded once here and in float32 there; it may cancel.
    head = np.abs(normal(shape[:4], dtype, 3))
    x = np.abs(x)
    attrs = {"program": program, "num_inputs": "2"}
    actual = run_operator(POINTWISE, attrs, [x, y], head, dtype, lanes)
    assert_close(actual, run_mxnet(function, [x, y], head), dtype)
    swapped = program.translate(str.maketrans("01", "10"))
    actual = run_operator(POINTWISE, {**attrs, "program": swapped}, [y, x], head, dtype, lanes)
    expected = run_mxnet(lambda a, b: function(b, a), [y, x], head)
    assert_close(actual, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_round_rounds_values_and_gradients(dtype):
    # 257 and 2049 are not bfloat16 or float16 values
    big = {"bfloat16": 256.0, "float32": 2048.0}[dtype]
    x = np.full((1, 1, 1, 2), big, np.float32)
    attrs = {"program": "adds 0 1; round 1; subs 2 1", "num_inputs": "1"}
    run = run_operator(POINTWISE, attrs, [x], x, dtype, 16)
    np.testing.assert_array_equal(run.result, rounded(x - 1, dtype))
    attrs["program"] = "adds 0 1; subs 1 1"
    run = run_operator(POINTWISE, attrs, [x], x, dtype, 16)
    np.testing.assert_array_equal(run.result, x)
    # The gradient of muls is rounded to that of the last sub.
    attrs["program"] = f"round 0; muls 1 {1 + 1 / big!r}; sub 2 0"
    run = run_operator(POINTWISE, attrs, [x], x, dtype, 16)
    np.testing.assert_array_equal(run.gradients[0], np.zeros_like(x))


@pytest.mark.parametrize("program", ["exp 0", "sigmoid 0", "tanh 0"])
def test_the_limits_of_functions(program, instruction_set):
    x = np.array([0, 1e-4, -1e-4, 0.5, 20, -20, 80, 89, -80, -89, -200, 200], np.float32)
    x = rounded(np.array([*x, np.inf, -np.inf] * 3).reshape(1, 42, 1, 1), "bfloat16")
    function = {"exp 0": nd.exp, "sigmoid 0": nd.sigmoid, "tanh 0": nd.tanh}[program]
    attrs = {"program": program, "num_inputs": "1"}
    actual = run_operator(POINTWISE, attrs, [x], None, "bfloat16", 16)
    assert_close(actual, run_mxnet(function, [x], None), "bfloat16")


def test_nan_stays_nan_and_has_no_gradient_in_relu():
    x = np.full((1, 16, 1, 3), np.nan, np.float32)
    head = np.ones_like(x)
    for program in ("clip 0 0 6", "maxs 0 1", "mins 0 1", "sigmoid 0", "tanh 0", "exp 0"):
        attrs = {"program": program, "num_inputs": "1"}
        assert np.isnan(run_operator(POINTWISE, attrs, [x], None, "bfloat16", 16).result).all()
    run = run_operator(
        POINTWISE, {"program": "relu 0", "num_inputs": "1"}, [x], head, "bfloat16", 16
    )
    np.testing.assert_array_equal(run.gradients[0], np.zeros_like(x))


@pytest.mark.parametrize(
    "program, inputs, message",
    [
        ("swim 0", 1, "no instruction is named swim"),
        ("relu", 1, "a number is missing"),
        ("relu 1", 1, "not the number of an earlier value"),
        ("relu -1", 1, "not the number of an earlier value"),
        ("relu 0.5", 1, "not the number of an earlier value"),
        ("relu 1e300", 1, "not the number of an earlier value"),
        ("clip 0 0 nan", 1, "nan is not a number"),
        ("clip 0 0 6x", 1, "6x is not a number"),
        ("relu 0 0", 1, "0 is not expected"),
        ("; ".join(["relu 0"] * 65), 1, "too many instructions"),
        ("relu 0", 9, "num_inputs is 9"),
        ("relu 0", 0, "a program has 1 to 8 inputs, not 0"),
        ("relu 0", -1, "num_inputs is -1"),
    ],
)
def test_malformed_programs_are_errors(program, inputs, message):
    x = np.ones((1, 16, 1, 1), np.float32)
    attrs = {"program": program, "num_inputs": str(inputs)}
    with pytest.raises(mx.MXNetError, match=message):
        run_operator(POINTWISE, attrs, [x] * max(inputs, 1), None, "float32", 16)


def test_shapes_that_do_not_fit_are_errors():
    attrs = {"program": "add 0 1", "num_inputs": "2"}
    x, wider = np.ones((2, 16, 3, 3), np.float32), np.ones((2, 16, 3, 4), np.float32)
    with pytest.raises(mx.MXNetError, match="an input of shape"):
        run_operator(POINTWISE, attrs, [x, wider], None, "float32", 16)
    with pytest.raises(mx.MXNetError, match="channels is 17"):
        run_operator(POINTWISE, {**attrs, "channels": "17"}, [x, x], None, "float32", 16)
    with pytest.raises(mx.MXNetError, match="expects 2 arrays"):
        run_operator(POINTWISE, attrs, [x], None, "float32", 16)


def symbol_of(program, inputs):
    nodes = [{"op": "null", "name": f"x{i}", "inputs": []} for i in range(inputs)]
    attrs = {"program": program, "num_inputs": str(inputs), "channels": "16"}
    entries = [[i, 0, 0] for i in range(inputs)]
    nodes.append({"op": POINTWISE, "name": "op", "attrs": attrs, "inputs": entries})
    return from_json({"nodes": nodes, "heads": [[inputs, 0, 0]]})


def test_an_empty_batch_is_no_error():
    with mx.util.np_shape(True):
        x = nd.zeros((0, 1, 3, 3, 16))
        assert nd.CachedOp(symbol_of("relu 0", 1))(x).shape == (0, 1, 3, 3, 16)


def test_a_second_pass_in_the_same_memory_computes_the_same():
    x = normal((4, 32, 9, 9), "bfloat16")
    once = compare("relu 0", nd.relu, [x], "bfloat16", 16)
    twice = compare("relu 0", nd.relu, [x], "bfloat16", 16, passes=2)
    np.testing.assert_array_equal(once.gradients[0], twice.gradients[0])
