"""LayerNorm, GELU, softmax, losses, splits and batch_dot of the C++ library equal MXNet's."""

import math

import numpy as np
import pytest

from gluon_amp import kernels
from tests.kernels.images import ELEMENTS, assert_close, compute, normal, operator, rounded
from tests.marks import needs_library

import mxnet as mx

pytestmark = needs_library

# More rows than a block has, odd sizes, one column, and enough elements for several threads
SHAPES = [(2, 3), (3, 1), (70, 33), (5, 7, 40), (300, 260)]
NAMES = ["x", "gamma", "beta"]
LOW = [element for element in ELEMENTS if element == "bfloat16"]


def arrays_of(shape, names=NAMES, element="float32"):
    shapes = {"x": shape, "gamma": shape[-1:], "beta": shape[-1:]}
    values = {name: normal(shapes[name], "float16", seed=k) for k, name in enumerate(names)}
    values["x"] = rounded(3 * values["x"] + 1, "bfloat16" if element == "bfloat16" else "float16")
    return values


def norm():
    return operator("_gluon_amp_layer_norm", NAMES, "float32", eps=1e-3)


def stock(op, *names, **attrs):
    return getattr(mx.sym, op)(*map(mx.sym.var, names), **attrs)


@pytest.mark.parametrize(
    "requests", ["write", "add", {"x": "null", "gamma": "add", "beta": "write"}]
)
@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norm(instruction_set, shape, requests):
    arrays, head = arrays_of(shape), normal(shape, "float16", seed=9)
    ours = compute(norm(), arrays, head, requests)
    theirs = compute(stock("LayerNorm", *NAMES, eps=1e-3), arrays, head, requests)
    assert_close(ours, theirs, {}, 4e-6)


def test_layer_norm_has_the_same_bits_everywhere():
    arrays, head, found = arrays_of((70, 45)), normal((70, 45), "float16", seed=9), []
    for _ in filter(kernels.select, kernels.INSTRUCTION_SETS):
        found.append(compute(norm(), arrays, head))
    kernels.select(None)
    for one in found[1:]:
        for name, value in one.items():
            np.testing.assert_array_equal(value, found[0][name], name)


@pytest.mark.parametrize("requests", ["write", "add"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1, 0.125])
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_softmax(instruction_set, op, scale, shape, requests):
    arrays, head = arrays_of(shape, ["x"]), normal(shape, "float16", seed=9)
    arrays["x"].flat[:: shape[-1] + 1] = -np.inf if op == "softmax" else -1e4  # masked
    if shape[-1] == 1:
        arrays["x"][:] = 5
    symbol = operator(f"_gluon_amp_{op}", ["x"], "float32", scale=scale)
    ours = compute(symbol, arrays, head, requests)
    if (op, shape[-1]) != ("log_softmax", 1):  # the logarithm of 1, where oneDNN has 1.4e-6
        # oneDNN's log_softmax is off by up to 3.4e-6
        bound = {"softmax": 1e-6, "log_softmax": 4e-6}[op]
        symbol = stock(op, "x", temperature=1 / scale)
        assert_close(ours, compute(symbol, arrays, head, requests), {}, bound)
    x = arrays["x"].astype(np.float64) * scale
    logs = x - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True))
    exact = logs - x.max(-1, keepdims=True)
    exact = np.exp(exact) if op == "softmax" else exact
    np.testing.assert_allclose(ours["result"], exact, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("op, last", [("softmax", 1 / 18), ("log_softmax", -np.log(18))])
def test_softmax_of_what_is_not_finite(instruction_set, op, last):
    x = np.array([[np.nan, 1] + [0] * 16, [-np.inf] * 18, [np.inf] * 18, [-1e30] * 18], np.float32)
    result = compute(operator(f"_gluon_amp_{op}", ["x"], "float32"), {"x": x})["result"]
    np.testing.assert_array_equal(np.isnan(result).any(axis=1), [True, True, True, False])
    np.testing.assert_allclose(result[3], last, rtol=1e-6)


@pytest.mark.parametrize("requests", ["write", "add"])
@pytest.mark.parametrize("shape", [(3, 1), (300, 260)])
def test_gelu(instruction_set, shape, requests):
    x, head = arrays_of(shape, ["x"])["x"], normal(shape, "float16", seed=9)
    found = compute(operator("_gluon_amp_gelu", ["x"], "float32"), {"x": x}, head, requests)
    wide = x.astype(np.float64)
    below = 0.5 + 0.5 * np.vectorize(math.erf)(wide / math.sqrt(2))
    slope = below + wide * np.exp(-(wide**2) / 2) / math.sqrt(2 * math.pi)
    np.testing.assert_allclose(found["result"], wide * below, rtol=1e-6, atol=1e-6)
    expected = head * slope + (requests == "add")
    np.testing.assert_allclose(found["x"], expected, rtol=1e-6, atol=4e-6)


def test_gelu_of_what_is_large_or_not_finite(instruction_set):
    x = np.array([np.nan, np.inf, 3e38, -3e38, 40, -40, 0] * 3, np.float32)
    found = compute(operator("_gluon_amp_gelu", ["x"], "float32"), {"x": x}, np.ones_like(x))
    expected = [np.nan, np.inf, np.float32(3e38), 0, 40, 0, 0]
    np.testing.assert_array_equal(found["result"], expected * 3)
    np.testing.assert_array_equal(found["x"][2:7], [1, 0, 1, 0, 0.5])


@pytest.mark.parametrize("element", LOW)
@pytest.mark.parametrize("op, names", [("layer_norm", NAMES), ("gelu", ["x"])])
def test_an_operator_of_bfloat16(instruction_set, op, names, element):
    """It rounds the result and the gradient of the data, and nothing else."""
    arrays, head = arrays_of((70, 33), names, element), normal((70, 33), element, seed=9)
    ours = operator(f"_gluon_amp_{op}", names, element, dtype="bfloat16")
    wide = compute(operator(f"_gluon_amp_{op}", names, "float32"), arrays, head)
    for name in ("result", "x"):
        wide[name] = rounded(wide[name], element)
    for name, value in compute(ours, arrays, head).items():
        np.testing.assert_array_equal(value, wide[name], name)


@pytest.mark.parametrize("requests", ["write", "add"])
@pytest.mark.parametrize("shape", [(18,), *SHAPES])
@pytest.mark.parametrize("keepdims", [False, True])
def test_the_loss_of_a_class(instruction_set, keepdims, shape, requests):
    """Labels beyond the classes are those of the first and the last class, as pick has it."""
    x, rows = arrays_of(shape, ["x"])["x"], shape[:-1] or (1,)
    labels = np.resize([0.0, shape[-1] - 1, -2, shape[-1] + 7, 1], rows).astype(np.float32)
    head = normal((*shape[:-1], 1) if keepdims else rows, "float16", seed=9)
    ours = operator("_gluon_amp_picked_log_softmax", ["x", "l"], "float32", keepdims=keepdims)
    logs = operator("_gluon_amp_log_softmax", ["x"], "float32")
    two = mx.sym.pick(logs, mx.sym.var("l"), keepdims=keepdims)
    arrays = {"x": x, "l": labels}
    found, expected = (compute(one, arrays, head, requests) for one in (ours, two))
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, name)


