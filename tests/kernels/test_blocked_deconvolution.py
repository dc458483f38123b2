"""Deconvolutions in the blocked layout, compared with the gradients of MXNet's Convolution."""

import numpy as np
import pytest

from tests.kernels.images import ELEMENTS, LANES, PRECISION, Convolution, assert_close, normal
from tests.marks import needs_library

from mxnet import autograd, nd

pytestmark = [needs_library, pytest.mark.cpu_kind]


class Deconvolution(Convolution):
    op = "_gluon_amp_blocked_deconvolution"

    def __init__(self, *args, **sizes):
        ones, zeros = dict.fromkeys(("stride", "dilate"), (1, 1)), {"pad": (0, 0), "adj": (0, 0)}
        super().__init__(*args, **{**ones, **zeros, **sizes})

    def weight_shape(self):
        return self.shape[1], self.filters // self.sizes["num_group"], *self.sizes["kernel"]

    def result_shape(self):
        pairs = zip(*(self.sizes[n] for n in ("kernel", "stride", "dilate", "pad", "adj")))
        sizes = (
            stride * (size - 1) + dilate * (kernel - 1) + 1 - 2 * pad + adj
            for size, (kernel, stride, dilate, pad, adj) in zip(self.shape[2:], pairs)
        )
        return self.shape[0], self.filters, *sizes

    def expected(self, arrays, head_of):
        """By the convolution whose gradient of the data is the deconvolution's result."""
        head = head_of(self.result_shape())
        data, weight = nd.array(arrays["data"]), nd.array(arrays["weight"])
        attrs = {name: value for name, value in self.sizes.items() if name != "adj"}
        attrs.update(num_filter=self.shape[1], no_bias=True)
        images = nd.zeros(head.shape)
        weight.attach_grad()
        images.attach_grad()
        for read in (images, nd.array(head)):
            with autograd.record():
                convolved = nd.Convolution(read, weight, **attrs)
            convolved.backward(data)
        # the gradient of the second convolution's weight, which overwrites that of the first
        expected = {"data": convolved.asnumpy(), "weight": weight.grad.asnumpy()}
        expected["result"] = images.grad.asnumpy()
        if self.bias:
            expected["result"] += arrays["bias"].reshape(1, -1, 1, 1)
            expected["bias"] = head.sum(axis=(0, 2, 3))
        return expected, head

    def check(self, seed=0):
        for element in ELEMENTS:
            arrays = self.arrays(element, seed)
            expected, head = self.expected(arrays, lambda s, e=element: normal(s, e, seed + 3))
            # In bfloat16 a bias is added to what is rounded already.
            low, sums = {"result": 2 * PRECISION[element], "data": PRECISION[element]}, 2e-5
            if element == "float16":
                low = dict.fromkeys(expected, PRECISION[element])
            elif self.bias:
                sums = PRECISION[element]
            assert_close(self.compute(arrays, head, element), expected, low, sums)


def random_case(seed):
    random = np.random.RandomState(seed)

    def pair(*values):
        return tuple(int(value) for value in random.choice(values, size=2))

    kernel, stride, dilate = pair(1, 2, 3, 3, 4, 5), pair(1, 2, 2, 3), pair(1, 1, 2)
    pad = tuple(random.randint(0, d * (k - 1) // 2 + 1) for d, k in zip(dilate, kernel))
    groups = int(random.choice([1, 1, 1, 2, 3]))
    channels, filters = (groups * random.randint(1, 40 // groups + 1) for _ in range(2))
    return Deconvolution(
        (random.randint(1, 4), channels, random.randint(1, 9), random.randint(1, 9)),
        filters,
        lanes=int(random.choice(LANES)),
        plain=random.rand() < 0.25,
        bias=random.rand() < 0.5,
        num_group=groups,
        kernel=kernel,
        stride=stride,
        dilate=dilate,
        pad=pad,
        adj=tuple(random.randint(0, s) for s in stride),
    )


@pytest.mark.parametrize("seed", range(5))
def test_random_shapes(seed):
    random_case(seed).check(seed)


@pytest.mark.slow
def test_many_random_shapes():
    for seed in range(5, 60):
        random_case(seed).check(seed)


FOUR = {"kernel": (4, 4), "stride": (2, 2), "pad": (1, 1)}
LAYERS = {
    "DCGAN's first": Deconvolution((2, 100, 1, 1), 64, plain=True, bias=False, kernel=(4, 4)),
    "DCGAN's second": Deconvolution((2, 64, 4, 4), 32, bias=False, **FOUR),
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


@pytest.mark.parametrize("element", ELEMENTS)
def test_literal_numbers(element):
    case = Deconvolution((1, 1, 1, 2), 1, kernel=(1, 3), stride=(1, 2), adj=(0, 1))
    arrays = {
        "data": np.float32([[[[1, 10]]]]),
        "weight": np.float32([[[[1, 2, 4]]]]),
        "bias": np.float32([0.5]),
    }
    results = case.compute(arrays, np.float32([[[[1, 0, 2, 0, 0, 4]]]]), element)
    np.testing.assert_array_equal(results["result"].ravel(), [1.5, 2.5, 14.5, 20.5, 40.5, 0.5])
    np.testing.assert_array_equal(results["data"].ravel(), [9, 2])
    np.testing.assert_array_equal(results["weight"].ravel(), [21, 0, 2])
    assert results["bias"] == [7]


@pytest.mark.parametrize("name", ["DCGAN's second", "U-Net", "DCGAN's first"])
def test_gradients_are_added_or_not_requested(name):
    case = LAYERS[name]
    for element in ELEMENTS:
        arrays, head = case.arrays(element), normal(case.result_shape(), element, 9)
        once = case.compute(arrays, head, element)
        parameters = [name for name in arrays if name != "data"]
        requests = {**dict.fromkeys(parameters, "add"), "data": "write"}
        added = case.compute(arrays, head, element, requests)
        none = case.compute(arrays, head, element, dict.fromkeys(arrays, "null"))
        for name in parameters:
            np.testing.assert_array_equal(added[name], once[name] + np.float32(1))
            np.testing.assert_array_equal(none[name], 1)
