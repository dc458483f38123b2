"""Convolutions in the blocked layout, compared with MXNet's Convolution in float32."""

import hashlib

import numpy as np
import pytest

from tests.lowering import printed
from tests.lowering.blocked_images import (
    ELEMENTS,
    PRECISION,
    assert_close,
    compute,
    operator,
    reference,
    rounded,
    to_blocked,
    to_plain,
)
from tests.marks import needs_library

import mxnet as mx
from mxnet import nd

pytestmark = [needs_library, pytest.mark.cpu_kind]

OP = "_gluon_amp_blocked_convolution"


class Case:
    """A convolution: attributes of MXNet's operator, the data's shape, and the layouts."""

    def __init__(self, shape, filters, lanes=16, plain=False, bias=True, **sizes):
        self.shape, self.filters, self.lanes = shape, filters, lanes
        self.plain, self.bias = plain, bias
        self.sizes = {"kernel": (1, 1), "num_group": 1, **sizes}

    @classmethod
    def random(cls, seed):
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
        return cls(
            (random.randint(1, 6), channels, height, width),
            filters,
            lanes=int(random.choice([16, 16, 8, 0])),
            plain=random.rand() < 0.25,
            bias=random.rand() < 0.5,
            kernel=kernel,
            stride=stride,
            pad=pad,
            dilate=dilate,
            num_group=groups,
        )

    def symbol(self, element):
        names = ["data", "weight"] + ["bias"] * self.bias
        return operator(
            OP,
            names,
            element,
            num_filter=self.filters,
            no_bias=not self.bias,
            channels=self.shape[1],
            lanes=self.lanes,
            plain_data=self.plain,
            variable_weight=True,
            **self.sizes,
        )

    def arrays(self, element, seed=0):
        random = np.random.RandomState(seed)
        channels = self.shape[1] // self.sizes["num_group"]
        fan_in = channels * np.prod(self.sizes["kernel"])
        arrays = {
            "data": random.normal(size=self.shape),
            "weight": random.normal(size=(self.filters, channels, *self.sizes["kernel"]))
            / np.sqrt(fan_in),
        }
        if self.bias:
            arrays["bias"] = random.normal(size=self.filters)
        return {name: rounded(values, element) for name, values in arrays.items()}

    def expected(self, arrays, element, seed=0):
        random = np.random.RandomState(seed)
        return self.in_float32(arrays, lambda shape: rounded(random.normal(size=shape), element))

    def in_float32(self, arrays, head_of):
        return reference(
            nd.Convolution,
            arrays,
            head_of,
            num_filter=self.filters,
            no_bias=not self.bias,
            **self.sizes,
        )

    def compute(self, arrays, head, element, requests="write", padding=0):
        """Return the result and the gradients in the plain layout; their padding is 0."""
        inputs = dict(arrays)
        if not self.plain:
            inputs["data"] = to_blocked(arrays["data"], self.lanes, padding)
        head = to_blocked(head, self.lanes, padding)
        results = compute(self.symbol(element), inputs, head, requests)
        results["result"], unused = to_plain(results["result"], self.filters)
        np.testing.assert_array_equal(unused, 0)
        if not self.plain:
            results["data"], unused = to_plain(results["data"], self.shape[1])
            if requests == "write":
                np.testing.assert_array_equal(unused, 0)
        return results


def precision(element):
    low = {"result": PRECISION[element], "data": PRECISION[element]}
    if element == "float16":  # the emulation rounds the gradients of parameters, too
        low.update(weight=PRECISION[element], bias=PRECISION[element])
    return low


def check(case, element, seed=0):
    arrays = case.arrays(element, seed)
    expected, head = case.expected(arrays, element, seed)
    assert_close(case.compute(arrays, head, element), expected, precision(element))


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("seed", range(40))
def test_random_shapes(element, seed):
    check(Case.random(seed), element, seed)


