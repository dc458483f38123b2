"""BatchNorm with a program on blocked arrays computes MXNet's numbers.

Statistics, running statistics and the gradients of gamma and beta are float32, and differ from
MXNet's by the order of the additions: by `SUMS` times the size of the summands. Results and
gradients of images are rounded once to the element type. Before the gradient of the data, that of
the normalized image is rounded, too, except in the common programs.
"""

import numpy as np
import pytest

from tests.kernels.images import (
    ELEMENTS,
    PRECISION,
    SHAPES,
    compute,
    normal,
    operator,
    to_blocked,
    to_plain,
)
from tests.kernels.test_pointwise import BINARY, HARD_SWISH, UNARY
from tests.marks import needs_library

import mxnet as mx
from mxnet import autograd, nd

pytestmark = needs_library

SUMS = 2e-6
STATISTICS = ("gamma", "beta", "mean", "var")
OPTIONS = {"eps": 0.001, "momentum": 0.9, "fix_gamma": False}

# Common programs, which have their own loops; one more `round` at the end, which changes nothing,
# leads to the loops of all other programs.
COMMON = [
    ("relu 0", 1),
    ("round 0", 1),
    ("round 0; relu 1", 1),
    ("clip 0 -0.5 1", 1),
    ("round 0; clip 1 -0.5 1", 1),
    ("add 1 0", 2),
    ("round 0; add 2 1", 2),
    ("add 0 1; relu 2", 2),
    ("add 0 1; round 2; relu 3", 2),
    ("round 0; add 1 2; relu 3", 2),
    ("round 0; add 2 1; round 3; relu 4", 2),
]
IN_REGISTERS = {"", "clip 0 0 6", *(program for program, _ in COMMON)}


def norm(program="", extras=0, element="float16", channels=16, **attrs):
    images = [f"y{k}" for k in range(extras)]
    attrs = {"program": program, "num_extras": extras, "channels": channels, **attrs}
    names = ["x", *STATISTICS, *images]
    return operator("_gluon_amp_norm", names, element, low=["x", *images], **attrs)


def statistics_of(channels):
    random = np.random.RandomState(5)
    values = {
        "gamma": random.uniform(0.5, 2, channels),
        "beta": random.normal(size=channels),
        "mean": random.normal(size=channels),
        "var": random.uniform(0.5, 2, channels),
    }
    return {name: array.astype(np.float32) for name, array in values.items()}


def arrays_of(images, lanes=16, statistics=None):
    """Return the inputs of a norm; the padding of the images holds ones."""
    blocked = [to_blocked(image, lanes, padding=1) for image in images]
    extras = {f"y{k}": image for k, image in enumerate(blocked[1:])}
    return {"x": blocked[0], **(statistics or statistics_of(images[0].shape[1])), **extras}


def reference(images, options, function, head, train_mode=True, grad_req="write"):
    """Return the result, gradients and statistics of MXNet's BatchNorm, then `function`."""
    arrays = [nd.array(values) for values in statistics_of(images[0].shape[1]).values()]
    data = [nd.array(x) for x in images]
    for array in data:
        array.attach_grad()
    for array in arrays[:2]:
        array.attach_grad(grad_req)
        array.grad[:] = 1
    with autograd.record(train_mode=train_mode):
        out = function(nd.BatchNorm(data[0], *arrays, **options), *data[1:])
    out.backward(nd.array(head))
    names = ["x", "gamma", "beta", *(f"y{k}" for k in range(len(images) - 1))]
    grads = {name: x.grad.asnumpy() for name, x in zip(names, [data[0], *arrays[:2], *data[1:]])}
    states = {"mean": arrays[2].asnumpy(), "var": arrays[3].asnumpy()}
    return {"result": out.asnumpy(), **grads, **states}


def close(actual, expected, program, images, head, element):
    largest = max(np.abs(expected["x"]).max() * np.abs(images[0]).max(), np.abs(head).max())
    summed = SUMS * images[0].size / images[0].shape[1] * max(1, largest)
    for name, wanted in expected.items():
        rtol, atol = PRECISION[element], np.abs(wanted).max() * SUMS
        if name in STATISTICS:
            rtol, atol = 1e-5, summed if name in ("gamma", "beta") else 1e-6
        elif name == "x" and program not in IN_REGISTERS:
            atol += np.abs(wanted).max() * rtol / 2
        else:
            atol += np.abs(wanted).max() * rtol * 1e-3
        values = actual[name]
        values = to_plain(values, images[0].shape[1]) if values.ndim == 5 else values
        np.testing.assert_allclose(values, wanted, rtol, atol, err_msg=name)


