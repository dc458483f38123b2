"""How far rounding explains a difference between two programs that compute the same network."""

from typing import Dict, List, Sequence, Tuple

import numpy as np

from gluon_amp import graph
from gluon_amp.handover.network import Edge, Network

UNIT = 2.0**-24  # of float32: the largest relative error of a rounding
ROUNDINGS = 16  # by which inputs and parameters are changed, at least
# The effect of adding n terms in another order, with high probability, is that of changing them by
# LAMBDA * sqrt(n) roundings (Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019).
LAMBDA = 0.5
LEAST = 4  # roundings of the largest value, for results that hardly depend on a float
TRIALS, MARGIN = 3, 4  # a few random changes are no worst case

# Sums without weights, and the axes from which their results have one error in common
SUMS = {"Pooling": None, "mean": None, "InstanceNorm": 2, "GroupNorm": 2, "LayerNorm": -1}
SUMS.update({"_npx_pooling": None, "_npi_mean": None, "_npx_layer_norm": -1})

# The name of a variable, its shape, and the largest change
Noise = Dict[str, Tuple[Tuple[int, ...], float]]


def effect_of_rounding(
    network: Network, edges: Sequence[Edge], values: Sequence[np.ndarray]
) -> List[float]:
    """Return for each of some edges the largest difference that rounding explains.

    `values` are those of the edges. Another program adds in another order, which has the effect of
    slightly other parameters, inputs and sums. So the network runs again with each of these changed
    at random by some roundings. A bound is four times the largest change of an edge. Inputs that
    are whole numbers, such as tokens, stay.
    """
    random = np.random.default_rng(0)
    noisy, moved, noise = _with_noise(network, edges)
    bounds = [LEAST * UNIT * _largest(value) for value in values]
    for _ in range(TRIALS):
        inputs = {name: _disturbed(array, random) for name, array in network.inputs.items()}
        parameters = {name: _disturbed(a, random) for name, a in network.parameters.items()}
        inputs.update((k, size * _uniform(random, shape)) for k, (shape, size) in noise.items())
        others = noisy._replace(parameters=parameters).run(inputs, moved)
        bounds = [max(b, difference(*pair)) for b, *pair in zip(bounds, values, others)]
    return [MARGIN * bound for bound in bounds]


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest difference of two arrays of one shape; equal infinities do not differ."""
    with np.errstate(invalid="ignore"):
        return _largest(np.where(one == other, 0.0, one.astype(np.float64) - other))


def _with_noise(network: Network, edges: Sequence[Edge]) -> Tuple[Network, List[Edge], Noise]:
    """Return a network that adds a variable to each sum, its edges, and the variables' sizes."""
    out, noise = graph.Writer(), {}
    sums = [(i, 0) for i, node in enumerate(network.nodes) if node["op"] in SUMS]
    results = dict(zip(sums, network.run(network.inputs, sums) if sums else ()))
    shapes = network.shapes(network.inputs) if sums else {}
    for i, node in enumerate(network.nodes):
        entry = out.copy(node, [out.remap(one) for one in node["inputs"]])
        out.numbers.append(entry[0])
        if (i, 0) in results:
            result, axis = results[i, 0], SUMS[node["op"]]
            before = shapes[tuple(node["inputs"][0][:2])]
            terms = np.prod(before) / result.size if axis is None else np.prod(before[axis:])
            shape = result.shape[:axis] + (1,) * (0 if axis is None else len(before[axis:]))
            name = f"rounding{i}"
            noise[name] = shape, LAMBDA * terms**0.5 * UNIT * _largest(result)
            add = "_npi_add" if network.numpy else "broadcast_add"
            variable = out.emit("null", name)
            out.replaced[i, 0] = out.emit(add, f"rounded{i}", entry, variable)
    moved = [tuple(out.remap([*edge, 0])[:2]) for edge in edges]
    return network._replace(json=out.graph(network.json)), moved, noise


def _largest(array: np.ndarray) -> float:
    finite = np.isfinite(array).all()
    return float(np.abs(array).max(initial=0)) if finite else float("inf")


def _uniform(random: np.random.Generator, shape: Tuple[int, ...]) -> np.ndarray:
    """Return numbers in [-1, 1), in float32."""
    return random.random(shape, np.float32) * np.float32(2) - np.float32(1)


def _disturbed(array: np.ndarray, random: np.random.Generator) -> np.ndarray:
    if array.dtype.kind != "f" or (array == np.rint(array)).all():
        return array
    terms = array[0].size if array.ndim > 1 else 1  # of the sum that reads a weight
    roundings = max(ROUNDINGS, LAMBDA * terms**0.5)
    return array + array * (_uniform(random, array.shape) * np.float32(roundings * UNIT))
