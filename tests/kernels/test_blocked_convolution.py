"""Convolutions in the blocked layout, compared with MXNet's Convolution in float32."""

import numpy as np
import pytest

from tests.kernels.images import ELEMENTS, LANES, PRECISION, Convolution, rounded
from tests.marks import needs_library

import mxnet as mx

pytestmark = [needs_library, pytest.mark.cpu_kind]


def random_case(seed):
    """Draw odd sizes; images have 1 to 70 positions, or as many as the kernel needs."""
    random = np.random.RandomState(seed)

    def pair(*values):
        return tuple(int(value) for value in random.choice(values, size=2))

    kernel, stride = pair(1, 1, 2, 3, 3, 5, 7, 11), pair(1, 1, 2, 2, 3)
    dilate = tuple(int(random.choice([1, 2, 3])) if k < 7 else 1 for k in kernel)
    pad = tuple(random.randint(0, k // 2 + 2) for k in kernel)
    least = [max(1, d * (k - 1) + 1 - 2 * p) for d, k, p in zip(dilate, kernel, pad)]
    width = random.randint(least[1], max(70 // least[0], least[1]) + 1)
    height = random.randint(least[0], max(70 // width, least[0]) + 1)
    groups = int(random.choice([1, 1, 1, 2, 3, 5]))
    channels, filters = (groups * random.randint(1, 67 // groups + 1) for _ in range(2))
    return Convolution(
        (random.randint(1, 6), channels, height, width),
        filters,
        lanes=int(random.choice(LANES)),
        plain=random.rand() < 0.25,
        bias=random.rand() < 0.5,
        kernel=kernel,
        stride=stride,
        pad=pad,
        dilate=dilate,
        num_group=groups,
    )


@pytest.mark.parametrize("seed", range(5))
def test_random_shapes(seed):
    random_case(seed).check(seed)


@pytest.mark.slow
def test_many_random_shapes():
    for seed in range(5, 60):
        random_case(seed).check(seed)


THREE = {"kernel": (3, 3), "pad": (1, 1)}
LAYERS = {
    "first layer": Convolution((2, 3, 17, 15), 32, plain=True, bias=False, stride=(2, 2), **THREE),
    "first layer, nhwc": Convolution((2, 3, 11, 11), 24, plain=True, lanes=0, **THREE),
    "1x1": Convolution((2, 64, 7, 7), 48),
    "1x1, stride 2": Convolution((2, 19, 7, 7), 21, bias=False, stride=(2, 2)),
    "1x1, nhwc": Convolution((2, 64, 9, 9), 64, lanes=0),
    "3x3": Convolution((2, 32, 9, 9), 48, **THREE),
    "3x3, nhwc": Convolution((2, 24, 9, 9), 40, lanes=0, stride=(2, 2), **THREE),
    "groups of 4": Convolution((2, 32, 7, 7), 32, num_group=8, **THREE),
    "groups of 3, nhwc": Convolution((2, 12, 7, 7), 12, num_group=4, lanes=0, **THREE),
    "8 lanes": Convolution((2, 24, 9, 9), 40, lanes=8, **THREE),
    "narrower than the stride": Convolution((5, 19, 1, 1), 21, stride=(2, 2), **THREE),
    "plain and narrower": Convolution((2, 24, 1, 1), 40, plain=True, stride=(2, 2), **THREE),
    "kernel rows that meet no image": Convolution((1, 160, 1, 5), 40, kernel=(5, 5), pad=(2, 2)),
    "dilated far outside": Convolution((2, 20, 8, 8), 24, kernel=(3, 3), dilate=(6, 6), pad=(6, 6)),
    "dilated groups": Convolution(
        (2, 40, 9, 8), 20, num_group=2, kernel=(3, 3), dilate=(5, 5), pad=(5, 5)
    ),
    "padded in one dimension, nhwc": Convolution(
        (2, 20, 7, 9), 24, lanes=0, kernel=(1, 5), pad=(1, 3)
    ),
    "results of padding alone": Convolution((1, 5, 1, 1), 7, pad=(2, 2)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    LAYERS[name].check()


def sixteenths(shape, seed=0):
    """Return values whose products have float32 sums that are exact, so that no order matters."""
    return np.random.RandomState(seed).randint(-63, 64, shape).astype(np.float32) / 16


def exact_results(name):
    """Return what MXNet computes of a layer for such values, and what the operator does."""
    case = LAYERS[name]
    arrays = {name: sixteenths(array.shape) for name, array in case.arrays("float16").items()}
    expected, head = case.expected(arrays, lambda shape: sixteenths(shape, seed=1))
    return expected, case.compute(arrays, head, "float16")


@pytest.mark.parametrize("name", ["1x1", "3x3", "1x1, stride 2", "first layer", "groups of 4"])
def test_float16_is_rounded_once(name):
    """The results and gradients are the exact ones, rounded once."""
    expected, actual = exact_results(name)
    for name, exact in expected.items():
        np.testing.assert_array_equal(actual[name], rounded(exact, "float16"), err_msg=name)
    assert (actual["result"] != expected["result"]).any()


@pytest.mark.parametrize("element", ELEMENTS)
def test_literal_numbers(element):
    case = Convolution((1, 2, 1, 3), 2, kernel=(1, 3), pad=(0, 1))
    arrays = {
        "data": np.array([[[[1, 2, 4]], [[8, 16, 32]]]], np.float32),
        "weight": np.array([[[[1, 0, 0]], [[0, 1, 0]]], [[[0, 0, 1]], [[0, 0, -1]]]], np.float32),
        "bias": np.array([0, 0.5], np.float32),
    }
    head = np.array([[[[1, 0, 2]], [[0, 1, 0]]]], np.float32)
    results = case.compute(arrays, head, element)
    np.testing.assert_array_equal(results["result"][0, :, 0], [[8, 17, 34], [-13.5, -27.5, 0.5]])
    np.testing.assert_array_equal(results["data"][0, :, 0], [[0, 2, 1], [1, 0, 1]])
    np.testing.assert_array_equal(results["weight"][0, :, 0], [[4, 9, 2], [32, 72, 16]])
    np.testing.assert_array_equal(results["weight"][1, :, 0], [[1, 2, 4], [8, 16, 32]])
    np.testing.assert_array_equal(results["bias"], [3, 1])


def test_values_in_the_padding_do_not_reach_results():
    """Only finite ones: oneDNN multiplies them by weights that are 0."""

    class Padded(Convolution):
        padding = 300

    for name in ("1x1, stride 2", "narrower than the stride"):
        case = LAYERS[name]
        Padded(case.shape, case.filters, **case.sizes).check()


@pytest.mark.parametrize("element", ELEMENTS)
def test_parameters_are_rounded(element):
    ones = np.ones((1, 1, 1, 1), np.float32)
    weight, bias = ones * (1 + PRECISION[element] / 3), np.float32([2 + PRECISION[element]])
    arrays = {"data": ones, "weight": weight.astype(np.float32), "bias": bias}
    assert Convolution((1, 1, 1, 1), 1).compute(arrays, ones, element)["result"].ravel() == [3]


@pytest.mark.parametrize("plain", [False, True])
def test_float16_parameters_get_float16_gradients(plain):
    case = Convolution((1, 2, 1, 2), 3, plain=plain)
    arrays = {
        "data": np.full((1, 2, 1, 2), 1024, np.float32),
        "weight": np.full((3, 2, 1, 1), 0.5, np.float16),
        "bias": np.array([1, 2, 3], np.float16),
    }
    head = np.full((1, 3, 1, 2), 0.5, np.float32)
    head[0, 1] = 40
    for requests, before in (("write", 0), ("add", 1)):
        wanted = {**dict.fromkeys(arrays, requests), "data": "write"}
        results = case.compute(arrays, head, "float16", wanted)
        np.testing.assert_array_equal(results["result"][0, :, 0, 0], [1025, 1026, 1027])
        assert results["weight"].dtype == results["bias"].dtype == np.float16
        gradient = np.float16(1024) + np.float16(before)
        np.testing.assert_array_equal(results["weight"][[0, 2], :, 0, 0], np.full((2, 2), gradient))
        np.testing.assert_array_equal(results["weight"][1].ravel(), [np.inf, np.inf])
        np.testing.assert_array_equal(results["bias"], np.array([1, 80, 1]) + before)


@pytest.mark.parametrize(
    "name", ["3x3", "first layer", "groups of 4", "1x1, nhwc", "dilated far outside"]
)
def test_gradients_are_added_or_not_requested(name):
    case = LAYERS[name]
    for element in ELEMENTS:
        arrays = case.arrays(element)
        head = case.expected(arrays, lambda shape: sixteenths(shape))[1]
        once = case.compute(arrays, head, element)
        parameters = [name for name in arrays if name != "data"]
        requests = {**dict.fromkeys(parameters, "add"), "data": "write"}
        added = case.compute(arrays, head, element, requests)
        for name in parameters:
            np.testing.assert_array_equal(added[name], once[name] + np.float32(1))
        for name in arrays:
            requests = {other: "write" if other == name else "null" for other in arrays}
            results = case.compute(arrays, head, element, requests)
            np.testing.assert_array_equal(results[name], once[name])
            for other in set(arrays) - {name}:
                np.testing.assert_array_equal(results[other], 1)


@pytest.mark.parametrize("plain", [False, True])
def test_no_images(plain):
    """In float16 alone: MXNet's cast to bfloat16 fails for them."""
    case = Convolution((0, 20, 5, 5), 24, plain=plain, **THREE)
    with mx.util.np_shape(True):
        results = case.compute(case.arrays("float16"), np.zeros((0, 24, 5, 5)), "float16")
    assert results["result"].shape == (0, 24, 5, 5)
    assert not results["weight"].any() and not results["bias"].any()
