"""Cases of the C++ products: attributes, arrays, and what MXNet computes in float32."""

import numpy as np

from gluon_amp.base import hardware
from tests.kernels.images import (
    ELEMENTS,
    PRECISION,
    assert_close,
    compute,
    normal,
    operator,
    reference,
    rounded,
    to_blocked,
    to_plain,
)

from mxnet import autograd, nd

# Lanes of random cases, 0 for all channels. The package stores all channels side by side with AMX
# alone (`blocked.lanes_for`): oneDNN 2.4's AVX2 kernel (jit:avx2) is wrong for 12 or 20 channels
# stored so, with padding and a kernel of width 5.
HAS_AVX512 = hardware.onednn_flags() >= hardware.AVX512_FLAGS
LANES = [16, 16, 8, 0] if HAS_AVX512 else [16, 16, 8, 8]


class Product:
    """A case of a product; `plain`: its data is an array of the user, and no blocked images."""

    plain, elements = True, ELEMENTS

    def result_precision(self, element):
        """Return the relative precision of each result, and that of sums in another order."""
        low = dict.fromkeys(("result", "data"), PRECISION[element])
        if element == "float16":  # the emulation rounds the gradients of parameters, too
            low = dict.fromkeys(("result", "data", "weight", "bias"), PRECISION[element])
        return low, 2e-5

    def arrays(self, element, seed=0):
        shape = self.weight_shape()
        weight = normal(shape, element, seed + 1) / np.sqrt(np.prod(shape[1:]))
        arrays = {"data": normal(self.shape, element, seed), "weight": rounded(weight, element)}
        if self.bias:
            arrays["bias"] = normal((self.filters,), element, seed + 2)
        return arrays

    def names(self):
        return ["data", "weight"] + ["bias"] * self.bias

    def check(self, seed=0):
        """Compare with MXNet in every element type, in training and in inference."""
        for element in self.elements:
            arrays = self.arrays(element, seed)
            expected, head = self.expected(arrays, lambda s, e=element: normal(s, e, seed + 3))
            actual = self.compute(arrays, head, element)
            assert_close(actual, expected, *self.result_precision(element))
            inferred = self.compute(arrays, None, element)
            assert_close(inferred, {"result": expected["result"]}, *self.result_precision(element))


class Dense(Product):
    elements = (*ELEMENTS, "wide bfloat16")

    def __init__(self, shape, hidden, bias=True, flatten=True):
        self.shape, self.filters, self.bias, self.flatten = shape, hidden, bias, flatten

    def weight_shape(self):
        return self.filters, int(np.prod(self.shape[1:])) if self.flatten else self.shape[-1]

    def options(self):
        return {"num_hidden": self.filters, "no_bias": not self.bias, "flatten": self.flatten}

    def expected(self, arrays, head_of):
        return reference(nd.FullyConnected, arrays, head_of, **self.options())

    def compute(self, arrays, head, element, requests="write"):
        options = {"variable_weight": True, **self.options()}
        symbol = operator("_gluon_amp_dense", self.names(), element, **options)
        return compute(symbol, arrays, head, requests)


class Convolution(Product):
    """`padding` stands in the lanes beyond the last channel of what the operator `op` reads."""

    op, padding = "_gluon_amp_blocked_convolution", 0.0

    def __init__(self, shape, filters, lanes=16, plain=False, bias=True, **sizes):
        self.shape, self.filters, self.lanes = shape, filters, lanes
        self.plain, self.bias = plain, bias
        self.sizes = {"kernel": (1, 1), "num_group": 1, **sizes}

    def options(self):
        return {"num_filter": self.filters, "no_bias": not self.bias, **self.sizes}

    def symbol(self, element):
        layout = {"channels": self.shape[1], "lanes": self.lanes, "plain_data": self.plain}
        options = {"variable_weight": True, **self.options(), **layout}
        return operator(self.op, self.names(), element, **options)

    def weight_shape(self):
        return self.filters, self.shape[1] // self.sizes["num_group"], *self.sizes["kernel"]

    def expected(self, arrays, head_of):
        """Return what MXNet computes in float32, and the gradient of the result."""
        return reference(nd.Convolution, arrays, head_of, **self.options())

    def compute(self, arrays, head, element, requests="write"):
        """Return the result and the gradients in the plain layout."""
        inputs = dict(arrays)
        if not self.plain:
            inputs["data"] = to_blocked(arrays["data"], self.lanes, self.padding)
        head = None if head is None else to_blocked(head, self.lanes, self.padding)
        results = compute(self.symbol(element), inputs, head, requests)
        results["result"] = to_plain(results["result"], self.filters)
        written = requests if isinstance(requests, str) else requests["data"]
        if head is not None and not self.plain and written == "write":
            results["data"] = to_plain(results["data"], self.shape[1])
        return results