@pytest.mark.parametrize("element", ["float32", *LOW])
@pytest.mark.parametrize(
    "shape, axis, count", [((2, 3, 6), -1, 3), ((4, 5), 0, 2), ((64, 960), 1, 5)]
)
@pytest.mark.parametrize("requests", ["write", "add"])
def test_split(element, shape, axis, count, requests):
    attrs = {"axis": axis, "num_outputs": count}
    x = rounded(normal(shape, "float16"), "bfloat16")
    ours = operator("_gluon_amp_split", ["x"], element, outputs=count, **attrs)
    heads = [rounded(h, "bfloat16") for h in np.split(normal(shape, "float16", 1), count, axis)]
    found = compute(ours, {"x": x}, heads, requests)
    for k, part in enumerate(np.split(x, count, axis)):
        np.testing.assert_array_equal(found[f"result{k}" if k else "result"], part)
    expected = np.concatenate(heads, axis) + (requests == "add" and element == "float32")
    if requests == "write" or element == "float32":
        np.testing.assert_array_equal(found["x"], expected)


@pytest.mark.parametrize("turned_b", [False, True])
@pytest.mark.parametrize("turned_a", [False, True])
@pytest.mark.parametrize(
    "batch, m, k, n", [((3,), 5, 7, 2), ((2, 3), 1, 4, 9), ((40,), 33, 64, 70)]
)
@pytest.mark.parametrize("requests", ["write", "add", {"a": "add", "b": "null"}])
def test_batch_dot(batch, m, k, n, turned_a, turned_b, requests):
    attrs = {"transpose_a": turned_a, "transpose_b": turned_b}
    shapes = {"a": (k, m) if turned_a else (m, k), "b": (n, k) if turned_b else (k, n)}
    arrays = {
        name: normal((*batch, *shape), "float16", len(name)) for name, shape in shapes.items()
    }
    head = normal((*batch, m, n), "float16", 9)
    ours = compute(
        operator("_gluon_amp_batch_dot", ["a", "b"], "float32", **attrs), arrays, head, requests
    )
    theirs = compute(stock("batch_dot", "a", "b", **attrs), arrays, head, requests)
    assert_close(ours, theirs, {}, 2e-6)


@pytest.mark.parametrize(
    "shapes", [[(0, 2, 3), (0, 3, 4)], [(2, 0, 3), (2, 3, 4)], [(2, 2, 0), (2, 0, 4)]]
)
def test_batch_dot_of_nothing(shapes):
    arrays = {name: np.ones(shape, np.float32) for name, shape in zip("ab", shapes)}
    shape = (*shapes[0][:2], 4)
    with mx.util.np_shape(True):
        symbol = operator("_gluon_amp_batch_dot", ["a", "b"], "float32")
        found = compute(symbol, arrays, np.ones(shape, np.float32))
    np.testing.assert_array_equal(found["result"], np.zeros(shape))
    np.testing.assert_array_equal(found["b"], np.zeros(shapes[1]))


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_no_elements(shape):
    with mx.util.np_shape(True):
        arrays = arrays_of(shape)
        found = compute(norm(), arrays, np.zeros(shape, np.float32))
        for name in ("gamma", "beta"):
            np.testing.assert_array_equal(found[name], np.zeros(shape[-1:]))
        others = {"softmax": {}, "gelu": {}, "split": {"axis": 0, "num_outputs": 1}}
        for op, attrs in others.items():
            symbol = operator(f"_gluon_amp_{op}", ["x"], "float32", **attrs)
            found = compute(symbol, {"x": arrays["x"]}, np.zeros(shape, np.float32))
            assert found["result"].shape == found["x"].shape == shape
