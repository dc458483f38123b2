"""Translations of spatial transformers: grids of places, and bilinear samples of pictures there.

Places are x and y from -1 to 1, from corner to corner. P is the number of samples of a picture.
"""

from itertools import product
from typing import Callable, Dict

import numpy as np

from gluon_amp.handover.to_onnx.detection import rows_at
from gluon_amp.handover.to_onnx.writer import Node, Writer


def _regular(height: int, width: int) -> np.ndarray:
    """Return x and y of every place of a picture (2, height · width), counted from 0."""
    return np.stack(np.meshgrid(np.arange(width), np.arange(height))).reshape(2, -1)


def _affine(matrices: str, height: int, width: int, w: Writer) -> str:
    """Return the places (N, 2, P) to which matrices (N, 6) move a regular grid."""
    steps = np.array([[max(width - 1, 1)], [max(height - 1, 1)]]) / 2
    places = np.append(_regular(height, width) / steps - 1, np.ones((1, height * width)), axis=0)
    matrices = w.add("Reshape", matrices, w.integers([-1, 2, 3]))
    return w.add("MatMul", matrices, w.constant(places.astype(np.float32)))


def grid_generator(n: Node, w: Writer) -> str:
    """Places from affine matrices, or from a flow in pixels."""
    data = w.as_dtype(n.data, "float32")
    if n.text("transform_type") == "affine":
        places = _affine(data, *n.integers("target_shape"), w)
        return w.back(w.reshaped(places, n.out), n)
    height, width = n.data.shape[2:]
    regular = _regular(height, width).reshape(2, height, width).astype(np.float32)
    steps = np.array([width - 1, height - 1], np.float32).reshape(2, 1, 1) / 2
    moved = w.add("Div", w.add("Add", data, w.constant(regular)), w.constant(steps))
    return w.back(w.add("Sub", moved, w.scalar(1, "float32")), n)


def sampler(n: Node, w: Writer) -> str:
    """Samples of pictures at given places, with zeros outside."""
    places = w.add("Reshape", w.as_dtype(n.inputs[1], "float32"), w.integers([0, 2, -1]))
    return _sampled(n, places, w)


def transformer(n: Node, w: Writer) -> str:
    """Samples at the places to which affine matrices move a regular grid."""
    matrices = w.as_dtype(n.inputs[1], "float32")
    return _sampled(n, _affine(matrices, *n.integers("target_shape"), w), w)


def _sampled(n: Node, places: str, w: Writer) -> str:
    """Sum the four neighbours (N, P, C) of each place, by how near they are."""
    _, channels, height, width = n.data.shape
    flat = w.add("Reshape", w.as_dtype(n.data, "float32"), w.integers([0, channels, -1]))
    flat, one = w.add("Transpose", flat, perm=[0, 2, 1]), w.scalar(1, "float32")
    axes = []  # of x and y: the lower neighbour, and the distance from it
    for k, size in enumerate((width, height)):
        place = w.add("Gather", places, w.scalar(k, "int64"), axis=1)
        place = w.add("Mul", w.add("Add", place, one), w.scalar((size - 1) / 2, "float32"))
        lower = w.add("Floor", place)
        far = w.add("Sub", place, lower)
        axes.append([(lower, w.add("Sub", one, far)), (w.add("Add", lower, one), far)])
    parts = []
    for (x, near_x), (y, near_y) in product(*axes):
        (x, in_x), (y, in_y) = _inside(x, width, w), _inside(y, height, w)
        place = w.add("Add", x, w.add("Mul", y, w.scalar(width, "float32")))
        share = w.add("Mul", w.add("Mul", near_x, near_y), w.add("Mul", in_x, in_y))
        values = rows_at(flat, w.cast(place, "int64"), w)
        parts.append(w.add("Mul", values, w.add("Unsqueeze", share, w.integers([2]))))
    total = w.add("Transpose", w.add("Sum", *parts), perm=[0, 2, 1])
    return w.back(w.reshaped(total, n.out), n)


def _inside(place: str, size: int, w: Writer) -> tuple:
    """Return places within an axis, and 1 where they were, 0 where they were not."""
    clipped = w.add("Clip", place, w.scalar(0, "float32"), w.scalar(size - 1, "float32"))
    return clipped, w.cast(w.add("Equal", clipped, place), "float32")


TRANSLATIONS: Dict[str, Callable] = {
    "GridGenerator": grid_generator,
    "BilinearSampler": sampler,
    "SpatialTransformer": transformer,
}
