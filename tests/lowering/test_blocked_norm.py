"""BatchNorm with a program on blocked arrays computes MXNet's numbers.

Statistics, running statistics and the gradients of gamma and beta are float32, and differ from
MXNet's by the order of the additions: by `SUMS` times the size of the summands. Results and
gradients of images are rounded once to the element type. Before the gradient of the data, that of
the normalized image is rounded, too, except in the common programs.
"""

import os
import subprocess
import sys

import numpy as np
import pytest

from gluon_amp.graph import from_json
from tests.lowering.blocked_programs import (
    DTYPES,
    ROUNDING,
    SHAPES,
    normal,
    run_operator,
)
from tests.marks import needs_library

import mxnet as mx
from mxnet import autograd, nd

pytestmark = needs_library

SUMS = 2e-6
NORM = "_gluon_amp_norm"
STATISTICS = ("gamma", "beta", "mean", "var")
OPTIONS = {"eps": "0.001", "momentum": "0.9", "fix_gamma": "False"}


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


def statistics_of(channels):
    random = np.random.RandomState(5)
    return {
        "gamma": random.uniform(0.5, 2, channels),
        "beta": random.normal(size=channels),
        "mean": random.normal(size=channels),
        "var": random.uniform(0.5, 2, channels),
    }


def arrays_of(statistics, grad_req="write"):
    """Return the float32 inputs of a BatchNorm; gamma and beta have gradients, first all ones."""
    arrays = [nd.array(statistics[name]) for name in STATISTICS]
    for array in arrays[:2]:
        array.attach_grad(grad_req)
        if grad_req != "null":
            array.grad[:] = 1
    return arrays


def reference(images, statistics, options, function, head, train_mode, grad_req):
    """Run MXNet's float32 BatchNorm, then `function`; return result, gradients and statistics."""
    arrays, data = arrays_of(statistics, grad_req), [nd.array(x) for x in images]
    for x in data:
        x.attach_grad()
    keywords = {
        "eps": float(options["eps"]),
        "momentum": float(options["momentum"]),
        "fix_gamma": options["fix_gamma"] == "True",
        "use_global_stats": options.get("use_global_stats") == "True",
    }
    with autograd.record(train_mode=train_mode):
        out = function(nd.BatchNorm(data[0], *arrays, **keywords), *data[1:])
    out.backward(nd.array(head))
    return out.asnumpy(), [x.grad.asnumpy() for x in data], arrays


def compare(
    program, function, images, dtype, lanes, train_mode=True, grad_req="write", statistics=None,
    sums=SUMS, static_alloc=True, **changed,
):  # fmt: skip
    options = {**OPTIONS, **changed}
    statistics = statistics or statistics_of(images[0].shape[1])
    head = normal(images[0].shape, dtype, 9)
    result, gradients, expected = reference(
        images, statistics, options, function, head, train_mode, grad_req
    )
    actual = arrays_of(statistics, grad_req)
    attrs = {"program": program, "num_extras": str(len(images) - 1), **options}
    run = run_operator(
        NORM, attrs, images, head, dtype, lanes, actual,
        train_mode=train_mode, static_alloc=static_alloc,
    )  # fmt: skip
    tolerance, common = (
        ROUNDING[dtype],
        program in [text for text, _ in COMMON] + ["", "clip 0 0 6"],
    )
    for i, (a, e) in enumerate(zip([run.result, *run.gradients], [result, *gradients])):
        share = sums + tolerance * (1e-3 if common or i != 1 else 1 / 2)
        np.testing.assert_allclose(a, e, rtol=tolerance, atol=np.abs(e).max() * share)
    assert not any(map(np.any, run.padding))
    for name, a, e in zip(STATISTICS, actual, expected):
        np.testing.assert_allclose(a.asnumpy(), e.asnumpy(), rtol=1e-5, atol=1e-6, err_msg=name)
    count = images[0].size / images[0].shape[1]
    summand = max(np.abs(gradients[0]).max() * np.abs(images[0]).max(), np.abs(head).max())
    for name, a, e in zip(STATISTICS, actual[:2], expected[:2]):
        if grad_req == "null":
            assert a.grad is None
            continue
        scale = sums * count * max(1, summand)
        np.testing.assert_allclose(a.grad.asnumpy(), e.grad.asnumpy(), 1e-5, scale, err_msg=name)
    return run, actual


