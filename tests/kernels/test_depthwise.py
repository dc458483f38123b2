"""Convolutions with few channels in a group, compared with MXNet's Convolution in float32."""

import pytest

from tests.kernels.products import Depthwise, random_case
from tests.marks import needs_library

pytestmark = [needs_library, pytest.mark.cpu_kind]


@pytest.mark.parametrize("seed", range(8))
def test_random_shapes(seed):
    random_case(Depthwise, seed).check(seed)


@pytest.mark.slow
def test_many_random_shapes():
    for seed in range(8, 60):
        random_case(Depthwise, seed).check(seed)


@pytest.mark.parametrize(
    "kernel, stride, pad, size, lanes",
    [
        (3, 1, 1, 28, 16),
        (3, 2, 1, 29, 0),
        (5, 2, 2, 14, 16),
        (3, 1, 0, 150, 16),  # several buffers for an image
        (1, 3, 0, 7, 16),  # most of the data is not read
        (3, 4, 1, 2, 16),  # the image is narrower than the stride
        (1, 1, 4, 2, 16),  # most results are biases
    ],
)
def test_layers(kernel, stride, pad, size, lanes):
    pairs = {"kernel": (kernel,) * 2, "stride": (stride,) * 2, "pad": (pad,) * 2}
    Depthwise((3, 20, size, size), 20, lanes=lanes, num_group=20, **pairs).check()


@pytest.mark.parametrize("group_in, group_out", [(4, 4), (8, 8), (3, 3), (2, 4), (1, 2), (24, 6)])
def test_groups(group_in, group_out):
    pairs = {"kernel": (3, 3), "stride": (2, 1), "pad": (1, 1)}
    for lanes in (16, 8) if group_in != group_out else (16, 0):
        shape = 2, 2 * group_in, 13, 14
        Depthwise(shape, 2 * group_out, lanes=lanes, num_group=2, **pairs).check()


def test_instruction_sets(instruction_set):
    pairs = {"kernel": (3, 5), "stride": (1, 2), "pad": (1, 2)}
    for groups, channels in [(19, 19), (9, 36)]:
        for lanes in (16, 8, 0):
            shape = 2, channels, 9, 33
            Depthwise(shape, channels, lanes=lanes, num_group=groups, **pairs).check()
