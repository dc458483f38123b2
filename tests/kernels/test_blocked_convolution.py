"""Convolutions in the blocked layout, compared with MXNet's Convolution in float32."""

import pytest

from tests.kernels.products import Convolution, random_case
from tests.marks import needs_library

pytestmark = [needs_library, pytest.mark.cpu_kind]


@pytest.mark.parametrize("seed", range(5))
def test_random_shapes(seed):
    random_case(Convolution, seed).check(seed)


@pytest.mark.slow
def test_many_random_shapes():
    for seed in range(5, 60):
        random_case(Convolution, seed).check(seed)


THREE = {"kernel": (3, 3), "pad": (1, 1)}
FIVE = {"kernel": (3, 3), "dilate": (5, 5), "pad": (5, 5)}
LAYERS = {
    "first layer": Convolution((2, 3, 17, 15), 32, plain=True, bias=False, stride=(2, 2), **THREE),
    "first layer, nhwc": Convolution((2, 3, 11, 11), 24, plain=True, lanes=0, **THREE),
    "1x1": Convolution((2, 64, 7, 7), 48),
    "1x1, nhwc": Convolution((2, 64, 9, 9), 64, lanes=0),
    "3x3, nhwc": Convolution((2, 24, 9, 9), 40, lanes=0, stride=(2, 2), **THREE),
    "3x3 of many channels": Convolution((2, 40, 9, 11), 56, **THREE),
    "3x3 of few filters": Convolution((2, 40, 7, 5), 11, **THREE),
    "3x3 of many plain channels": Convolution((2, 40, 9, 11), 24, plain=True, **THREE),
    "3x3 of many channels in 8 lanes": Convolution((1, 33, 5, 3), 20, lanes=8, **THREE),
    "3x3 of large groups": Convolution((2, 64, 8, 9), 96, num_group=2, stride=(2, 2), **THREE),
    "groups of 4": Convolution((2, 32, 7, 7), 32, num_group=8, **THREE),
    "groups of 3, nhwc": Convolution((2, 12, 7, 7), 12, num_group=4, lanes=0, **THREE),
    "8 lanes": Convolution((2, 24, 9, 9), 40, lanes=8, **THREE),
    "narrower than the stride": Convolution((5, 19, 1, 1), 21, stride=(2, 2), **THREE),
    "plain and narrower": Convolution((2, 24, 1, 1), 40, plain=True, stride=(2, 2), **THREE),
    "kernel rows that meet no image": Convolution((1, 160, 1, 5), 40, kernel=(5, 5), pad=(2, 2)),
    "dilated far outside": Convolution((2, 20, 8, 8), 24, kernel=(3, 3), dilate=(6, 6), pad=(6, 6)),
    "dilated groups": Convolution((2, 40, 9, 8), 20, num_group=2, **FIVE),
    "padded in one dimension, nhwc": Convolution(
        (2, 20, 7, 9), 24, lanes=0, kernel=(1, 5), pad=(1, 3)
    ),
    "results of padding alone": Convolution((1, 5, 1, 1), 7, pad=(2, 2)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    LAYERS[name].check()


def test_values_in_the_padding_do_not_reach_results():
    """Only finite ones: oneDNN multiplies them by weights that are 0."""

    class Padded(Convolution):
        padding = 300

    Padded((2, 19, 7, 7), 21, bias=False, stride=(2, 2)).check()
    Padded((5, 19, 1, 1), 21, stride=(2, 2), **THREE).check()