def identity(x):
    return x


PROGRAMS = {
    "nothing": ("", identity),
    "relu": ("relu 0", nd.relu),
    "relu6": ("clip 0 0 6", lambda x: nd.clip(x, 0, 6)),
    "hard-swish": (
        "adds 0 3; clip 1 0 6; divs 2 6; mul 0 3",
        lambda x: x * (nd.clip(x + 3, 0, 6) / 6),
    ),
    "rounded": ("round 0; relu 1", nd.relu),
}
PROGRAMS_OF_TWO = {
    "add": ("add 0 1", nd.elemwise_add),
    "add and relu": ("add 0 1; relu 2", lambda x, y: nd.relu(x + y)),
    "relu and add": ("relu 0; add 2 1", lambda x, y: nd.relu(x) + y),
    "gate": ("mul 0 1", nd.elemwise_mul),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_the_result_alone(name, dtype, instruction_set):
    program, function = PROGRAMS[name]
    if name == "rounded" and dtype == "bfloat16":
        pytest.skip("the gradient of round is rounded to bfloat16")
    compare(program, function, [normal((3, 19, 11, 9), dtype)], dtype, 16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PROGRAMS_OF_TWO)
def test_programs_of_the_result_and_another_image(name, dtype, instruction_set):
    program, function = PROGRAMS_OF_TWO[name]
    images = [normal((3, 19, 11, 9), dtype, seed) for seed in (1, 2)]
    compare(program, function, images, dtype, 16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_any_shape(shape, dtype):
    *plain, lanes = shape
    if plain[0] * plain[2] * plain[3] == 1:
        pytest.skip("a single value has no variance")
    x, y = normal(plain, dtype, 1), normal(plain, dtype, 2)
    compare("relu 0", nd.relu, [x], dtype, lanes)
    compare("add 0 1; relu 2", lambda a, b: nd.relu(a + b), [x, y], dtype, lanes)
    program, function = PROGRAMS["hard-swish"]
    compare(program, function, [x], dtype, lanes)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lanes", [16, 8, 0])
@pytest.mark.parametrize("name", ["mul", "add", "add and relu"])
def test_another_image_with_one_value_per_channel(name, lanes, dtype):
    program, function = {
        "mul": ("sigmoid 1; mul 0 2", lambda x, y: nd.broadcast_mul(x, nd.sigmoid(y))),
        "add": ("add 0 1", nd.broadcast_add),
        "add and relu": ("add 0 1; relu 2", lambda x, y: nd.relu(nd.broadcast_add(x, y))),
    }[name]
    images = [normal((3, 19, 30, 25), dtype, 1), normal((3, 19, 1, 1), dtype, 2)]
    compare(program, function, images, dtype, lanes)


@pytest.mark.parametrize("grad_req", ["write", "add", "null"])
@pytest.mark.parametrize("fix_gamma", ["True", "False"])
@pytest.mark.parametrize(
    "train_mode, use_global_stats", [(True, "False"), (True, "True"), (False, "False")]
)
def test_options(grad_req, fix_gamma, train_mode, use_global_stats):
    compare(
        "relu 0", nd.relu, [normal((4, 24, 5, 7), "bfloat16")], "bfloat16", 16,
        train_mode=train_mode, grad_req=grad_req, fix_gamma=fix_gamma,
        use_global_stats=use_global_stats, static_alloc=grad_req == "write",
    )  # fmt: skip


def test_defaults_are_those_of_batch_norm():
    x, statistics = normal((4, 16, 5, 7), "bfloat16"), statistics_of(16)
    ours, theirs = arrays_of(statistics), arrays_of(statistics)
    head = np.ones_like(x)
    run_operator(NORM, {"num_extras": "0"}, [x], head, "bfloat16", 16, ours)
    with autograd.record():
        out = nd.BatchNorm(nd.array(x), *theirs)
    out.backward(nd.array(head))
    for a, e in zip(ours, theirs):
        np.testing.assert_allclose(a.asnumpy(), e.asnumpy(), rtol=1e-6)


def test_inference_reads_the_running_statistics_and_changes_none():
    x, statistics = normal((4, 24, 5, 7), "bfloat16"), statistics_of(24)
    arrays = arrays_of(statistics)
    attrs = {"program": "relu 0", "num_extras": "0", **OPTIONS}
    run = run_operator(NORM, attrs, [x], None, "bfloat16", 16, arrays)
    expected = nd.BatchNorm(nd.array(x), *arrays, fix_gamma=False).relu().asnumpy()
    np.testing.assert_allclose(run.result, expected, rtol=2.0**-8, atol=1e-5)
    for name, array in zip(STATISTICS, arrays):
        np.testing.assert_array_equal(array.asnumpy(), statistics[name].astype(np.float32))


@pytest.mark.parametrize("sharp", [False, True])
def test_the_variance_of_values_far_from_zero(sharp, instruction_set):
    # The mean is 2048 times the standard deviation: E[x**2] - E[x]**2 would have no correct bit.
    random = np.random.RandomState(0)
    x = 2048 + random.randint(-1, 2, (2, 16, 40, 40)).astype(np.float32)
    if sharp:
        x[:, :, :5] = 2  # the first positions are no estimate of the mean
    arrays = arrays_of({**statistics_of(16), "mean": np.zeros(16), "var": np.zeros(16)})
    attrs = {"num_extras": "0", **OPTIONS, "momentum": "0"}
    run_operator(NORM, attrs, [x], np.ones_like(x), "float32", 16, arrays)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(arrays[2].asnumpy(), exact.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(arrays[3].asnumpy(), exact.var((0, 2, 3)), rtol=1e-5)


def symbol_of(extras=0, **attrs):
    names = ["x", "g", "b", "m", "v", *(f"e{i}" for i in range(extras))]
    nodes = [{"op": "null", "name": name, "inputs": []} for name in names]
    attrs = {"channels": "16", "num_extras": str(extras), **attrs}
    entries = [[i, 0, 0] for i in range(len(names))]
    nodes.append({"op": NORM, "name": "op", "attrs": attrs, "inputs": entries})
    return from_json({"nodes": nodes, "heads": [[len(names), 0, 0]]})


def test_the_running_statistics_are_auxiliary_states():
    symbol = symbol_of()
    assert symbol.list_auxiliary_states() == ["m", "v"]
    assert len(symbol.list_outputs()) == 1
    arguments, results, states = symbol.infer_shape(x=(2, 1, 3, 3, 16))
    assert arguments == [(2, 1, 3, 3, 16), (16,), (16,)]
    assert (results, states) == ([(2, 1, 3, 3, 16)], [(16,), (16,)])


def test_the_gradient_of_add_and_relu_keeps_the_result_and_not_the_other_image():
    # With the other image overwritten after the forward pass, its gradient is the same.
    x, y = (nd.array(normal((2, 1, 3, 3, 16), "float32", seed)) for seed in (1, 2))
    arrays = arrays_of(statistics_of(16))
    y.attach_grad()
    op = nd.CachedOp(symbol_of(1, program="add 0 1; relu 2"))
    with autograd.record():
        out = op(x, *arrays, y)
    positive = (out.asnumpy() > 0).astype(np.float32)
    y[:] = np.nan
    out.backward()
    np.testing.assert_array_equal(y.grad.asnumpy(), positive)


@pytest.mark.parametrize(
    "shapes, attrs, message",
    [
        ({"x": (2, 1, 3, 16)}, {}, "5 dimensions"),
        ({"x": (2, 1, 3, 3, 16), "g": (15,)}, {}, "size of dimension 0"),
        ({"x": (2, 2, 3, 3, 16)}, {}, "channels is 16"),
        ({"x": (2, 1, 3, 3, 16)}, {"channels": "0"}, "channels is 0"),
        ({"x": (2, 1, 3, 3, 16)}, {"num_extras": "-1"}, "num_extras is -1"),
        ({"x": (2, 1, 3, 3, 16)}, {"num_extras": "1"}, "expects 6 arrays"),
        ({"x": (2, 1, 3, 3, 16)}, {"program": "relu 1"}, "not the number of an earlier value"),
    ],
)
def test_wrong_shapes_and_attributes_are_errors(shapes, attrs, message):
    with pytest.raises(mx.MXNetError, match=message):
        symbol_of(**{"extras": 0, **attrs}).infer_shape(**shapes)


def test_an_empty_batch_is_no_error():
    with mx.util.np_shape(True):
        arrays = arrays_of(statistics_of(16))
        x = nd.zeros((0, 1, 3, 3, 16))
        x.attach_grad()
        with autograd.record():
            out = nd.CachedOp(symbol_of())(x, *arrays)
        out.backward()
        assert out.shape == (0, 1, 3, 3, 16)
        np.testing.assert_array_equal(arrays[1].grad.asnumpy(), np.zeros(16))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("program, inputs", COMMON)
def test_common_programs_compute_the_same_as_their_instructions(program, inputs, dtype):
    images = [normal((2, 19, 9, 8), dtype, seed) for seed in range(inputs)]
    head = normal(images[0].shape, dtype, 9)
    last = inputs + len(program.split(";")) - 1
    runs, gradients = [], []
    for text in (program, f"{program}; round {last}"):
        arrays = arrays_of(statistics_of(19))
        attrs = {"program": text, "num_extras": str(inputs - 1), **OPTIONS}
        runs.append(run_operator(NORM, attrs, images, head, dtype, 16, arrays))
        gradients.append([array.grad.asnumpy() for array in arrays[:2]])
    np.testing.assert_array_equal(runs[0].result, runs[1].result)
    for ours, general in zip(runs[0].gradients[1:], runs[1].gradients[1:]):
        np.testing.assert_array_equal(ours, general)
    for ours, general in zip(gradients[0], gradients[1]):
        np.testing.assert_allclose(ours, general, rtol=1e-5, atol=1e-5)
    ours, general = runs[0].gradients[0], runs[1].gradients[0]
    np.testing.assert_allclose(ours, general, rtol=ROUNDING[dtype], atol=1e-6)


BITS = """
import hashlib
from tests.lowering.test_blocked_norm import *
digest = hashlib.sha1()
for program, inputs in (("relu 0", 1), ("add 0 1; relu 2", 2), ("sigmoid 0; mul 0 1", 1)):
    images = [normal((3, 48, 28, 28), "bfloat16", seed) for seed in range(inputs)]
    arrays = arrays_of(statistics_of(48))
    attrs = {"program": program, "num_extras": str(inputs - 1), **OPTIONS}
    run = run_operator(NORM, attrs, images, images[0], "bfloat16", 16, arrays)
    sums = [array.asnumpy() for array in (*arrays, arrays[0].grad, arrays[1].grad)]
    for array in (run.result, *run.gradients, *sums):
        digest.update(array.tobytes())
print(digest.hexdigest())
"""


def test_the_bits_do_not_depend_on_the_number_of_threads():
    # Three groups: one thread and three process whole groups, two threads share them.
    digests = {
        subprocess.run(
            [sys.executable, "-c", BITS],
            env={**os.environ, "OMP_NUM_THREADS": threads, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in "123"
    }
    assert len(digests) == 1
