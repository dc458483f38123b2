"""Sums over workers in 16 bits: how a server, a ring and a tree add, and the error.

Each addition is exact in float32 or rounded once there, and then rounded to the dtype of the wire.
That equals one rounding, as float32 has more than twice the significand of both 16-bit dtypes
(Figueroa, "When is double rounding innocuous?", 1995). Arrays are float32 throughout; the values
are those of the dtype.
"""

from typing import Callable, Dict, List, NamedTuple, Sequence

import numpy as np

Arrays = Sequence[np.ndarray]


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return float32 values rounded to 'float32', 'float16' or 'bfloat16', to nearest even."""
    values = np.asarray(values, np.float32)
    if dtype == "float32":
        return values
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float32)
    bits = values.view(np.uint32)
    even = (bits >> 16) & 1
    nearest = ((bits + 0x7FFF + even) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return np.where(np.isnan(values), values, nearest)


def _add(one: np.ndarray, other: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return rounded(one + other, dtype)


def sequential(parts: Arrays, dtype: str) -> np.ndarray:
    """Return the sum in the order of the parts, each partial sum rounded."""
    total = parts[0]
    for part in parts[1:]:
        total = _add(total, part, dtype)
    return total


def ring(parts: Arrays, dtype: str) -> np.ndarray:
    """Return the sum of a ring: each chunk starts at another worker and goes round.

    The parts are vectors.
    """
    workers = len(parts)
    by_worker = [np.array_split(part, workers) for part in parts]
    chunks = []
    for first in range(workers):
        order = [(first + step) % workers for step in range(workers)]
        chunks.append(sequential([by_worker[worker][first] for worker in order], dtype))
    return np.concatenate(chunks)


def tree(parts: Arrays, dtype: str) -> np.ndarray:
    """Return the sum of pairs, of pairs of pairs, and so on."""
    parts = list(parts)
    while len(parts) > 1:
        odd = parts[len(parts) // 2 * 2 :]
        parts = [_add(one, other, dtype) for one, other in zip(parts[::2], parts[1::2])] + odd
    return parts[0]


def wide(parts: Arrays, dtype: str) -> np.ndarray:
    """Return the sum in float32, rounded once, as MXNet's parameter server adds float16 arrays.

    `experiments.wire.probe` shows that it does.
    """
    return rounded(sequential(parts, "float32"), dtype)


ORDERS: Dict[str, Callable[[Arrays, str], np.ndarray]] = {
    "server, float32 sums": wide,
    "one after another": sequential,
    "ring": ring,
    "tree": tree,
}


def divisor(workers: int) -> float:
    """Return the power of two by which `amp.Trainer` divides float16 summands, `workers` of them.

    See `gluon_amp.trainer.reduction`.
    """
    return 2.0 ** (workers - 1).bit_length()


def exchanged(parts: Arrays, dtype: str, order: str, predivided: bool) -> np.ndarray:
    """Return the sum as an update uses it, float32.

    Parameters
    ----------
    parts : sequence of ndarray
        The gradient of each worker, float32 vectors.
    dtype : {'float32', 'float16', 'bfloat16'}
        Of the wire and of the sums, to which the parts are rounded first.
    order : str
        A key of `ORDERS`.
    predivided : bool
        Whether the summands are divided by `divisor` and the sum is multiplied by it.
    """
    factor = divisor(len(parts)) if predivided else 1.0
    # as `grad *= 1 / divisor` does in the gradient's dtype
    summands = [rounded(rounded(part, dtype) * np.float32(1 / factor), dtype) for part in parts]
    with np.errstate(over="ignore"):
        return ORDERS[order](summands, dtype) * np.float32(factor)


class Errors(NamedTuple):
    """How far a sum is from the exact one.

    Attributes
    ----------
    norm : float
        ‖sum − exact‖ / ‖exact‖ of the vectors.
    largest : float
        The largest error of an element, over the largest exact element.
    median : float
        Median of the elements' relative errors, where the exact one is not zero.
    lost : float
        Share of the elements that are zero though the exact one is not.
    overflowed : int
        Elements that are not finite. The other fields are NaN if there is any.
    """

    norm: float
    largest: float
    median: float
    lost: float
    overflowed: int


def errors(total: np.ndarray, parts: Arrays) -> Errors:
    """Compare a sum with the sum of the parts in float64."""
    overflowed = int(np.count_nonzero(~np.isfinite(total)))
    if overflowed:
        return Errors(np.nan, np.nan, np.nan, np.nan, overflowed)
    exact = np.sum(np.asarray(parts, np.float64), axis=0)
    error = np.abs(total.astype(np.float64) - exact)
    nonzero = exact != 0
    return Errors(
        float(np.linalg.norm(error) / np.linalg.norm(exact)),
        float(error.max() / np.abs(exact).max()),
        float(np.median(error[nonzero] / np.abs(exact[nonzero]))),
        float(np.mean((total == 0) & nonzero)),
        0,
    )


def overflows_seen(parts: List[np.ndarray], dtype: str, order: str, predivided: bool) -> bool:
    """Return whether inf, -inf and NaN in one element of any worker are seen in the sum.

    It is seen if the sum is not finite there, whichever worker has it.
    """
    seen = []
    for worker in range(len(parts)):
        for value in (np.inf, -np.inf, np.nan):
            changed = [part.copy() for part in parts]
            changed[worker][0] = value
            seen.append(not np.isfinite(exchanged(changed, dtype, order, predivided)[0]))
    return all(seen)
