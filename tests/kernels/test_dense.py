"""Dense layers with packed weights, compared with MXNet's FullyConnected in float32."""

import numpy as np
import pytest

from gluon_amp.graph import from_json
from tests.kernels.images import ELEMENTS, compute, operator
from tests.kernels.products import Dense
from tests.marks import needs_library

import mxnet as mx

pytestmark = [needs_library, pytest.mark.cpu_kind]


def random_case(seed):
    random = np.random.RandomState(seed)
    shape = tuple(int(n) for n in random.randint(1, 68, size=random.choice([1, 2, 2, 2, 3])))
    shape = (random.randint(1, 6), *shape) if random.rand() < 0.7 else (*shape, 3)
    return Dense(shape, random.randint(1, 68), random.rand() < 0.5, random.rand() < 0.7)


@pytest.mark.parametrize("seed", range(6))
def test_random_shapes(seed):
    random_case(seed).check(seed)


@pytest.mark.slow
def test_many_random_shapes():
    for seed in range(6, 60):
        random_case(seed).check(seed)


@pytest.mark.parametrize(
    "rows, columns, hidden",
    [(4, 1000, 512), (1, 2048, 1000), (128, 64, 10), (7, 9, 1024), (5, 1024, 3)],
)
def test_layers(rows, columns, hidden):
    Dense((rows, columns), hidden).check()


def test_arrays_of_bfloat16_hold_no_wide_values():
    case = Dense((2, 3), 4)
    attrs = {"bfloat_values": True, **case.options()}
    symbol = operator("_gluon_amp_dense", case.names(), "widened bfloat16", **attrs)
    with pytest.raises(mx.MXNetError, match="bfloat_values expects float32 arrays"):
        compute(symbol, case.arrays("float32"))


@pytest.mark.parametrize(
    "element", ["float16", "wide bfloat16", *{"bfloat16"}.intersection(ELEMENTS)]
)
def test_many_layers_read_one_tensor(element):
    """MXNet's executor then adds the gradients of the data in place."""
    arrays = {"data": np.array([[1, 2], [3, 4]], np.float32)}
    names = ["data"] + [f"weight{i}" for i in range(10)]
    arrays.update((name, np.full((3, 2), 2, np.float32)) for name in names[1:])
    low = "_gluon_amp_bfloat16" if element == "bfloat16" else "_gluon_amp_round"
    nodes = [{"op": "null", "name": name, "inputs": []} for name in names]
    nodes.append({"op": low, "name": "low", "inputs": [[0, 0, 0]], "attrs": {}})
    attrs = {"num_hidden": "3", "no_bias": "True", "variable_weight": "True"}
    attrs["bfloat_values"] = str(element == "wide bfloat16")
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
