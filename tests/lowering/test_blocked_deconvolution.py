"""Deconvolutions in the blocked layout, compared with the gradients of MXNet's Convolution."""

import numpy as np
import pytest

from tests.lowering.blocked_images import (
    ELEMENTS,
    PRECISION,
    assert_close,
    compute,
    operator,
    rounded,
    to_blocked,
    to_plain,
)
from tests.marks import needs_library

import mxnet as mx
from mxnet import autograd, nd

pytestmark = [needs_library, pytest.mark.cpu_kind]

OP = "_gluon_amp_blocked_deconvolution"
PAIRS = {"kernel": (1, 1), "stride": (1, 1), "dilate": (1, 1), "pad": (0, 0), "adj": (0, 0)}


class Case:
    """A deconvolution: attributes of MXNet's operator, the data's shape, and the layouts."""

    def __init__(self, shape, filters, lanes=16, plain=False, bias=True, groups=1, **pairs):
        self.shape, self.filters, self.lanes, self.groups = shape, filters, lanes, groups
        self.plain, self.bias, self.pairs = plain, bias, {**PAIRS, **pairs}

    @classmethod
    def random(cls, seed):
        random = np.random.RandomState(seed)

        def pair(*values):
            return tuple(int(value) for value in random.choice(values, size=2))

        kernel, stride, dilate = pair(1, 2, 3, 3, 4, 5), pair(1, 2, 2, 3), pair(1, 1, 2)
        pad = tuple(random.randint(0, d * (k - 1) // 2 + 1) for d, k in zip(dilate, kernel))
        adj = tuple(random.randint(0, s) for s in stride)
        groups = int(random.choice([1, 1, 1, 2, 3]))
        channels, filters = (groups * random.randint(1, 40 // groups + 1) for _ in range(2))
        return cls(
            (random.randint(1, 4), channels, random.randint(1, 9), random.randint(1, 9)),
            filters,
            lanes=int(random.choice([16, 16, 8, 0])),
            plain=random.rand() < 0.25,
            bias=random.rand() < 0.5,
            groups=groups,
            **dict(zip(PAIRS, (kernel, stride, dilate, pad, adj))),
        )

    def attributes(self):
        sizes = {"num_filter": self.filters, "num_group": self.groups, "no_bias": not self.bias}
        known = {"channels": self.shape[1], "lanes": self.lanes, "plain_data": self.plain}
        return {**self.pairs, **sizes, **known, "variable_weight": True}

    def result_shape(self):
        p = self.pairs
        sizes = (
            p["stride"][i] * (self.shape[2 + i] - 1)
            + p["dilate"][i] * (p["kernel"][i] - 1)
            + 1
            - 2 * p["pad"][i]
            + p["adj"][i]
            for i in range(2)
        )
        return (self.shape[0], self.filters, *sizes)

    def arrays(self, element, seed=0):
        random = np.random.RandomState(seed)
        weight = (self.shape[1], self.filters // self.groups, *self.pairs["kernel"])
        shapes = {"data": self.shape, "weight": weight}
        if self.bias:
            shapes["bias"] = (self.filters,)
        arrays = {name: random.normal(size=shape) for name, shape in shapes.items()}
        arrays["head"] = random.normal(size=self.result_shape())
        return {name: rounded(values, element) for name, values in arrays.items()}

    def expected(self, arrays):
        """By the convolution whose gradient of the data is the deconvolution's result."""
        data, weight, head = (nd.array(arrays[name]) for name in ("data", "weight", "head"))
        attrs = {name: self.pairs[name] for name in ("kernel", "stride", "dilate", "pad")}
        attrs.update(num_filter=self.shape[1], num_group=self.groups, no_bias=True)
        images = nd.zeros(self.result_shape())
        weight.attach_grad()
        images.attach_grad()
        with autograd.record():
            convolved = nd.Convolution(images, weight, **attrs)
        convolved.backward(data)
        result = images.grad.asnumpy()
        with autograd.record():
            convolved = nd.Convolution(head, weight, **attrs)
        convolved.backward(data)
        expected = {"data": convolved.asnumpy(), "weight": weight.grad.asnumpy()}
        if self.bias:
            result = result + arrays["bias"].reshape(1, -1, 1, 1)
            expected["bias"] = arrays["head"].sum(axis=(0, 2, 3))
        return {"result": result, **expected}

    def compute(self, arrays, element, requests="write"):
        """Return the result and the gradients in the plain layout; their padding is 0."""
        inputs = {name: array for name, array in arrays.items() if name != "head"}
        if not self.plain:
            inputs["data"] = to_blocked(arrays["data"], self.lanes)
        symbol = operator(OP, list(inputs), element, **self.attributes())
        head = to_blocked(arrays["head"], self.lanes)
        results = compute(symbol, inputs, head, requests)
        results["result"], unused = to_plain(results["result"], self.filters)
        np.testing.assert_array_equal(unused, 0)
        if not self.plain:
            results["data"], unused = to_plain(results["data"], self.shape[1])
            if requests == "write":
                np.testing.assert_array_equal(unused, 0)
        return results


def precision(element):
    # In bfloat16 a bias is added to what is rounded already.
    low = {"result": 2 * PRECISION[element], "data": PRECISION[element]}
    if element == "float16":  # the emulation rounds once, and the gradients of parameters, too
        low = dict.fromkeys(("result", "data", "weight", "bias"), PRECISION[element])
    return low


def check(case, element, seed=0):
    arrays = case.arrays(element, seed)
    sums = 2e-5 if element == "float16" or not case.bias else PRECISION[element]
    assert_close(case.compute(arrays, element), case.expected(arrays), precision(element), sums)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("seed", range(30))
def test_random_shapes(element, seed):
    check(Case.random(seed), element, seed)


FOUR = {"kernel": (4, 4), "stride": (2, 2), "pad": (1, 1)}
LAYERS = {
    "DCGAN's first": Case((2, 100, 1, 1), 64, plain=True, bias=False, kernel=(4, 4)),
    "DCGAN's second": Case((2, 64, 4, 4), 32, bias=False, **FOUR),
    "DCGAN's last": Case((2, 32, 8, 8), 3, **FOUR),
    "U-Net": Case((1, 48, 5, 7), 24, kernel=(2, 2), stride=(2, 2)),
    "odd size by adj": Case(
        (2, 20, 5, 5), 24, kernel=(3, 3), stride=(2, 2), pad=(1, 1), adj=(1, 1)
    ),
    "bilinear": Case((2, 21, 4, 4), 21, groups=21, bias=False, **FOUR),
    "nhwc": Case((2, 24, 4, 4), 40, lanes=0, **FOUR),
    "dilated far outside": Case((2, 20, 9, 9), 24, kernel=(3, 3), dilate=(6, 6), pad=(6, 6)),
}


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("name", LAYERS)
def test_layers(element, name):
    check(LAYERS[name], element)


@pytest.mark.parametrize("element", ELEMENTS)
def test_literal_numbers(element):
    case = Case((1, 1, 1, 2), 1, kernel=(1, 3), stride=(1, 2), adj=(0, 1))
    arrays = {
        "data": np.array([[[[1, 10]]]]),
        "weight": np.array([[[[1, 2, 4]]]]),
        "bias": np.array([0.5]),
        "head": np.array([[[[1, 0, 2, 0, 0, 4]]]]),
    }
    results = case.compute({name: v.astype("f4") for name, v in arrays.items()}, element)
    np.testing.assert_array_equal(results["result"].ravel(), [1.5, 2.5, 14.5, 20.5, 40.5, 0.5])
    np.testing.assert_array_equal(results["data"].ravel(), [9, 2])
    np.testing.assert_array_equal(results["weight"].ravel(), [21, 0, 2])
    assert results["bias"] == [7]


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("name", ["DCGAN's second", "U-Net", "DCGAN's first"])
def test_gradients_are_added_or_not_requested(element, name):
    case = LAYERS[name]
    arrays = case.arrays(element)
    once = case.compute(arrays, element)
    parameters = [name for name in arrays if name not in ("data", "head")]
    added = case.compute(arrays, element, {**dict.fromkeys(parameters, "add"), "data": "write"})
    for name in parameters:
        np.testing.assert_array_equal(added[name], once[name] + np.float32(1))
    none = case.compute(arrays, element, dict.fromkeys([*parameters, "data"], "null"))
    for name in parameters:
        np.testing.assert_array_equal(none[name], 1)


@pytest.mark.parametrize(
    "changed",
    [
        {"num_filter": 0},
        {"num_group": 2},
        {"channels": 17},
        {"stride": (0, 1)},
        {"adj": (2, 0)},
        {"adj": (0, -1)},
        {"pad": (9, 9)},
        {"kernel": (1,)},
        {"lanes": 7},
        {"kernel": (2147483647, 2147483647), "dilate": (2147483647, 1)},
    ],
)
def test_wrong_attributes(changed):
    case = Case((1, 3, 4, 4), 5, **FOUR)
    symbol = operator(OP, ["data", "weight", "bias"], "float16", **{**case.attributes(), **changed})
    with pytest.raises(mx.base.MXNetError, match=OP):
        symbol.infer_shape(data=(1, 1, 4, 4, 16))


@pytest.mark.parametrize("shape", [(1, 3, 4, 4), (1, 2, 4, 4, 16), (1, 1, 4, 4, 5)])
def test_wrong_shapes(shape):
    symbol = operator(
        OP, ["data", "weight", "bias"], "float16", **Case((1, 3, 4, 4), 5, **FOUR).attributes()
    )
    with pytest.raises(mx.base.MXNetError, match=OP):
        symbol.infer_shape(data=shape)
