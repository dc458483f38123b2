"""Dense layers with packed weights, compared with MXNet's FullyConnected in float32."""

import numpy as np
import pytest

from gluon_amp.graph import from_json
from tests.kernels.images import (
    ELEMENTS,
    PRECISION,
    assert_close,
    compute,
    normal,
    operator,
    reference,
    rounded,
)
from tests.marks import needs_library

import mxnet as mx
from mxnet import nd

pytestmark = [needs_library, pytest.mark.cpu_kind]


def dense(element, hidden, bias=True, **attributes):
    names = ["data", "weight"] + ["bias"] * bias
    attributes = {"num_hidden": hidden, "no_bias": not bias, "variable_weight": True, **attributes}
    return operator("_gluon_amp_dense", names, element, **attributes)


def arrays_for(shape, hidden, element, bias=True, flatten=True, seed=0):
    columns = int(np.prod(shape[1:])) if flatten else shape[-1]
    weight = normal((hidden, columns), element, seed + 1) / np.sqrt(columns)
    arrays = {"data": normal(shape, element, seed), "weight": rounded(weight, element)}
    return {**arrays, "bias": normal((hidden,), element, seed + 2)} if bias else arrays


def check(shape, hidden, bias=True, flatten=True, seed=0):
    for element in ELEMENTS:
        arrays = arrays_for(shape, hidden, element, bias, flatten, seed)
        options = {"num_hidden": hidden, "no_bias": not bias, "flatten": flatten}
        expected, head = reference(
            nd.FullyConnected, arrays, lambda s, e=element: normal(s, e, seed + 3), **options
        )
        actual = compute(dense(element, hidden, bias, flatten=flatten), arrays, head)
        if element == "float16":  # exactly: float32 sums, rounded once
            for name, values in expected.items():
                np.testing.assert_array_equal(actual[name], rounded(values, element), err_msg=name)
        else:
            assert_close(actual, expected, dict.fromkeys(("result", "data"), PRECISION[element]))


def check_random(seed):
    random = np.random.RandomState(seed)
    shape = tuple(int(n) for n in random.randint(1, 68, size=random.choice([1, 2, 2, 2, 3])))
    shape = (random.randint(1, 6), *shape) if random.rand() < 0.7 else (*shape, 3)
    check(shape, random.randint(1, 68), random.rand() < 0.5, random.rand() < 0.7, seed)


@pytest.mark.parametrize("seed", range(6))
def test_random_shapes(seed):
    check_random(seed)


@pytest.mark.slow
def test_many_random_shapes():
    for seed in range(6, 60):
        check_random(seed)


@pytest.mark.parametrize("rows, columns, hidden", [(4, 1000, 512), (1, 2048, 1000), (128, 64, 10)])
def test_layers(rows, columns, hidden):
    check((rows, columns), hidden)


@pytest.mark.parametrize("element", ELEMENTS)
def test_literal_numbers(element):
    arrays = {
        "data": np.array([[1, 2], [4, 8]], np.float32),
        "weight": np.array([[1, 10], [-1, 1], [0.5, 0]], np.float32),
        "bias": np.array([0, 0.5, 100], np.float32),
    }
    results = compute(dense(element, 3), arrays, np.float32([[1, 0, 2], [0, 1, 0]]))
    np.testing.assert_array_equal(results["result"], [[21, 1.5, 100.5], [84, 4.5, 102]])
    np.testing.assert_array_equal(results["data"], [[2, 10], [-1, 1]])
    np.testing.assert_array_equal(results["weight"], [[1, 2], [4, 8], [2, 4]])
    np.testing.assert_array_equal(results["bias"], [1, 1, 2])


def test_float16_parameters_get_float16_gradients():
    arrays = {
        "data": np.full((2, 2), 2048, np.float32),
        "weight": np.array([[0.5, 0.25], [0, 1]], np.float16),
        "bias": np.array([1, 0], np.float16),
    }
    head = np.array([[0.5, 20], [0.5, 20]], np.float32)
    for requests, before in (("write", 0), ("add", 1)):
        results = compute(dense("float16", 2), arrays, head, requests)
        np.testing.assert_array_equal(results["result"], [[1537, 2048]] * 2)
        assert results["weight"].dtype == results["bias"].dtype == np.float16
        # 2048 + 1 is a tie, which goes to the even 2048.
        np.testing.assert_array_equal(results["weight"], [[2048, 2048], [np.inf, np.inf]])
        np.testing.assert_array_equal(results["bias"], np.array([1, 40]) + before)


@pytest.mark.parametrize("element", ELEMENTS)
def test_gradients_are_added_or_not_requested(element):
    arrays, head = arrays_for((5, 19), 21, element), normal((5, 21), element, 9)
    once = compute(dense(element, 21), arrays, head)
    added = compute(dense(element, 21), arrays, head, "add")
    for name in ("weight", "bias"):
        np.testing.assert_array_equal(added[name], once[name] + np.float32(1))
    if element == "float16":  # the cast to bfloat16 adds by itself
        total = rounded(once["data"] + np.float32(1), "float16")
        np.testing.assert_array_equal(added["data"], total)
    for name in arrays:
        requests = {other: "write" if other == name else "null" for other in arrays}
        results = compute(dense(element, 21), arrays, head, requests)
        np.testing.assert_array_equal(results[name], once[name])
        for other in set(arrays) - {name}:
            np.testing.assert_array_equal(results[other], 1)


def test_no_rows():
    """In float16 alone: MXNet's cast to bfloat16 fails for them."""
    with mx.util.np_shape(True):
        arrays = arrays_for((0, 19), 21, "float16")
        results = compute(dense("float16", 21), arrays, np.zeros((0, 21)))
    assert results["result"].shape == (0, 21)
    assert not results["weight"].any() and not results["bias"].any()


@pytest.mark.parametrize("element", ELEMENTS)
def test_many_layers_read_one_tensor(element):
    """MXNet's executor then adds the gradients of the data in place."""
    arrays = {"data": np.array([[1, 2], [3, 4]], np.float32)}
    names = ["data"] + [f"weight{i}" for i in range(10)]
    arrays.update((name, np.full((3, 2), 2, np.float32)) for name in names[1:])
    low = "_gluon_amp_bfloat16" if element == "bfloat16" else "_gluon_amp_round"
    nodes = [{"op": "null", "name": name, "inputs": []} for name in names]
    nodes.append({"op": low, "name": "low", "inputs": [[0, 0, 0]], "attrs": {}})
    attrs = {"num_hidden": "3", "no_bias": "True", "variable_weight": "True"}
    for i in range(10):
        inputs = [[11, 0, 0], [i + 1, 0, 0]]
        nodes.append({"op": "_gluon_amp_dense", "name": f"d{i}", "inputs": inputs, "attrs": attrs})
    inputs = [[12 + i, 0, 0] for i in range(10)]
    attrs = {"num_args": "10", "dim": "1"}
    nodes.append({"op": "Concat", "name": "all", "inputs": inputs, "attrs": attrs})
    if element == "bfloat16":
        wide = {"op": "amp_cast", "name": "f", "attrs": {"dtype": "float32"}}
        nodes.append({**wide, "inputs": [[22, 0, 0]]})
    symbol = from_json({"nodes": nodes, "heads": [[len(nodes) - 1, 0, 0]]})
    results = compute(symbol, arrays, np.ones((2, 30), np.float32))
    np.testing.assert_array_equal(results["result"], [[6] * 30, [14] * 30])
    np.testing.assert_array_equal(results["data"], [[60, 60], [60, 60]])
