"""Products of odd and of usual shapes, compared with MXNet's operators in float32."""

import numpy as np
import pytest

from gluon_amp import kernels
from tests.kernels.products import Convolution, Deconvolution, Dense, Depthwise, random_case
from tests.marks import needs_library

pytestmark = [needs_library, pytest.mark.cpu_kind]


def random_dense(seed):
    random = np.random.RandomState(seed)
    shape = tuple(int(n) for n in random.randint(1, 68, size=random.choice([1, 2, 2, 2, 3])))
    shape = (random.randint(1, 6), *shape) if random.rand() < 0.7 else (*shape, 3)
    return Dense(shape, random.randint(1, 68), random.rand() < 0.5, random.rand() < 0.7)


FEW, MANY = range(6), range(6, 60)


@pytest.mark.parametrize("seed", [*FEW, *(pytest.param(k, marks=pytest.mark.slow) for k in MANY)])
@pytest.mark.parametrize("make", [Convolution, Deconvolution, Depthwise, Dense])
def test_random_shapes(make, seed):
    case = random_dense(seed) if make is Dense else random_case(make, seed)
    case.check(seed)


THREE = {"kernel": (3, 3), "pad": (1, 1)}
HALVED = {**THREE, "stride": (2, 2)}
FIVE = {"kernel": (3, 3), "dilate": (5, 5), "pad": (5, 5)}
FAR = {"kernel": (3, 3), "dilate": (6, 6), "pad": (6, 6)}
FOUR = {"kernel": (4, 4), "stride": (2, 2), "pad": (1, 1)}


def depthwise(kernel, stride, pad, size, lanes):
    sizes = {"kernel": (kernel,) * 2, "stride": (stride,) * 2, "pad": (pad,) * 2}
    return Depthwise((3, 20, size, size), 20, lanes=lanes, num_group=20, **sizes)


