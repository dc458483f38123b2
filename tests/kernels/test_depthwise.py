"""Convolutions with few channels in a group, compared with MXNet's Convolution in float32."""

import numpy as np
import pytest

from tests.kernels.images import ELEMENTS, Convolution, compute, normal, rounded
from tests.marks import needs_library

import mxnet as mx

pytestmark = [needs_library, pytest.mark.cpu_kind]


class Depthwise(Convolution):
    op, padding = "_gluon_amp_depthwise", np.nan


def random_case(seed):
    """Draw odd sizes, more than one channel in a group among them."""
    random = np.random.RandomState(seed)
    kernel = random.choice([1, 2, 3, 3, 5, 5, 7, 11], size=2)
    stride = random.choice([1, 1, 2, 2, 3], size=2)
    dilate = random.choice([1, 1, 1, 2, 3], size=2)
    pad = [random.randint(0, k + 1) for k in kernel]
    reach = dilate * (kernel - 1) + 1 - 2 * np.array(pad)
    height, width = (random.randint(max(1, least), max(1, least) + 70) for least in reach)
    if random.rand() < 0.5:
        height = max(1, reach[0], height // 8)
    groups, group_in, group_out = random.randint(1, 68), 1, 1
    if random.rand() < 0.5:
        groups, group_in = random.randint(1, 13), random.choice([1, 2, 3, 4, 5, 8])
        group_out = random.choice([group_in, group_in, 1, 2, 4])
    channels = int(groups * group_in)
    pairs = {"kernel": kernel, "stride": stride, "pad": pad, "dilate": dilate}
    # With 0 lanes all channels of plain data are side by side; blocked data bring their lanes.
    plain = seed % 4 == 3
    all_lanes = 0 if plain and group_in == group_out else channels
    return Depthwise(
        (random.randint(1, 6), channels, int(height), int(width)),
        int(groups * group_out),
        lanes=int(random.choice([16, 16, 8, all_lanes, 5, 24])),
        plain=plain,
        bias=seed % 3 > 0,
        num_group=groups,
        **{name: tuple(map(int, pair)) for name, pair in pairs.items()},
    )


@pytest.mark.parametrize("seed", range(8))
def test_random_shapes(seed):
    random_case(seed).check(seed)


@pytest.mark.slow
def test_many_random_shapes():
    for seed in range(8, 60):
        random_case(seed).check(seed)


@pytest.mark.parametrize(
    "kernel, stride, pad, size, lanes",
    [
        (3, 1, 1, 28, 16),
        (3, 2, 1, 29, 32),
        (5, 1, 2, 14, 16),
        (5, 2, 2, 14, 16),
        (5, 1, 2, 7, 20),
        (3, 1, 0, 150, 16),  # several buffers for an image
        (1, 3, 0, 7, 16),  # most of the data is not read
        (3, 4, 1, 2, 16),  # the image is narrower than the stride
        (1, 1, 4, 2, 16),  # most results are biases
    ],
)
def test_layers(kernel, stride, pad, size, lanes):
    pairs = {"kernel": (kernel,) * 2, "stride": (stride,) * 2, "pad": (pad,) * 2}
    Depthwise((3, 20, size, size), 20, lanes=lanes, num_group=20, **pairs).check()


@pytest.mark.parametrize("lanes", [16, 48])
@pytest.mark.parametrize("group_in, group_out", [(4, 4), (8, 8), (3, 3), (2, 4), (1, 2), (24, 6)])
def test_groups(lanes, group_in, group_out):
    pairs = {"kernel": (3, 3), "stride": (2, 1), "pad": (1, 1)}
    shape = 2, 2 * group_in, 13, 14
    Depthwise(shape, 2 * group_out, lanes=lanes, num_group=2, **pairs).check()


def test_instruction_sets(instruction_set):
    pairs = {"kernel": (3, 5), "stride": (1, 2), "pad": (1, 2)}
    for groups, channels in [(19, 19), (9, 36)]:
        for lanes in (16, 8, channels):
            shape = 2, channels, 9, 33
            Depthwise(shape, channels, lanes=lanes, num_group=groups, **pairs).check()


LITERAL = {"kernel": (1, 3), "pad": (0, 1), "num_group": 2}


def literal(**options):
    return Depthwise((1, 2, 1, 3), 2, **{**LITERAL, **options})


@pytest.mark.parametrize("element", ELEMENTS)
def test_literal_numbers(element):
    arrays = {
        "data": np.array([[[[1, 2, 4]], [[8, 16, 32]]]], np.float32),
        "weight": np.array([[[[1, 10, 100]]], [[[0, 1, -1]]]], np.float32),
        "bias": np.array([0, 0.5], np.float32),
    }
    head = np.array([[[[1, 0, 2]], [[0, 1, 0]]]], np.float32)
    results = literal().compute(arrays, head, element)
    result = rounded([[210, 421, 42], [-7.5, -15.5, 32.5]], element)
    np.testing.assert_array_equal(results["result"][0, :, 0], result)
    np.testing.assert_array_equal(results["data"][0, :, 0], [[10, 102, 20], [0, 1, -1]])
    np.testing.assert_array_equal(results["weight"][:, 0, 0], [[4, 9, 2], [8, 16, 32]])
    np.testing.assert_array_equal(results["bias"], [3, 1])


@pytest.mark.parametrize("element", ELEMENTS)
def test_weights_are_rounded_and_gradients_added(element):
    arrays = {
        "data": np.array([[[[1, 2, 4]], [[8, 16, 32]]]], np.float32),
        "weight": np.array([[[[1, 1 + 2**-12, 1]]], [[[0, 1 + 2**-7, 0]]]], np.float32),
    }
    requests = {"data": "write", "weight": "add"}
    head = np.ones((1, 2, 1, 3), np.float32)
    results = literal(bias=False).compute(arrays, head, element, requests)
    np.testing.assert_array_equal(results["result"][0, :, 0], [[3, 7, 6], [8.0625, 16.125, 32.25]])
    np.testing.assert_array_equal(results["weight"][:, 0, 0], [[4, 8, 7], [25, 57, 49]])


def test_the_gradient_of_plain_images_is_added():
    case = Depthwise((1, 3, 1, 2), 6, plain=True, bias=False, num_group=3)
    arrays = {"data": np.full((1, 3, 1, 2), 3), "weight": np.ones((6, 1, 1, 1))}
    arrays = {name: values.astype("float32") for name, values in arrays.items()}
    head = np.full((1, 6, 1, 2), 2.0, np.float32)
    added = case.compute(arrays, head, "float16", "add")
    np.testing.assert_array_equal(added["data"], np.full((1, 3, 1, 2), 1 + 2 * 2))
    np.testing.assert_array_equal(added["weight"].ravel(), np.full(6, 1 + 2 * 3 * 2))


def test_gradients_of_float32_weights_are_values_of_float16_in_the_emulation():
    case = Depthwise((2, 5, 9, 9), 5, kernel=(3, 3), num_group=5)
    arrays = case.arrays("float16")
    results = case.compute(arrays, normal((2, 5, 7, 7), "float16", 9), "float16")
    for name in arrays:
        assert len(np.unique(results[name])) > 2
        np.testing.assert_array_equal(results[name], rounded(results[name], "float16"), name)


def test_float16_weights_get_float16_gradients():
    arrays = {
        "data": np.full((1, 2, 1, 3), 1024, np.float32),
        "weight": np.full((2, 1, 1, 3), 0.5, np.float16),
        "bias": np.array([1, 2], np.float16),
    }
    head = np.ones((1, 2, 1, 3), np.float32)
    head[0, 1] = 40
    requests = {**dict.fromkeys(arrays, "add"), "data": "write"}
    results = literal(lanes=2).compute(arrays, head, "float16", requests)
    np.testing.assert_array_equal(results["result"][0, :, 0, :2], [[1025, 1537], [1026, 1538]])
    assert results["weight"].dtype == np.float16
    np.testing.assert_array_equal(results["weight"][0, 0, 0], [2048, 3072, 2048])  # ties to even
    np.testing.assert_array_equal(results["weight"][1, 0, 0], [np.inf, np.inf, np.inf])
    np.testing.assert_array_equal(results["bias"], [4, 121])


def test_no_images():
    with mx.util.np_shape(True):
        empty = np.ones((0, 1, 1, 3, 16), np.float32)
        arrays = {**literal().arrays("float16"), "data": empty}
        results = compute(literal().symbol("float16"), arrays, empty)
    assert results["result"].shape == (0, 1, 1, 3, 16)
    assert not results["weight"].any() and not results["bias"].any()


def test_gradients_that_are_not_requested():
    ones = {"data": np.ones((1, 2, 1, 3)), "weight": np.ones((2, 1, 1, 3)), "bias": np.ones(2)}
    arrays = {name: values.astype(np.float32) for name, values in ones.items()}
    head = np.ones((1, 2, 1, 3), np.float32)
    for name, value in [("weight", 2), ("bias", 3), ("data", 2)]:
        requests = {other: "write" if other == name else "null" for other in arrays}
        assert literal().compute(arrays, head, "float16", requests)[name].ravel()[0] == value