THREE = {"kernel": (3, 3), "pad": (1, 1)}
LAYERS = {
    "first layer": Case((2, 3, 33, 31), 32, plain=True, bias=False, stride=(2, 2), **THREE),
    "ResNet's first": Case(
        (1, 3, 32, 32), 64, plain=True, bias=False, kernel=(7, 7), stride=(2, 2), pad=(3, 3)
    ),
    "first layer of 24 channels": Case((2, 24, 9, 9), 40, plain=True, stride=(2, 2), **THREE),
    "first layer, nhwc": Case((2, 3, 11, 11), 24, plain=True, lanes=0, stride=(2, 2), **THREE),
    "grey images": Case((2, 1, 12, 12), 6, plain=True, kernel=(5, 5)),
    "1x1": Case((2, 64, 7, 7), 48),
    "1x1, stride 2": Case((2, 19, 7, 7), 21, bias=False, stride=(2, 2)),
    "1x1, nhwc": Case((2, 64, 9, 9), 64, lanes=0),
    "3x3": Case((2, 32, 9, 9), 48, **THREE),
    "3x3, nhwc": Case((2, 24, 9, 9), 40, lanes=0, stride=(2, 2), **THREE),
    "two groups": Case((2, 64, 7, 7), 64, num_group=2, bias=False, **THREE),
    "groups of 16": Case((2, 64, 7, 7), 64, num_group=4, **THREE),
    "groups of 4": Case((2, 32, 7, 7), 32, num_group=8, **THREE),
    "groups of 3, nhwc": Case((2, 12, 7, 7), 12, num_group=4, lanes=0, **THREE),
    "8 lanes": Case((2, 24, 9, 9), 40, lanes=8, **THREE),
    "narrower than the stride": Case((5, 19, 1, 1), 21, stride=(2, 2), **THREE),
    "kernel rows that meet no image": Case((1, 160, 1, 5), 40, kernel=(5, 5), pad=(2, 2)),
    "much narrower": Case((3, 20, 2, 2), 20, stride=(4, 4), **THREE),
    "plain and narrower": Case((2, 24, 1, 1), 40, plain=True, stride=(2, 2), **THREE),
    "dilated far outside": Case((2, 20, 8, 8), 24, kernel=(3, 3), dilate=(6, 6), pad=(6, 6)),
    "dilated groups": Case(
        (2, 40, 9, 8), 20, num_group=2, kernel=(3, 3), dilate=(5, 5), pad=(5, 5)
    ),
    "padded in one dimension": Case((2, 19, 9, 14), 21, bias=False, kernel=(5, 3), pad=(2, 0)),
    "padded in one dimension, nhwc": Case((2, 20, 7, 9), 24, lanes=0, kernel=(1, 5), pad=(1, 3)),
    "plain and dilated": Case(
        (2, 24, 8, 8), 19, plain=True, kernel=(3, 3), dilate=(4, 4), pad=(4, 4)
    ),
    "first layer, dilated": Case(
        (2, 3, 8, 8), 19, plain=True, kernel=(3, 3), dilate=(7, 7), pad=(7, 7)
    ),
    "strides of 3": Case((2, 16, 14, 14), 32, kernel=(3, 1), pad=(2, 0), stride=(3, 3)),
    "results of padding alone": Case((1, 5, 1, 1), 7, kernel=(1, 1), pad=(2, 2)),
}


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("name", LAYERS)
def test_layers(element, name):
    check(LAYERS[name], element)


def sixteenths(shape, seed=0):
    """Return values whose products have float32 sums that are exact, so that no order matters."""
    return np.random.RandomState(seed).randint(-63, 64, shape).astype(np.float32) / 16


@pytest.mark.parametrize("name", ["1x1", "3x3", "1x1, stride 2", "first layer", "groups of 16"])
def test_float16_is_rounded_once(name):
    """The results and gradients are the exact ones, rounded once."""
    case = LAYERS[name]
    arrays = {name: sixteenths(array.shape) for name, array in case.arrays("float16").items()}
    expected, head = case.in_float32(arrays, lambda shape: sixteenths(shape, seed=1))
    actual = case.compute(arrays, head, "float16")
    for name, exact in expected.items():
        np.testing.assert_array_equal(actual[name], rounded(exact, "float16"), err_msg=name)
    assert (actual["result"] != expected["result"]).any()


