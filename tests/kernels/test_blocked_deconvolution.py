"""Deconvolutions in the blocked layout, compared with the gradients of MXNet's Convolution."""

import pytest

from tests.kernels.products import Deconvolution, random_case
from tests.marks import needs_library

pytestmark = [needs_library, pytest.mark.cpu_kind]


@pytest.mark.parametrize("seed", range(5))
def test_random_shapes(seed):
    random_case(Deconvolution, seed).check(seed)


@pytest.mark.slow
def test_many_random_shapes():
    for seed in range(5, 60):
        random_case(Deconvolution, seed).check(seed)


FOUR = {"kernel": (4, 4), "stride": (2, 2), "pad": (1, 1)}
LAYERS = {
    "DCGAN's first": Deconvolution((2, 100, 1, 1), 64, plain=True, bias=False, kernel=(4, 4)),
    "DCGAN's last": Deconvolution((2, 32, 8, 8), 3, **FOUR),
    "U-Net": Deconvolution((1, 48, 5, 7), 24, kernel=(2, 2), stride=(2, 2)),
    "odd size by adj": Deconvolution((2, 20, 5, 5), 24, **{**FOUR, "kernel": (3, 3)}, adj=(1, 1)),
    "bilinear": Deconvolution((2, 21, 4, 4), 21, num_group=21, bias=False, **FOUR),
    "nhwc": Deconvolution((2, 24, 4, 4), 40, lanes=0, **FOUR),
    "dilated far outside": Deconvolution(
        (2, 20, 9, 9), 24, kernel=(3, 3), dilate=(6, 6), pad=(6, 6)
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    LAYERS[name].check()