class Depthwise(Convolution):
    op, padding = "_gluon_amp_depthwise", np.nan


class Deconvolution(Convolution):
    op = "_gluon_amp_blocked_deconvolution"

    def __init__(self, *args, **sizes):
        dims = range(len(sizes.get("kernel", (1, 1))))
        defaults = {"stride": 1, "dilate": 1, "pad": 0, "adj": 0}
        defaults = {name: tuple(value for _ in dims) for name, value in defaults.items()}
        super().__init__(*args, **{**defaults, **sizes})

    def weight_shape(self):
        return self.shape[1], self.filters // self.sizes["num_group"], *self.sizes["kernel"]

    def expected(self, arrays, head_of):
        """By the convolution whose gradient of the data is the deconvolution's result."""
        pairs = zip(*(self.sizes[n] for n in ("kernel", "stride", "dilate", "pad", "adj")))
        sizes = (
            stride * (size - 1) + dilate * (kernel - 1) + 1 - 2 * pad + adj
            for size, (kernel, stride, dilate, pad, adj) in zip(self.shape[2:], pairs)
        )
        head = head_of((self.shape[0], self.filters, *sizes))
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
            expected["result"] += arrays["bias"].reshape(-1, *[1] * (head.ndim - 2))
            expected["bias"] = head.sum(axis=(0, *range(2, head.ndim)))
        return expected, head

    def result_precision(self, element):
        if element != "bfloat16":
            return super().result_precision(element)
        # In bfloat16 a bias is added to what is rounded already.
        low = {"result": 2 * PRECISION[element], "data": PRECISION[element]}
        return low, PRECISION[element] if self.bias else 2e-5


def random_case(make, seed):
    """Draw odd sizes; images have 1 to 70 positions, or as many as the kernel needs."""
    random = np.random.RandomState(seed)

    def pair(*values):
        return tuple(int(value) for value in random.choice(values, size=2))

    up, few = make is Deconvolution, make is Depthwise
    kernel = pair(1, 2, 3, 3, 4, 5) if up else pair(1, 1, 2, 3, 3, 5, 7, 11)
    stride = pair(1, 1, 2, 2, 3)
    dilate = tuple(int(random.choice([1, 2, 3])) if k < 7 else 1 for k in kernel)
    if up:
        pad = tuple(random.randint(0, d * (k - 1) // 2 + 1) for d, k in zip(dilate, kernel))
        height, width = random.randint(1, 9, size=2)
    else:
        pad = tuple(random.randint(0, k // 2 + 2) for k in kernel)
        least = [max(1, d * (k - 1) + 1 - 2 * p) for d, k, p in zip(dilate, kernel, pad)]
        width = random.randint(least[1], max(70 // least[0], least[1]) + 1)
        height = random.randint(least[0], max(70 // width, least[0]) + 1)
    if few:
        each = [(1, 1), (1, 1), (1, 1), (1, 2), (4, 4), (3, 3), (2, 4), (8, 1)]
        inside, outside = each[random.randint(len(each))]
        groups = random.randint(1, 68 // max(inside, outside) + 1)
    else:
        groups = int(random.choice([1, 1, 1, 2, 3, 5]))
        inside, outside = (random.randint(1, 67 // groups + 1) for _ in range(2))
    plain, lanes = random.rand() < 0.25, int(random.choice(LANES))
    if few and lanes == 0 and inside != outside:
        lanes = 16
    adj = {"adj": tuple(random.randint(0, s) for s in stride)} if up else {}
    return make(
        (random.randint(1, 6), groups * inside, int(height), int(width)),
        groups * outside,
        lanes,
        plain,
        bias=random.rand() < 0.5,
        num_group=groups,
        kernel=kernel,
        stride=stride,
        pad=pad,
        dilate=dilate,
        **adj,
    )


def sixteenths(shape, seed=0):
    """Return values whose products have float32 sums that are exact, so that no order matters."""
    return np.random.RandomState(seed).randint(-63, 64, shape).astype(np.float32) / 16


def exact_results(case):
    """Return what MXNet computes of a case for such values, and what the operator does."""
    arrays = {name: sixteenths(array.shape) for name, array in case.arrays("float16").items()}
    expected, head = case.expected(arrays, lambda shape: sixteenths(shape, seed=1))
    return expected, case.compute(arrays, head, "float16")