def compare(program, function, shape, others=(), lanes=16, **changed):
    """Compare forward and backward pass with MXNet's, in every element type."""
    for element in ELEMENTS:
        images = [normal(s, element, seed) for seed, s in enumerate([shape, *others], start=1)]
        options, head = {**OPTIONS, **changed}, normal(shape, element, 9)
        symbol = norm(program, len(others), element, shape[1], **options)
        results = compute(symbol, arrays_of(images, lanes), to_blocked(head, lanes))
        expected = reference(images, options, function, head)
        close(results, expected, program, images, head, element)


SHAPE = (3, 19, 11, 9)


@pytest.mark.parametrize("program", ["", "relu 0", "clip 0 0 6", HARD_SWISH])
def test_programs_of_the_norm(program, instruction_set):
    compare(program, UNARY[program], SHAPE)


@pytest.mark.parametrize("program", ["add 0 1", "add 0 1; relu 2", "relu 0; add 2 1", "mul 0 1"])
def test_programs_of_the_norm_and_another_image(program, instruction_set):
    compare(program, BINARY[program], SHAPE, [SHAPE])


@pytest.mark.parametrize("shape", SHAPES)
def test_any_shape(shape):
    *plain, lanes = shape
    compare("relu 0", nd.relu, plain, lanes=lanes)
    compare("add 0 1; relu 2", BINARY["add 0 1; relu 2"], plain, [plain], lanes)
    compare(HARD_SWISH, UNARY[HARD_SWISH], plain, lanes=lanes)


@pytest.mark.parametrize("lanes", [16, 8, 0])
def test_another_image_with_one_value_per_channel(lanes):
    shape, one = (3, 19, 30, 25), [(3, 19, 1, 1)]
    gate = lambda x, y: nd.broadcast_mul(x, nd.sigmoid(y))  # noqa: E731
    compare("sigmoid 1; mul 0 2", gate, shape, one, lanes)
    compare("add 0 1", nd.broadcast_add, shape, one, lanes)
    total = lambda x, y: nd.relu(nd.broadcast_add(x, y))  # noqa: E731
    compare("add 0 1; relu 2", total, shape, one, lanes)


@pytest.mark.parametrize("grad_req", ["write", "add"])
@pytest.mark.parametrize("fix_gamma", [True, False])
@pytest.mark.parametrize(
    "train_mode, use_global_stats", [(True, False), (True, True), (False, False)]
)
def test_options(grad_req, fix_gamma, train_mode, use_global_stats):
    element, shape = ELEMENTS[0], (4, 24, 5, 7)
    options = {**OPTIONS, "fix_gamma": fix_gamma, "use_global_stats": use_global_stats}
    x, head = normal(shape, element), normal(shape, element, 9)
    expected = reference([x], options, nd.relu, head, train_mode, grad_req)
    symbol = norm("relu 0", 0, element, 24, **options)
    arrays = {name: nd.array(values) for name, values in arrays_of([x]).items()}
    for name in ("x", "gamma", "beta"):
        arrays[name].attach_grad("write" if name == "x" else grad_req)
        arrays[name].grad[:] = 1
    static = [("static_alloc", str(grad_req == "write"))]
    with autograd.record(train_mode=train_mode):
        out = nd.CachedOp(symbol, static)(*arrays.values())
    out.backward(nd.array(to_blocked(head, 16)))
    grads = {name: arrays[name].grad.asnumpy() for name in ("x", "gamma", "beta")}
    states = {name: arrays[name].asnumpy() for name in ("mean", "var")}
    close({"result": out.asnumpy(), **grads, **states}, expected, "relu 0", [x], head, element)