LAYERS = {
    "first layer": Convolution((2, 3, 17, 15), 32, plain=True, bias=False, **HALVED),
    "first layer, nhwc": Convolution((2, 3, 11, 11), 24, plain=True, lanes=0, **THREE),
    "1x1": Convolution((2, 64, 7, 7), 48),
    "1x1, nhwc": Convolution((2, 64, 9, 9), 64, lanes=0),
    "1x1 of a part": Convolution((2, 20, 7, 10), 24, stride=(2, 3)),
    "1x1 of a part, nhwc": Convolution((2, 24, 9, 4), 40, lanes=0, stride=(4, 2)),
    "transposed 1x1 of a part": Deconvolution((2, 20, 3, 4), 24, stride=(2, 3), adj=(1, 0)),
    "3x3, nhwc": Convolution((2, 24, 9, 9), 40, lanes=0, **HALVED),
    "3x3 of many channels": Convolution((2, 40, 9, 11), 56, **THREE),
    "3x3 of few filters": Convolution((2, 40, 7, 5), 11, **THREE),
    "3x3 of many plain channels": Convolution((2, 40, 9, 11), 24, plain=True, **THREE),
    "3x3 of many channels in 8 lanes": Convolution((1, 33, 5, 3), 20, lanes=8, **THREE),
    "3x3 of large groups": Convolution((2, 64, 8, 9), 96, num_group=2, **HALVED),
    "groups of 4": Convolution((2, 32, 7, 7), 32, num_group=8, **THREE),
    "groups of 3, nhwc": Convolution((2, 12, 7, 7), 12, num_group=4, lanes=0, **THREE),
    "8 lanes": Convolution((2, 24, 9, 9), 40, lanes=8, **THREE),
    "narrower than the stride": Convolution((5, 19, 1, 1), 21, **HALVED),
    "plain and narrower": Convolution((2, 24, 1, 1), 40, plain=True, **HALVED),
    "kernel rows that meet no image": Convolution((1, 160, 1, 5), 40, kernel=(5, 5), pad=(2, 2)),
    "dilated far outside": Convolution((2, 20, 8, 8), 24, **FAR),
    "dilated groups": Convolution((2, 40, 9, 8), 20, num_group=2, **FIVE),
    "padded in one dimension": Convolution((2, 20, 7, 9), 24, lanes=0, kernel=(1, 5), pad=(1, 3)),
    "results of padding alone": Convolution((1, 5, 1, 1), 7, pad=(2, 2)),
    "DCGAN's first": Deconvolution((2, 100, 1, 1), 64, plain=True, bias=False, kernel=(4, 4)),
    "DCGAN's last": Deconvolution((2, 32, 8, 8), 3, **FOUR),
    "U-Net": Deconvolution((1, 48, 5, 7), 24, kernel=(2, 2), stride=(2, 2)),
    "odd size by adj": Deconvolution((2, 20, 5, 5), 24, **HALVED, adj=(1, 1)),
    "bilinear": Deconvolution((2, 21, 4, 4), 21, num_group=21, bias=False, **FOUR),
    "deconvolution, nhwc": Deconvolution((2, 24, 4, 4), 40, lanes=0, **FOUR),
    "deconvolution far outside": Deconvolution((2, 20, 9, 9), 24, **FAR),
    "depthwise": depthwise(3, 1, 1, 28, lanes=16),
    "depthwise, nhwc": depthwise(3, 2, 1, 29, lanes=0),
    "depthwise of 5 x 5": depthwise(5, 2, 2, 14, lanes=16),
    "several buffers for an image": depthwise(3, 1, 0, 150, lanes=16),
    "most of the data is not read": depthwise(1, 3, 0, 7, lanes=16),
    "depthwise, narrower than the stride": depthwise(3, 4, 1, 2, lanes=16),
    "most results are biases": depthwise(1, 1, 4, 2, lanes=16),
    "wide head": Dense((4, 1000), 512),
    "one row": Dense((1, 2048), 1000),
    "many rows": Dense((128, 64), 10),
    "few columns": Dense((7, 9), 1024),
    "few outputs": Dense((5, 1024), 3),
    "few rows, and columns to the last one": Dense((31, 1031), 29),
    "few rows of many columns": Dense((3, 4133), 50, bias=False),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    LAYERS[name].check()


@pytest.mark.parametrize("group_in, group_out", [(4, 4), (8, 8), (3, 3), (2, 4), (1, 2), (24, 6)])
def test_small_groups(group_in, group_out):
    pairs = {"kernel": (3, 3), "stride": (2, 1), "pad": (1, 1)}
    for lanes in (16, 8) if group_in != group_out else (16, 0):
        shape = 2, 2 * group_in, 13, 14
        Depthwise(shape, 2 * group_out, lanes=lanes, num_group=2, **pairs).check()


def test_instruction_sets_of_depthwise_convolutions(instruction_set):
    pairs = {"kernel": (3, 5), "stride": (1, 2), "pad": (1, 2)}
    for groups, channels in [(19, 19), (9, 36)]:
        for lanes in (16, 8, 0):
            shape = 2, channels, 9, 33
            Depthwise(shape, channels, lanes=lanes, num_group=groups, **pairs).check()


def test_products_of_few_rows_have_the_same_bits_with_all_instruction_sets():
    case, found = Dense((11, 2100), 17), []
    for _ in filter(kernels.select, kernels.INSTRUCTION_SETS):
        for element in ("float16", "wide bfloat16"):
            found.append(case.compute(case.arrays(element), None, element)["result"].tobytes())
    kernels.select(None)
    assert len(found) > 2 and len(set(found)) == 2


def test_values_in_the_padding_do_not_reach_results():
    """Only finite ones: oneDNN multiplies them by weights that are 0."""

    class Padded(Convolution):
        padding = 300

    Padded((2, 19, 7, 7), 21, bias=False, stride=(2, 2)).check()
    Padded((5, 19, 1, 1), 21, **HALVED).check()
