"""Convolutions with few channels in a group, compared with MXNet's Convolution in float32."""

import hashlib

import numpy as np
import pytest

from gluon_amp.base import bfloat16
from gluon_amp.graph import from_json
from tests.lowering import printed
from tests.marks import needs_library

import mxnet as mx
from mxnet import autograd, nd

pytestmark = needs_library

ELEMENTS = ["bfloat16", "float16"] if bfloat16.is_native() else ["float16"]
# The relative error of one rounding
PRECISION = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


def rounded(values, element):
    """Return values of an element type, in float32."""
    array = nd.array(values, dtype="float32")
    if element == "float16":
        return array.astype("float16").astype("float32").asnumpy()
    bfloat = nd.amp_cast(array, dtype=np.dtype([("bfloat16", np.uint16)]))
    return nd.amp_cast(bfloat, dtype="float32").asnumpy()


def blocked(values, lanes, padding=np.nan):
    """Return an array (images, channels, height, width) in the blocked layout."""
    images, channels, height, width = values.shape
    groups = -(-channels // lanes)
    padded = np.full((images, groups * lanes, height, width), padding, np.float32)
    padded[:, :channels] = values
    return padded.reshape(images, groups, lanes, height, width).transpose(0, 1, 3, 4, 2)


def plain(values, channels):
    """Return the channels of a blocked array, and its padding."""
    images, _, height, width, _ = values.shape
    values = values.transpose(0, 1, 4, 2, 3).reshape(images, -1, height, width)
    return values[:, :channels], values[:, channels:]


def depthwise(element, bias=True, name="_gluon_amp_depthwise", **attributes):
    """Return a symbol of float32 arrays that computes a convolution in an element type."""
    nodes = [
        {"op": "null", "name": "data", "inputs": []},
        {"op": "null", "name": "weight", "inputs": []},
    ]
    inputs = [0, 1]
    if bias:
        nodes.append({"op": "null", "name": "bias", "inputs": []})
        inputs.append(2)
    if element == "bfloat16":
        inputs[0] = len(nodes)
        cast = {"op": "amp_cast", "name": "cast", "inputs": [[0, 0, 0]]}
        nodes.append({**cast, "attrs": {"dtype": "bfloat16"}})
    attributes = {key: str(value) for key, value in attributes.items()}
    nodes.append(
        {
            "op": name,
            "name": "result",
            "inputs": [[i, 0, 0] for i in inputs],
            "attrs": {"no_bias": str(not bias), **attributes},
        }
    )
    if element == "bfloat16":
        cast = {"op": "amp_cast", "name": "wide", "inputs": [[len(nodes) - 1, 0, 0]]}
        nodes.append({**cast, "attrs": {"dtype": "float32"}})
    return from_json({"nodes": nodes, "heads": [[len(nodes) - 1, 0, 0]]})


def random_case(random):
    """Return sizes of a random convolution: attributes, the data's shape, and lanes."""
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
    channels = groups * group_in
    lanes = random.choice([16, 16, 8, channels, 5, 24])
    pairs = {"kernel": kernel, "stride": stride, "pad": pad, "dilate": dilate}
    attributes = {name: f"({a}, {b})" for name, (a, b) in pairs.items()}
    attributes.update(num_filter=groups * group_out, num_group=groups, channels=channels)
    return attributes, (random.randint(1, 6), channels, height, width), int(lanes)


def compute(element, attributes, arrays, lanes, head, grad_req="write", is_plain=False):
    """Return the result and the gradients of blocked arrays, without their padding, which is 0.

    The data and its gradient may be plain.
    """
    channels = {"result": head.shape[1]}
    given = dict(arrays)
    if is_plain:
        all_channels = lanes == arrays["data"].shape[1]
        attributes = {**attributes, "plain_data": True, "lanes": 0 if all_channels else lanes}
    else:
        channels["data"] = arrays["data"].shape[1]
        given["data"] = blocked(arrays["data"], lanes)
    symbol = depthwise(element, bias="bias" in arrays, **attributes)
    given = {name: nd.array(value, dtype=value.dtype) for name, value in given.items()}
    grads = {name: nd.ones(value.shape, dtype=value.dtype) for name, value in given.items()}
    blocked_data = {} if is_plain else {"data": "write"}
    requests = {**dict.fromkeys(given, grad_req), **blocked_data}
    executor = symbol.bind(mx.cpu(), args=given, args_grad=grads, grad_req=requests)
    (out,) = executor.forward(is_train=True)
    executor.backward(nd.array(blocked(head, lanes)))
    results = {"result": out.asnumpy(), **{name: g.asnumpy() for name, g in grads.items()}}
    for name in channels:
        results[name], padding = plain(results[name], channels[name])
        np.testing.assert_array_equal(padding, 0)
    return results


def expected(attributes, arrays, head_of):
    """Return the same of MXNet's Convolution, and the gradient of its result."""
    arrays = {name: nd.array(value) for name, value in arrays.items()}
    for array in arrays.values():
        array.attach_grad()
    known = {name: value for name, value in attributes.items() if name != "channels"}
    with autograd.record():
        out = nd.Convolution(*arrays.values(), no_bias="bias" not in arrays, **known)
    head = head_of(out.shape)
    out.backward(nd.array(head))
    results = {"result": out.asnumpy()}
    results.update((name, array.grad.asnumpy()) for name, array in arrays.items())
    return results, head


def check(element, attributes, shape, lanes, seed=0, bias=True, is_plain=False):
    random = np.random.RandomState(seed)
    kernel = tuple(map(int, attributes["kernel"].strip("()").split(",")))
    filters, groups = attributes["num_filter"], attributes["num_group"]
    arrays = {
        "data": rounded(random.normal(size=shape), element),
        "weight": rounded(random.normal(size=(filters, shape[1] // groups, *kernel)), element),
    }
    if bias:
        arrays["bias"] = rounded(random.normal(size=filters), element)
    wanted, head = expected(
        attributes, arrays, lambda shape: rounded(random.normal(size=shape), element)
    )
    actual = compute(element, attributes, arrays, lanes, head, is_plain=is_plain)
    for name, value in wanted.items():
        # Sums of up to 25,000 products in float32, in another order. Gradients of parameters are
        # not rounded to bfloat16.
        is_rounded = element == "float16" or name in ("result", "data")
        rtol = PRECISION[element] if is_rounded else 1e-4
        np.testing.assert_allclose(actual[name], value, rtol=rtol, atol=2e-4, err_msg=name)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("seed", range(24))
def test_random_shapes(element, seed):
    random = np.random.RandomState(seed)
    check(element, *random_case(random), seed=seed, bias=seed % 3 > 0)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("seed", range(24, 32))
def test_plain_images(element, seed):
    random = np.random.RandomState(seed)
    check(element, *random_case(random), seed=seed, bias=seed % 3 > 0, is_plain=True)


def test_the_gradient_of_plain_images_is_added():
    attributes = {"kernel": "(1, 1)", "num_filter": 6, "num_group": 3}
    arrays = {"data": np.full((1, 3, 1, 2), 3), "weight": np.ones((6, 1, 1, 1))}
    arrays = {name: values.astype("float32") for name, values in arrays.items()}
    head = np.full((1, 6, 1, 2), 2.0, np.float32)
    added = compute("float16", attributes, arrays, 16, head, grad_req="add", is_plain=True)
    np.testing.assert_array_equal(added["data"], np.full((1, 3, 1, 2), 1 + 2 * 2))
    np.testing.assert_array_equal(added["weight"].ravel(), np.full(6, 1 + 2 * 3 * 2))


@pytest.mark.parametrize(
    "kernel, stride, pad, size, lanes",
    [
        (3, 1, 1, 56, 16),
        (3, 2, 1, 57, 32),
        (5, 1, 2, 14, 16),
        (5, 2, 2, 14, 16),
        (5, 1, 2, 7, 20),
        (3, 1, 0, 150, 16),  # several buffers for an image
        (1, 3, 0, 7, 16),  # most of the data is not read
        (3, 4, 1, 2, 16),  # the image is narrower than the stride
        (1, 1, 4, 2, 16),  # most results are biases
    ],
)
@pytest.mark.parametrize("element", ELEMENTS)
def test_layers(element, kernel, stride, pad, size, lanes):
    attributes = {
        "kernel": f"({kernel}, {kernel})",
        "stride": f"({stride}, {stride})",
        "pad": f"({pad}, {pad})",
        "num_filter": 20,
        "num_group": 20,
    }
    check(element, attributes, (3, 20, size, size), lanes)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("lanes", [16, 48])
@pytest.mark.parametrize("group_in, group_out", [(4, 4), (8, 8), (3, 3), (2, 4), (1, 2), (24, 6)])
def test_groups(element, lanes, group_in, group_out):
    attributes = {"kernel": "(3, 3)", "stride": "(2, 1)", "pad": "(1, 1)"}
    attributes.update(num_filter=2 * group_out, num_group=2, channels=2 * group_in)
    check(element, attributes, (2, 2 * group_in, 13, 14), lanes)


def test_gradients_of_float32_weights_are_values_of_float16_in_the_emulation():
    attributes = {"kernel": "(3, 3)", "num_filter": 5, "num_group": 5}
    random = np.random.RandomState(3)
    shapes = {"data": (2, 5, 9, 9), "weight": (5, 1, 3, 3), "bias": (5,)}
    arrays = {name: random.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    head = random.normal(size=(2, 5, 7, 7)).astype("float32")
    results = compute("float16", attributes, arrays, 16, head)
    for name in arrays:
        values = results[name]
        assert len(np.unique(values)) > 2
        np.testing.assert_array_equal(values, values.astype("float16").astype("float32"), name)


def test_instruction_sets(instruction_set):
    attributes = {"kernel": "(3, 5)", "stride": "(1, 2)", "pad": "(1, 2)"}
    for groups, channels in [(19, 19), (9, 36)]:
        attributes.update(num_filter=channels, num_group=groups)
        for lanes in (16, 8, channels):
            check("float16", attributes, (2, channels, 9, 33), lanes)


LITERAL = {"kernel": "(1, 3)", "pad": "(0, 1)", "num_filter": 2, "num_group": 2}


@pytest.mark.parametrize("element", ELEMENTS)
def test_literal_numbers(element):
    arrays = {
        "data": np.array([[[[1, 2, 4]], [[8, 16, 32]]]], np.float32),
        "weight": np.array([[[[1, 10, 100]]], [[[0, 1, -1]]]], np.float32),
        "bias": np.array([0, 0.5], np.float32),
    }
    head = np.array([[[[1, 0, 2]], [[0, 1, 0]]]], np.float32)
    results = compute(element, LITERAL, arrays, 16, head)
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
    results = compute(element, LITERAL, arrays, 16, np.ones((1, 2, 1, 3), np.float32), "add")
    np.testing.assert_array_equal(results["result"][0, :, 0], [[3, 7, 6], [8.0625, 16.125, 32.25]])
    np.testing.assert_array_equal(results["weight"][:, 0, 0], [[4, 8, 7], [25, 57, 49]])


def test_float16_weights_get_float16_gradients():
    arrays = {
        "data": np.full((1, 2, 1, 3), 1024, np.float32),
        "weight": np.full((2, 1, 1, 3), 0.5, np.float16),
        "bias": np.array([1, 2], np.float16),
    }
    head = np.ones((1, 2, 1, 3), np.float32)
    head[0, 1] = 40
    results = compute("float16", LITERAL, arrays, 2, head, "add")
    np.testing.assert_array_equal(results["result"][0, :, 0, :2], [[1025, 1537], [1026, 1538]])
    assert results["weight"].dtype == np.float16
    np.testing.assert_array_equal(results["weight"][0, 0, 0], [2048, 3072, 2048])  # ties to even
    np.testing.assert_array_equal(results["weight"][1, 0, 0], [np.inf, np.inf, np.inf])
    np.testing.assert_array_equal(results["bias"], [4, 121])


def test_results_are_rounded_to_float16():
    arrays = {
        "data": np.full((1, 2, 1, 3), 65504, np.float32),
        "weight": np.array([[[[0, 1, 0]]], [[[0, 2, 0]]]], np.float32),
    }
    results = compute("float16", LITERAL, arrays, 16, np.full((1, 2, 1, 3), 65504, np.float32))
    np.testing.assert_array_equal(results["result"][0, :, 0, 0], [65504, np.inf])
    np.testing.assert_array_equal(results["data"][0, :, 0, 0], [65504, np.inf])


def test_gradients_that_are_not_requested():
    symbol = depthwise("float16", **LITERAL)
    given = {"data": nd.ones((1, 1, 1, 3, 16)), "weight": nd.ones((2, 1, 1, 3)), "bias": nd.ones(2)}
    for name, value in [("weight", 2), ("bias", 3), ("data", 2)]:
        grads = {name: nd.zeros(given[name].shape)}
        requests = {other: "write" if other == name else "null" for other in given}
        executor = symbol.bind(mx.cpu(), args=given, args_grad=grads, grad_req=requests)
        executor.forward(is_train=True)
        executor.backward(nd.ones((1, 1, 1, 3, 16)))
        assert grads[name].asnumpy().ravel()[0] == value


def test_no_images():
    symbol = depthwise("float16", **LITERAL)
    with mx.util.np_shape(True):
        given = {
            "data": nd.ones((0, 1, 1, 3, 16)),
            "weight": nd.ones((2, 1, 1, 3)),
            "bias": nd.ones(2),
        }
        grads = {name: nd.ones(value.shape) for name, value in given.items()}
        executor = symbol.bind(mx.cpu(), args=given, args_grad=grads)
        (out,) = executor.forward(is_train=True)
        assert out.shape == (0, 1, 1, 3, 16)
        executor.backward(out)
        assert not grads["weight"].asnumpy().any()
        assert not grads["bias"].asnumpy().any()


THREADS = """
import hashlib
import numpy as np
from tests.lowering.test_depthwise import bits
print(bits())
"""


def bits():
    """Return a digest of a layer's result and gradients."""
    random = np.random.RandomState(0)
    attributes = {"kernel": "(3, 3)", "stride": "(2, 2)", "pad": "(1, 1)"}
    attributes.update(num_filter=40, num_group=40)
    arrays = {
        "data": random.normal(size=(5, 40, 57, 57)).astype(np.float32),
        "weight": random.normal(size=(40, 1, 3, 3)).astype(np.float32),
        "bias": random.normal(size=40).astype(np.float32),
    }
    head = random.normal(size=(5, 40, 29, 29)).astype(np.float32)
    results = compute("float16", attributes, arrays, 16, head)
    return hashlib.sha1(b"".join(value.tobytes() for value in results.values())).hexdigest()


def test_threads_do_not_change_the_bits():
    assert printed(THREADS, timeout=100, OMP_NUM_THREADS="3").split()[-1] == bits()


@pytest.mark.parametrize(
    "changed",
    [
        {"num_filter": 17},
        {"num_group": 3},
        {"num_group": 0},
        {"num_group": -1},
        {"channels": 3},
        {"channels": 18},
        {"channels": 0},
        {"num_filter": 0},
        {"num_filter": -2},
        {"kernel": "(1,)"},
        {"kernel": "(0, 3)"},
        {"kernel": "(1, 6)"},
        {"kernel": "(1, 99999999999999)"},
        {"stride": "(0, 1)"},
        {"pad": "(-1, 1)"},
        {"dilate": "(1, 0)"},
        {"kernel": "(3, 1)", "pad": "(999999, 9)", "dilate": "(999999, 1)"},
        {"no_bias": "True"},
    ],
)
def test_wrong_attributes(changed):
    symbol = depthwise("float16", **{**LITERAL, **changed})
    with pytest.raises(mx.base.MXNetError, match="_gluon_amp_depthwise"):
        symbol.infer_shape(data=(1, 1, 1, 3, 16))


@pytest.mark.parametrize("shape", [(1, 1, 0, 3, 16), (1, 1, 1, 0, 16)])
def test_empty_images(shape):
    symbol = depthwise("float16", **{**LITERAL, "pad": "(9, 9)"})
    with mx.util.np_shape(True), pytest.raises(mx.base.MXNetError, match="images are empty"):
        symbol.infer_shape(data=shape)


@pytest.mark.parametrize(
    "shapes",
    [
        {"data": (1, 2, 1, 3)},  # plain
        {"data": (1, 2, 1, 3, 16)},
        {"data": (1, 1, 1, 3, 16), "weight": (2, 2, 1, 3)},
        {"data": (1, 1, 1, 3, 16), "bias": (3,)},
    ],
)
def test_wrong_shapes(shapes):
    with pytest.raises(mx.base.MXNetError, match="_gluon_amp_depthwise"):
        depthwise("float16", **LITERAL).infer_shape(**shapes)


def test_wrong_dtypes():
    symbol = depthwise("float16", **LITERAL)
    for types in ({"data": "float64"}, {"data": "float32", "weight": "float64"}):
        with pytest.raises(mx.base.MXNetError, match="_gluon_amp_depthwise"):
            symbol.infer_type(**types)