def test_frozen_parameters():
    """Without requests for gamma and beta, the gradient of the image is the same."""
    x = normal((4, 16, 5, 7), ELEMENTS[0])
    head = to_blocked(np.ones_like(x), 16)
    requests = {"x": "write", "gamma": "null", "beta": "null"}
    everything = compute(norm(element=ELEMENTS[0]), arrays_of([x]), head)
    frozen = compute(norm(element=ELEMENTS[0]), arrays_of([x]), head, requests)
    np.testing.assert_array_equal(frozen["x"], everything["x"])
    assert (frozen["gamma"] == 1).all() and (frozen["beta"] == 1).all()


def test_inference_reads_the_running_statistics_and_changes_none():
    """By the options' defaults, which are MXNet's."""
    x, statistics = normal((4, 24, 5, 7), ELEMENTS[0]), statistics_of(24)
    results = compute(norm("relu 0", 0, ELEMENTS[0], 24), arrays_of([x]))
    stock = [nd.array(values) for values in statistics.values()]
    expected = nd.BatchNorm(nd.array(x), *stock).relu().asnumpy()
    rtol = PRECISION[ELEMENTS[0]]
    np.testing.assert_allclose(to_plain(results["result"], 24), expected, rtol, 1e-5)
    for name in ("mean", "var"):
        np.testing.assert_array_equal(results[name], statistics[name])


@pytest.mark.parametrize("sharp", [False, True])
def test_the_variance_of_values_far_from_zero(sharp, instruction_set):
    # The mean is 2048 times the standard deviation: E[x**2] - E[x]**2 would have no correct bit.
    random = np.random.RandomState(0)
    x = 2048 + random.randint(-1, 2, (2, 16, 40, 40)).astype(np.float32)
    if sharp:
        x[:, :, :5] = 2  # the first positions are no estimate of the mean
    zeros = dict.fromkeys(("mean", "var"), np.zeros(16, np.float32))
    symbol = norm(**{**OPTIONS, "momentum": 0})
    arrays = arrays_of([x], statistics={**statistics_of(16), **zeros})
    results = compute(symbol, arrays, arrays["x"])
    exact = x.astype(np.float64)
    np.testing.assert_allclose(results["mean"], exact.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(results["var"], exact.var((0, 2, 3)), rtol=1e-5)


def test_the_gradient_of_add_and_relu_keeps_the_result_and_not_the_other_image():
    # With the other image overwritten after the forward pass, its gradient is the same.
    images = [normal((2, 16, 3, 3), "float16", seed) for seed in (1, 2)]
    arrays = {name: nd.array(values) for name, values in arrays_of(images).items()}
    arrays["y0"].attach_grad()
    with autograd.record():
        out = nd.CachedOp(norm("add 0 1; relu 2", 1))(*arrays.values())
    positive = (out.asnumpy() > 0).astype(np.float32)
    arrays["y0"][:] = np.nan
    out.backward()
    np.testing.assert_array_equal(arrays["y0"].grad.asnumpy(), positive)


def test_an_empty_batch_is_no_error():
    with mx.util.np_shape(True):
        arrays = {"x": np.zeros((0, 1, 3, 3, 16), np.float32), **statistics_of(16)}
        results = compute(norm(), arrays, arrays["x"])
    assert results["result"].shape == (0, 1, 3, 3, 16)
    np.testing.assert_array_equal(results["beta"], np.zeros(16))


@pytest.mark.parametrize("program, inputs", COMMON)
def test_common_programs_compute_the_same_as_their_instructions(program, inputs):
    general_program = f"{program}; round {inputs + len(program.split(';')) - 1}"
    for element in ELEMENTS:
        images = [normal((2, 19, 9, 8), element, seed) for seed in range(inputs)]
        head = to_blocked(normal(images[0].shape, element, 9), 16)
        ours, general = (
            compute(norm(text, inputs - 1, element, 19, **OPTIONS), arrays_of(images), head)
            for text in (program, general_program)
        )
        for name, values in general.items():
            if name in STATISTICS:
                np.testing.assert_allclose(ours[name], values, rtol=1e-5, atol=1e-5)
            elif name == "x":
                rtol = max(PRECISION[element], 2.0**-10)  # there is one more rounding
                np.testing.assert_allclose(ours[name], values, rtol=rtol, atol=1e-6)
            else:
                np.testing.assert_array_equal(ours[name], values)
