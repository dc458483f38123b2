"""Grey images in another size, with the same bytes on every machine."""

from typing import Any, Dict

import numpy as np


def enlarge(images: np.ndarray, size: int, white: int) -> np.ndarray:
    """Resize square grey images, up to the level `white`, to uint8, with bilinear interpolation.

    The weights are whole numbers, so the sums are exact and the result has the same bytes on every
    machine. The vectorised resize functions of libraries do not guarantee this.
    """
    small, unit = images.shape[-1], 2 * size  # positions and weights are multiples of 1 / unit
    centre = np.clip((2 * np.arange(size) + 1) * small - size, 0, (small - 1) * unit)
    left = np.minimum(centre // unit, small - 2)
    weights = np.zeros((size, small))
    weights[np.arange(size), left] = (left + 1) * unit - centre
    weights[np.arange(size), left + 1] = centre - left * unit
    result = np.empty((len(images), size, size), np.uint8)
    for image, out in zip(images, result):  # one by one: all of them in float64 may be gigabytes
        out[...] = np.rint(weights @ (image * 255.0) @ weights.T / (white * unit**2))
    return result


def described(size: int, mean: float, std: float) -> Dict[str, Any]:
    """Return what makes a grey image an input, as `Source.preprocessing` says it."""
    return {
        "colours": "grey from 0 to 1, three times",
        "resize": f"to {size} x {size}",
        "interpolation": "bilinear, without antialiasing",
        "mean": [mean] * 3,
        "std": [std] * 3,
    }
