"""What all products have in common: literal numbers, parameters as stored, requested gradients."""

import numpy as np
import pytest

from gluon_amp.graph.own_operators import BFLOAT16, ROUND
from tests.kernels.images import ELEMENTS, PRECISION, compute, operator, rounded
from tests.kernels.products import (
    Convolution,
    Deconvolution,
    Dense,
    Depthwise,
    exact_results,
    sixteenths,
)
from tests.kernels.test_product_shapes import FOUR, LAYERS, THREE
from tests.marks import needs_library

import mxnet as mx

pytestmark = [needs_library, pytest.mark.cpu_kind]

SHARED = ["1x1", "1x1, nhwc", "first layer", "groups of 4", "dilated far outside"]
SHARED += ["DCGAN's first", "U-Net"]
CASES = {
    **{name: LAYERS[name] for name in SHARED},
    "1x1, stride 2": Convolution((2, 19, 7, 7), 21, bias=False, stride=(2, 2)),
    "3x3": Convolution((2, 32, 9, 9), 48, **THREE),
    "depthwise": Depthwise((2, 20, 9, 9), 20, num_group=20, **THREE),
    "depthwise, plain": Depthwise((2, 6, 7, 8), 12, plain=True, bias=False, num_group=3, **THREE),
    "up": Deconvolution((2, 64, 4, 4), 32, bias=False, **FOUR),
    "dense": Dense((5, 19), 21),
    "dense, few rows": Dense((5, 1031), 21),
}


@pytest.mark.parametrize("name", CASES)
def test_float16_is_rounded_once(name):
    """The results and gradients are the exact ones, rounded once."""
    expected, actual = exact_results(CASES[name])
    for result, exact in expected.items():
        np.testing.assert_array_equal(actual[result], rounded(exact, "float16"), err_msg=result)
    assert any((actual[result] != expected[result]).any() for result in expected)


ROW = [[[[1, 2, 4]], [[8, 16, 32]]]]
HEAD = [[[[1, 0, 2]], [[0, 1, 0]]]]
# Case, arrays, the gradient of the result, and all results without their dimensions of size 1
LITERAL = {
    "convolution": (
        Convolution((1, 2, 1, 3), 2, kernel=(1, 3), pad=(0, 1)),
        {"data": ROW, "weight": [[[[1, 0, 0]], [[0, 1, 0]]], [[[0, 0, 1]], [[0, 0, -1]]]]},
        HEAD,
        {
            "result": [[8, 17, 34], [-13.5, -27.5, 0.5]],
            "data": [[0, 2, 1], [1, 0, 1]],
            "weight": [[[4, 9, 2], [32, 72, 16]], [[1, 2, 4], [8, 16, 32]]],
            "bias": [3, 1],
        },
    ),
    "depthwise": (
        Depthwise((1, 2, 1, 3), 2, kernel=(1, 3), pad=(0, 1), num_group=2),
        {"data": ROW, "weight": [[[[1, 10, 100]]], [[[0, 1, -1]]]]},
        HEAD,
        {
            "result": [[210, 421, 42], [-7.5, -15.5, 32.5]],
            "data": [[10, 102, 20], [0, 1, -1]],
            "weight": [[4, 9, 2], [8, 16, 32]],
            "bias": [3, 1],
        },
    ),
    "deconvolution": (
        Deconvolution((1, 1, 1, 2), 2, kernel=(1, 3), stride=(1, 2), adj=(0, 1)),
        {"data": [[[[1, 10]]]], "weight": [[[[1, 2, 4]], [[0, 0, 0]]]]},
        [[[[1, 0, 2, 0, 0, 4]], [[0, 1, 0, 0, 0, 0]]]],
        {
            "result": [[1, 2, 14, 20, 40, 0], [0.5] * 6],
            "data": [9, 2],
            "weight": [[21, 0, 2], [0, 1, 0]],
            "bias": [7, 1],
        },
    ),
    "dense": (
        Dense((2, 2), 2),
        {"data": [[1, 2], [4, 8]], "weight": [[1, 10], [-1, 1]]},
        [[1, 0], [0, 1]],
        {
            "result": [[21, 1.5], [84, 4.5]],
            "data": [[1, 10], [-1, 1]],
            "weight": [[1, 2], [4, 8]],
            "bias": [1, 1],
        },
    ),
}


@pytest.mark.parametrize("name", LITERAL)
def test_literal_numbers(name):
    case, arrays, head, expected = LITERAL[name]
    arrays = {key: np.array(values, np.float32) for key, values in arrays.items()}
    arrays["bias"] = np.float32([0, 0.5])
    for element in ELEMENTS:
        results = case.compute(arrays, np.array(head, np.float32), element)
        for key, values in expected.items():
            wanted = rounded(values, element)
            np.testing.assert_array_equal(np.squeeze(results[key]), wanted, err_msg=key)


@pytest.mark.parametrize("make", [Convolution, Deconvolution, Depthwise, Dense])
def test_parameters_are_rounded(make):
    for element in set(ELEMENTS) - {"float32"}:
        case = make((1, 1) if make is Dense else (1, 1, 1, 1), 1)
        ones = np.ones(case.shape, np.float32)
        weight, bias = ones * (1 + PRECISION[element] / 3), np.float32([2 + PRECISION[element]])
        arrays = {"data": ones, "weight": weight.astype(np.float32), "bias": bias}
        assert case.compute(arrays, ones, element)["result"].ravel() == [3]


