"""How far rounding moves a network's outputs: the bound for what may differ elsewhere.

Two runtimes add the same products in another order, so their results differ by roundings. How far
these reach depends on the network. It is measured: all inputs, parameters and long sums are moved
at random by a few roundings, and the outputs' largest change is the bound.
"""

from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from gluon_amp import graph
from gluon_amp.base.messages import UsageError
from gluon_amp.graph import Edge
from gluon_amp.handover.network import Network

# By how much each value is moved, relative to itself: 32 roundings of float32, as sums have many,
# or sqrt(n) if a weight's sums have n terms; 4 of float16, whose products are summed in float32.
MOVED = {"float32": 32 * 2.0**-24, "float16": 4 * 2.0**-11}
DRAWS = 2
# The least bound, as a share of the largest value. Kernels approximate functions: oneDNN's
# log_softmax is off by 3.4e-6 (measured), onnxruntime's tanh by 3.2e-7.
LEAST = {"float32": 2.0**-17, "float16": 2.0**-9}

# Sums that read no weight, and the axes from which results have one error in common. Some programs
# add n terms one by one, with an error of about sqrt(n) roundings (Higham and Mary, SIAM J. Sci.
# Comput. 41(5), 2019). MXNet's InstanceNorm of 512 × 512 pixels is off by 2.6e-4 (measured).
SUMS = {"InstanceNorm": 2, "GroupNorm": 2, "LayerNorm": -1, "Pooling": None, "mean": None}
SUM_MOVED = 2 * 2.0**-24  # for each sqrt(n)
# The weights of a resized image come from places in float32. These are off by half a rounding of
# the input's side, and weigh neighbours that differ by up to twice the largest value.
RESIZE = "_contrib_BilinearResize2D"
SUMS[RESIZE] = None

Noise = Dict[str, Tuple[Tuple[int, ...], float]]  # shape and size of a variable


def effect_of_rounding(
    network: Network,
    inputs: Dict[str, np.ndarray],
    edges: Optional[Sequence[Edge]] = None,
    dtype: str = "float32",
    draws: int = DRAWS,
) -> List[float]:
    """Return, for each edge or output, the largest difference that roundings explain."""
    exact = network.run(inputs, edges)
    bounds = [LEAST[dtype] * largest(value) for value in exact]
    random = np.random.RandomState(0)
    noise: Noise = {}
    if dtype == "float32":
        network, edges, noise = _with_noise(network, inputs, edges)
    for _ in range(draws):
        parameters = {
            name: _moved(value, dtype, random, int(np.prod(value.shape[1:])))
            for name, value in network.parameters.items()
        }
        moved = {name: _moved(value, dtype, random) for name, value in inputs.items()}
        for name, (shape, size) in noise.items():
            moved[name] = random.uniform(-size, size, shape).astype(np.float32)
        changed = network._replace(parameters=parameters).run(moved, edges)
        bounds = [max(b, distance(x, y)) for b, x, y in zip(bounds, changed, exact)]
    return bounds


def _with_noise(
    network: Network, inputs: Dict[str, np.ndarray], edges: Optional[Sequence[Edge]]
) -> Tuple[Network, Optional[Sequence[Edge]], Noise]:
    """Return a network that adds a variable to each sum, its edges, and the variables' sizes."""
    noise: Noise = {}
    sums = [(i, 0) for i, node in enumerate(network.nodes) if graph.classic(node["op"]) in SUMS]
    results = dict(zip(sums, network.run(inputs, sums) if sums else ()))
    shapes = network.shapes(inputs) if sums else {}

    def with_noise(
        out: graph.Writer, i: int, node: graph.Json, entries: List[graph.Entry]
    ) -> Optional[graph.Entry]:
        if (i, 0) not in results:
            return None
        result, axis = results[i, 0], SUMS[graph.classic(node["op"])]
        before = shapes[network.inputs_of(i)[0]]
        terms = np.prod(before) / result.size if axis is None else np.prod(before[axis:])
        roundings = max(before[2:]) if node["op"] == RESIZE else terms**0.5
        shape = result.shape[:axis] + (1,) * (0 if axis is None else len(before[axis:]))
        name = f"rounding{i}"
        noise[name] = shape, float(SUM_MOVED * roundings * largest(result))
        entry = out.copy(node, entries)
        add = "_npi_add" if network.numpy else "broadcast_add"
        out.replaced[i, 0] = out.emit(add, f"rounded{i}", entry, out.emit("null", name))
        return entry

    out = graph.Writer()
    out.rewrite(network.json, with_noise)
    moved = edges and [graph.edge_of(out.remap([*edge, 0])) for edge in edges]
    return network._replace(json=out.graph(network.json)), moved, noise


def _moved(
    value: np.ndarray, dtype: str, random: np.random.RandomState, terms: int = 1
) -> np.ndarray:
    if value.dtype.kind != "f" or (value == np.rint(value)).all():  # indices, lengths: exact
        return value
    size = max(MOVED[dtype], terms**0.5 * 2.0**-24)
    factor = random.random_sample(value.shape).astype(np.float32)
    factor *= 2 * size
    factor += 1 - size
    return (value * factor).astype(value.dtype)


def like(value: np.ndarray, regions: Optional[bool], random: np.random.RandomState) -> np.ndarray:
    """Return random values of the same mean and deviation; of indices, the given ones mixed."""
    if regions is None:
        return random.normal(value.mean(), value.std() or 1, value.shape).astype(value.dtype)
    return random.permutation(value if regions else value.ravel()).reshape(value.shape)


def refuse_without_numbers(outputs: Sequence[np.ndarray], function: str) -> None:
    """Raise `UsageError` if all of an output is NaN or infinite, which any other would equal."""
    for k, value in enumerate(outputs):
        if value.size and not np.isfinite(value).any():
            raise UsageError(
                f"{function}(): output {k} of the net has no finite value, so nothing can be "
                "compared: pass an input and parameters without NaN."
            )


def largest(value: np.ndarray) -> float:
    """Return the largest magnitude among the finite values."""
    finite = np.abs(value[np.isfinite(value)].astype(np.float64))
    return float(finite.max()) if finite.size else 0.0


def distance(value: np.ndarray, reference: np.ndarray) -> float:
    """Return the largest difference; infinite where only one of both is finite, or NaN."""
    if value.shape != reference.shape:
        return np.inf
    differs = ~((value == reference) | (np.isnan(value) & np.isnan(reference)))
    if not differs.any():
        return 0.0
    return _without_nan(np.abs(value[differs].astype(np.float64) - reference[differs]).max())


def mean_distance(value: np.ndarray, reference: np.ndarray) -> float:
    """Return the mean difference, of values of which none is NaN."""
    return _without_nan(np.abs(value.astype(np.float64) - reference).mean()) if value.size else 0.0


def _without_nan(number: float) -> float:
    return float(np.inf if np.isnan(number) else number)