@pytest.mark.parametrize("element", ELEMENTS)
def test_literal_numbers(element):
    case = Case((1, 2, 1, 3), 2, kernel=(1, 3), pad=(0, 1))
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


@pytest.mark.parametrize("element", ELEMENTS)
def test_values_in_the_padding_do_not_reach_results(element):
    """Only finite ones: oneDNN multiplies them by weights that are 0."""
    for case in (LAYERS["1x1, stride 2"], LAYERS["narrower than the stride"]):
        arrays = case.arrays(element)
        expected, head = case.expected(arrays, element)
        assert_close(case.compute(arrays, head, element, padding=300), expected, precision(element))


@pytest.mark.parametrize("element", ELEMENTS)
def test_parameters_are_rounded(element):
    case = Case((1, 1, 1, 1), 1)
    arrays = {
        "data": np.ones((1, 1, 1, 1), np.float32),
        "weight": np.full((1, 1, 1, 1), 1 + PRECISION[element] / 3, np.float32),
        "bias": np.full(1, 2 + PRECISION[element], np.float32),
    }
    results = case.compute(arrays, np.ones((1, 1, 1, 1), np.float32), element)
    assert results["result"].ravel() == [3]


@pytest.mark.parametrize("plain", [False, True])
def test_float16_parameters_get_float16_gradients(plain):
    case = Case((1, 2, 1, 2), 3, plain=plain)
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


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize(
    "name", ["3x3", "first layer", "groups of 4", "1x1, nhwc", "dilated far outside"]
)
def test_gradients_are_added(element, name):
    case = LAYERS[name]
    arrays = case.arrays(element)
    _, head = case.expected(arrays, element)
    once = case.compute(arrays, head, element)
    requests = {**dict.fromkeys(arrays, "add"), "data": "write"}
    added = case.compute(arrays, head, element, requests)
    for name in set(arrays) - {"data"}:
        np.testing.assert_array_equal(added[name], once[name] + np.float32(1))


@pytest.mark.parametrize("element", ELEMENTS)
def test_gradients_that_are_not_requested(element):
    case = LAYERS["3x3"]
    arrays = case.arrays(element)
    _, head = case.expected(arrays, element)
    everything = case.compute(arrays, head, element)
    for name in arrays:
        requests = {other: "write" if other == name else "null" for other in arrays}
        results = case.compute(arrays, head, element, requests)
        np.testing.assert_array_equal(results[name], everything[name])
        for other in set(arrays) - {name}:
            np.testing.assert_array_equal(results[other], 1)


@pytest.mark.parametrize("plain", [False, True])
def test_no_images(plain):
    """In float16 alone: MXNet's cast to bfloat16 fails for them."""
    case = Case((0, 20, 5, 5), 24, plain=plain, **THREE)
    with mx.util.np_shape(True):
        results = case.compute(case.arrays("float16"), np.zeros((0, 24, 5, 5)), "float16")
    assert results["result"].shape == (0, 24, 5, 5)
    assert not results["weight"].any() and not results["bias"].any()


THREADS = "from tests.lowering.test_blocked_convolution import bits; print(bits())"


def bits():
    """Return a digest of some layers' results and gradients, whose sums are exact."""
    digest = hashlib.sha1()
    for name in ("3x3", "first layer", "groups of 4"):
        case = LAYERS[name]
        arrays = {name: sixteenths(array.shape) for name, array in case.arrays("float16").items()}
        head = case.in_float32(arrays, lambda shape: sixteenths(shape, seed=1))[1]
        for _, values in sorted(case.compute(arrays, head, "float16").items()):
            digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def test_threads_do_not_change_exact_sums():
    assert printed(THREADS, timeout=100, OMP_NUM_THREADS="3").split()[-1] == bits()