HALVES = {
    "convolution": Convolution((1, 2, 1, 2), 3),
    "convolution, plain": Convolution((1, 2, 1, 2), 3, plain=True),
    "deconvolution": Deconvolution((1, 2, 1, 2), 3),
    "depthwise": Depthwise((1, 3, 1, 2), 3, num_group=3),
    "dense": Dense((2, 2), 3),
}


@pytest.mark.parametrize("name", HALVES)
def test_float16_parameters_get_float16_gradients(name):
    """Of two positions or rows: 2 * 0.5 * 1024, 2 * 40 * 1024, and so on."""
    case = HALVES[name]
    arrays = {
        "data": np.full(case.shape, 1024, np.float32),
        "weight": np.full(case.weight_shape(), 0.5, np.float16),
        "bias": np.array([1, 2, 3], np.float16),
    }
    head = np.full((2, 3) if name == "dense" else (1, 3, 1, 2), 0.5, np.float32)
    head[:, 1] = 40
    product = 512 if name == "depthwise" else 1024
    for requests, before in (("write", 0), ("add", 1)):
        wanted = {**dict.fromkeys(arrays, requests), "data": "write"}
        results = case.compute(arrays, head, "float16", wanted)
        first = results["result"][0] if name == "dense" else results["result"][0, :, 0, 0]
        np.testing.assert_array_equal(first, product + np.arange(1, 4))
        weight = results["weight"].swapaxes(0, 1 if name == "deconvolution" else 0)
        assert weight.dtype == results["bias"].dtype == np.float16
        gradient = np.float16(1024) + np.float16(before)
        for number, value in enumerate((gradient, np.inf, gradient)):
            np.testing.assert_array_equal(weight[number], np.full_like(weight[number], value))
        np.testing.assert_array_equal(results["bias"], np.array([1, 80, 1]) + before)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_added_or_not_requested(name):
    case = CASES[name]
    for element in ELEMENTS:
        arrays = case.arrays(element)
        head = case.expected(arrays, sixteenths)[1]
        once = case.compute(arrays, head, element)
        parameters = [name for name in arrays if name != "data"]
        requests = dict.fromkeys(arrays, "add")
        # the cast to bfloat16 adds by itself
        adds_data = case.plain and element in ("float16", "float32")
        requests["data"] = "add" if adds_data else "write"
        added = case.compute(arrays, head, element, requests)
        for name in parameters:
            np.testing.assert_array_equal(added[name], once[name] + np.float32(1))
        if adds_data:
            total = rounded(once["data"] + np.float32(1), element)
            np.testing.assert_array_equal(added["data"], total)
        for name in arrays:
            requests = {other: "write" if other == name else "null" for other in arrays}
            results = case.compute(arrays, head, element, requests)
            np.testing.assert_array_equal(results[name], once[name])
            for other in set(arrays) - {name}:
                np.testing.assert_array_equal(results[other], 1)


@pytest.mark.parametrize(
    "case",
    [
        Convolution((0, 20, 5, 5), 24, **THREE),
        Convolution((0, 20, 5, 5), 24, plain=True, **THREE),
        Depthwise((0, 20, 5, 5), 20, num_group=20, **THREE),
        Deconvolution((0, 20, 5, 5), 24, **THREE),
        Dense((0, 19), 21),
    ],
    ids=lambda case: f"{type(case).__name__} {case.plain}",
)
def test_no_images(case):
    """In float16 alone: MXNet's cast to bfloat16 fails for them."""
    shape = (0, case.filters) if isinstance(case, Dense) else (0, case.filters, 5, 5)
    with mx.util.np_shape(True):
        results = case.compute(case.arrays("float16"), np.zeros(shape), "float16")
    assert results["result"].shape == shape
    assert not results["weight"].any() and not results["bias"].any()


def test_arrays_of_bfloat16_hold_no_wide_values():
    case = Dense((2, 3), 4)
    attrs = {"bfloat_values": True, **case.options()}
    symbol = operator("_gluon_amp_dense", case.names(), "widened bfloat16", **attrs)
    with pytest.raises(mx.MXNetError, match="bfloat_values expects float32 arrays"):
        compute(symbol, case.arrays("float32"))


@pytest.mark.parametrize(
    "element", ["float16", "wide bfloat16", *{"bfloat16"}.intersection(ELEMENTS)]
)
def test_many_layers_read_one_tensor(element):
    """MXNet's executor then adds the gradients of the data in place."""
    arrays = {"data": np.array([[1, 2], [3, 4]], np.float32)}
    names = ["data"] + [f"weight{i}" for i in range(10)]
    arrays.update((name, np.full((3, 2), 2, np.float32)) for name in names[1:])
    low = operator(BFLOAT16 if element == "bfloat16" else ROUND, ["data"], "float16")
    options = {"num_hidden": 3, "no_bias": True, "variable_weight": True}
    options["bfloat_values"] = element == "wide bfloat16"
    layers = (operator("_gluon_amp_dense", ["x", w], "float16", **options) for w in names[1:])
    symbol = mx.sym.concat(*(layer(x=low) for layer in layers), dim=1)
    if element == "bfloat16":
        symbol = mx.sym.amp_cast(symbol, dtype="float32")
    results = compute(symbol, arrays, np.ones((2, 30), np.float32))
    np.testing.assert_array_equal(results["result"], [[6] * 30, [14] * 30])
    np.testing.assert_array_equal(results["data"], [[60, 60], [60, 60]])
