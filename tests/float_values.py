"""Values that decide whether a rounding is right: those of a format, midpoints and neighbours."""

import numpy as np

from gluon_amp.base.formats import FloatFormat


def every_value(format_: FloatFormat) -> np.ndarray:
    """Return all finite values of a format of at most 16 bits, of both signs, in order: float32."""
    positive = [format_.value(code) for code in range(format_.largest_code + 1)]
    return np.concatenate([-np.array(positive[::-1]), positive]).astype(np.float32)


def beside(values: np.ndarray) -> np.ndarray:
    """Return float32 values, the midpoints between neighbours, and the float32 values beside them.

    Values far beyond any format, infinities, NaNs, and multiples of the largest value are added.
    """
    ends = values.max() * np.array([1 + 2.0**-9, 1 + 2.0**-4, 1.125, 1.25, 1.5, 2])
    with np.errstate(over="ignore"):
        points = np.concatenate([values, ends, -ends]).astype(np.float32)
    order = np.sort(points)
    middle = (order[1:].astype(np.float64) + order[:-1]) / 2
    with np.errstate(over="ignore", invalid="ignore"):
        points = np.concatenate([points, middle.astype(np.float32)])
    sides = [np.nextafter(points, np.float32(side)) for side in (-np.inf, np.inf)]
    far = [0.0, -0.0, 3.4e38, -3.4e38, 1e-45, -1e-45, 2.0**-126, np.inf, -np.inf, np.nan, -np.nan]
    return np.concatenate([points, *sides, np.array(far, np.float32)])
