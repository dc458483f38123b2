"""Sums over workers in 16 bits: how a server, a ring and a tree add, and the error.

Each addition is exact in float32 or rounded once there, and then rounded to the dtype of the wire.
That equals one rounding, as float32 has more than twice the significand of both 16-bit dtypes
(Figueroa, "When is double rounding innocuous?", 1995). Arrays are float32 throughout; the values
are those of the dtype.
"""

from typing import Callable, Dict, NamedTuple, Sequence

import numpy as np

from gluon_amp.base.formats import FORMATS, rounded_array

Arrays = Sequence[np.ndarray]  # float32 vectors, one of each worker


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return float32 values rounded to 'float32', 'float16' or 'bfloat16', to nearest even."""
    if dtype == "float32":
        return values
    return rounded_array(values, FORMATS[dtype]).astype(np.float32)


def sequential(parts: Arrays, dtype: str) -> np.ndarray:
    """Return the sum in the order of the parts, each partial sum rounded."""
    total = parts[0]
    for part in parts[1:]:
        with np.errstate(over="ignore", invalid="ignore"):
            total = rounded(total + part, dtype)
    return total


def ring(parts: Arrays, dtype: str) -> np.ndarray:
    """Return the sum of a ring: each chunk starts at another worker and goes round."""
    chunks = zip(*(np.array_split(part, len(parts)) for part in parts))
    orders = ([*chunk[first:], *chunk[:first]] for first, chunk in enumerate(chunks))
    return np.concatenate([sequential(order, dtype) for order in orders])


def tree(parts: Arrays, dtype: str) -> np.ndarray:
    """Return the sum of pairs, of pairs of pairs, and so on."""
    while len(parts) > 1:
        pairs = [parts[n : n + 2] for n in range(0, len(parts), 2)]
        parts = [sequential(pair, dtype) for pair in pairs]
    return parts[0]


def wide(parts: Arrays, dtype: str) -> np.ndarray:
    """Return the sum in float32, rounded once, as MXNet's parameter server adds float16 arrays."""
    return rounded(sequential(parts, "float32"), dtype)


ORDERS: Dict[str, Callable[[Arrays, str], np.ndarray]] = {
    "server, float32 sums": wide,
    "one after another": sequential,
    "ring": ring,
    "tree": tree,
}


def exchanged(parts: Arrays, dtype: str, order: str, predivided: bool) -> np.ndarray:
    """Return the sum as an update uses it, float32.

    `dtype` is that of the wire and of the sums, to which the parts are rounded first. If they are
    predivided, the summands are divided by a power of two that is at least their number, and the
    sum is multiplied by it. See `gluon_amp.trainer.gradients`.
    """
    factor = np.float32(2.0 ** (len(parts) - 1).bit_length() if predivided else 1)
    # as `grad *= 1 / factor` does in the gradient's dtype
    summands = [rounded(rounded(part, dtype) / factor, dtype) for part in parts]
    with np.errstate(over="ignore"):
        return ORDERS[order](summands, dtype) * factor


class Errors(NamedTuple):
    """How far a sum is from the exact one; NaN but for the last if that is above 0."""

    norm: float  # ‖sum − exact‖ / ‖exact‖ of the vectors
    largest: float  # the largest error of an element, over the largest exact element
    median: float  # of the elements' relative errors, where the exact one is not zero
    lost: float  # share of the elements that are zero though the exact one is not
    overflowed: int  # elements that are not finite


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


def overflows_seen(parts: Arrays, dtype: str, order: str, predivided: bool) -> bool:
    """Return whether inf, -inf and NaN of any one worker are seen in the sum.

    They are seen if the sum is not finite there. Of each chunk of a ring, element n has the fault
    of worker n.
    """
    workers = len(parts)
    few = np.tile([part[:workers] for part in parts], workers)
    faulty = np.tile(np.eye(workers, dtype=bool), workers)
    return not any(
        np.isfinite(exchanged(list(np.where(faulty, fault, few)), dtype, order, predivided)).any()
        for fault in np.float32([np.inf, -np.inf, np.nan])
    )
