"""How far rounding explains a difference between two programs that compute the same network."""

from typing import List, Sequence

import numpy as np

from gluon_amp.handover.network import Edge, Network

UNIT = 2.0**-24  # of float32: the largest relative error of a rounding
ROUNDINGS = 16  # by which inputs and parameters are changed, at least
# A sum of n terms in any order is the exact sum of terms that were each changed by LAMBDA * sqrt(n)
# roundings, with high probability (Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019).
LAMBDA = 2
ULPS = 8  # of the largest value, for results that hardly depend on a float
TRIALS = 3


def effect_of_rounding(
    network: Network, edges: Sequence[Edge], values: Sequence[np.ndarray]
) -> List[float]:
    """Return for each of some edges the largest difference that rounding explains.

    `values` are those of the edges. Another program adds in another order, which has the effect of
    slightly other parameters and inputs. So the network runs again with each of their elements
    changed at random by some roundings, and the largest change of an edge is its bound. Inputs of
    whole numbers, such as tokens, stay.
    """
    random = np.random.default_rng(0)
    bounds = [ULPS * UNIT * _largest(value) for value in values]
    for _ in range(TRIALS):
        inputs = {name: _disturbed(array, random) for name, array in network.inputs.items()}
        parameters = {name: _disturbed(a, random) for name, a in network.parameters.items()}
        others = network._replace(parameters=parameters).run(inputs, edges)
        bounds = [max(b, difference(*pair)) for b, *pair in zip(bounds, values, others)]
    return bounds


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest difference of two arrays of one shape; equal infinities do not differ."""
    with np.errstate(invalid="ignore"):
        return _largest(np.where(one == other, 0.0, one.astype(np.float64) - other))


def _largest(array: np.ndarray) -> float:
    finite = np.isfinite(array).all()
    return float(np.abs(array).max(initial=0)) if finite else float("inf")


def _disturbed(array: np.ndarray, random: np.random.Generator) -> np.ndarray:
    if array.dtype.kind != "f" or (array == np.rint(array)).all():
        return array
    terms = array[0].size if array.ndim > 1 else 1  # of the sum that reads a weight
    roundings = max(ROUNDINGS, LAMBDA * terms**0.5)
    shares = random.random(array.shape, np.float32) * 2 - 1
    return array + array * (shares * np.float32(roundings * UNIT))
