"""What a format would do to a tensor: underflows, overflows and the relative error."""

import math
from typing import NamedTuple

import numpy as np

from gluon_amp.base.formats import FloatFormat, exponent_for, rounded_array


class Effect(NamedTuple):
    """The effect of rounding a tensor to a format; shares are of its elements that are not 0."""

    underflow: float  # share that becomes 0
    overflow: float  # share that becomes infinite or NaN, or that was
    error: float  # ‖rounded - x‖₂ / ‖x‖₂ of the elements that do not overflow; 0 without any
    # share below the smallest normal number of the format, underflows included
    subnormal: float
    # The power of two that the tensor is multiplied by before. It is 1, except in formats of 8
    # bits, where it brings the largest magnitude to the end of the range, as the scale for each
    # tensor of NVIDIA's Transformer Engine does.
    scale: float


def effect_of(values: np.ndarray, format_: FloatFormat) -> Effect:
    """Return the effect of rounding values, of any float dtype, to a format."""
    values = values[values != 0].astype(np.float64)
    if not values.size:
        return Effect(0.0, 0.0, 0.0, 0.0, 1.0)
    finite = values[np.isfinite(values)]
    exponent = 0
    if format_.bits <= 8:
        exponent = exponent_for(format_, float(np.abs(finite).max(initial=0)))
    scaled = np.ldexp(finite, exponent)
    rounded = rounded_array(scaled, format_)
    kept = np.isfinite(rounded)
    squares = float(np.square(scaled[kept]).sum())
    return Effect(
        underflow=int((rounded == 0).sum()) / values.size,
        overflow=(values.size - int(kept.sum())) / values.size,
        error=math.sqrt(np.square((rounded - scaled)[kept]).sum() / squares) if squares else 0.0,
        subnormal=int((np.abs(scaled) < format_.smallest_normal).sum()) / values.size,
        scale=2.0**exponent,
    )
