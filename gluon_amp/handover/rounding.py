"""How far rounding moves a network's outputs: the bound for what may differ elsewhere.

Two runtimes add the same products in another order, so their results differ by roundings. How far
these reach depends on the network. It is measured: all inputs and parameters are moved at random
by a few roundings, and the outputs' largest change is the bound.
"""

from typing import Dict, List, Optional, Sequence

import numpy as np

from gluon_amp.handover.network import Edge, Network

# By how much each value is moved, relative to itself: 16 roundings of float32, as sums have many,
# and 4 of float16, whose products are summed in float32.
MOVED = {"float32": 16 * 2.0**-24, "float16": 4 * 2.0**-11}
DRAWS = 2
# The least bound, as a share of the largest value. Kernels approximate functions: oneDNN's
# log_softmax is off by 3.4e-6 (measured), onnxruntime's tanh by 3.2e-7.
LEAST = {"float32": 2.0**-17, "float16": 2.0**-9}


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
    for _ in range(draws):
        parameters = {n: _moved(v, dtype, random) for n, v in network.parameters.items()}
        changed = network._replace(parameters=parameters).run(
            {name: _moved(value, dtype, random) for name, value in inputs.items()}, edges
        )
        bounds = [max(b, distance(x, y)) for b, x, y in zip(bounds, changed, exact)]
    return bounds


def _moved(value: np.ndarray, dtype: str, random: np.random.RandomState) -> np.ndarray:
    if value.dtype.kind != "f" or (value == np.rint(value)).all():  # indices, lengths: exact
        return value
    factor = random.random_sample(value.shape).astype(np.float32)
    factor *= 2 * MOVED[dtype]
    factor += 1 - MOVED[dtype]
    return (value * factor).astype(value.dtype)


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
