"""Translations of operators that sample pictures: spatial transformers, deformable convolutions.

Places are x and y from -1 to 1, from corner to corner. P is the number of samples of a picture.
"""

from itertools import product
from typing import Callable, Dict

import numpy as np

from gluon_amp.handover.to_onnx.detection import rows_at
from gluon_amp.handover.to_onnx.layers import window
from gluon_amp.handover.to_onnx.writer import Node, UntranslatableError, Writer


def _regular(height: int, width: int) -> np.ndarray:
    """Return x and y of every place of a picture (2, height · width), counted from 0."""
    return np.stack(np.meshgrid(np.arange(width), np.arange(height))).reshape(2, -1)


def _affine(matrices: str, n: Node, w: Writer) -> str:
    """Return the places (N, 2, P) to which matrices (N, 6) move a regular grid."""
    height, width = n.integers("target_shape")
    steps = np.array([[max(width - 1, 1)], [max(height - 1, 1)]]) / 2
    places = np.append(_regular(height, width) / steps - 1, np.ones((1, height * width)), axis=0)
    matrices = w.add("Reshape", matrices, w.integers([-1, 2, 3]))
    return w.add("MatMul", matrices, w.constant(places.astype(np.float32)))


def grid_generator(n: Node, w: Writer) -> str:
    """Places from affine matrices, or from a flow in pixels."""
    data = w.as_dtype(n.data, "float32")
    if n.text("transform_type") == "affine":
        return w.back(w.reshaped(_affine(data, n, w), n.out), n)
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
    return _sampled(n, _affine(matrices, n, w), w)


def _sampled(n: Node, places: str, w: Writer) -> str:
    """Return samples at places (N, 2, P) from -1 to 1."""
    steps = np.array([[n.data.shape[3] - 1], [n.data.shape[2] - 1]], np.float32) / 2
    pixels = w.add("Mul", w.add("Add", places, w.scalar(1, "float32")), w.constant(steps))
    x, y = (w.add("Gather", pixels, w.scalar(k, "int64"), axis=1) for k in (0, 1))
    values = w.add("Transpose", _values_at(n, x, y, w), perm=[0, 2, 1])
    return w.back(w.reshaped(values, n.out), n)


def _values_at(n: Node, x: str, y: str, w: Writer) -> str:
    """Return values (N, P, C) at pixels x and y (N, P): the four neighbours, by how near."""
    _, channels, height, width = n.data.shape
    flat = w.add("Reshape", w.as_dtype(n.data, "float32"), w.integers([0, channels, -1]))
    flat, one = w.add("Transpose", flat, perm=[0, 2, 1]), w.scalar(1, "float32")
    axes = []  # of x and y: the lower neighbour and the upper one, and how near they are
    for place in (x, y):
        lower = w.add("Floor", place)
        far = w.add("Sub", place, lower)
        axes.append([(lower, w.add("Sub", one, far)), (w.add("Add", lower, one), far)])
    parts = []
    for (column, near_x), (row, near_y) in product(*axes):
        (column, in_x), (row, in_y) = _inside(column, width, w), _inside(row, height, w)
        place = w.add("Add", column, w.add("Mul", row, w.scalar(width, "float32")))
        share = w.add("Mul", w.add("Mul", near_x, near_y), w.add("Mul", in_x, in_y))
        values = rows_at(flat, w.cast(place, "int64"), w)
        parts.append(w.add("Mul", values, w.add("Unsqueeze", share, w.integers([2]))))
    return w.add("Sum", *parts)


def _inside(place: str, size: int, w: Writer) -> tuple:
    """Return places within an axis, and 1 where they were, 0 where they were not."""
    clipped = w.add("Clip", place, w.scalar(0, "float32"), w.scalar(size - 1, "float32"))
    return clipped, w.cast(w.add("Equal", clipped, place), "float32")


def deformable_convolution(n: Node, w: Writer) -> str:
    """A convolution of samples beside the kernel's places, which a mask may weigh."""
    if n.integer("num_group", 1) != 1 or n.integer("num_deformable_group", 1) != 1:
        raise UntranslatableError("groups")
    inputs = [w.as_dtype(one, "float32") for one in n.inputs]
    modulated = "Modulated" in n.op
    weight, *bias = inputs[2 + modulated :]
    (height, width), size = n.out.shape[2:], int(np.prod(n.integers("kernel")))
    offsets = w.add("Reshape", inputs[1], w.integers([0, size, 2, height * width]))
    y, x = (
        w.add("Add", w.add("Gather", offsets, w.scalar(k, "int64"), axis=2), w.constant(places))
        for k, places in enumerate(_kernel_places(n))
    )
    y, x = (w.add("Reshape", one, w.integers([0, -1])) for one in (y, x))
    if modulated:
        share = w.add("Reshape", inputs[2], w.integers([0, -1, 1]))
    else:  # which has the border's values up to a pixel beyond it, and nothing before it
        (y, in_y), (x, in_x) = (_up_to(p, k, w) for p, k in zip((y, x), n.data.shape[2:]))
        share = w.add("Unsqueeze", w.add("Mul", in_y, in_x), w.integers([2]))
    values = w.add("Mul", _values_at(n, x, y, w), share)
    values = w.add("Reshape", values, w.integers([0, size, height * width, n.data.shape[1]]))
    values = w.add("Transpose", values, perm=[0, 2, 3, 1])
    values = w.add("Reshape", values, w.integers([0, 0, -1]))
    weight = w.add("Reshape", weight, w.integers([n.out.shape[1], -1]))
    found = w.add("MatMul", values, w.add("Transpose", weight, perm=[1, 0]))
    found = w.add("Add", found, *bias) if bias else found
    return w.back(w.reshaped(w.add("Transpose", found, perm=[0, 2, 1]), n.out), n)


def _kernel_places(n: Node) -> np.ndarray:
    """Return y and x of the places of a convolution's windows (2, kernel, height · width)."""
    attributes = window(n)
    kernels, strides, pads = (attributes[key] for key in ("kernel_shape", "strides", "pads"))
    axes = zip(n.out.shape[2:], kernels, strides, attributes["dilations"], pads)
    y, x = (
        np.add.outer(np.arange(kernel) * dilation - pad, np.arange(size) * stride)
        for size, kernel, stride, dilation, pad in axes
    )
    places = np.stack(np.broadcast_arrays(y[:, None, :, None], x[None, :, None, :]))
    return places.astype(np.float32).reshape(2, y.shape[0] * x.shape[0], -1)


def _up_to(place: str, size: int, w: Writer) -> tuple:
    """Return places that are at most the last one, and 1 where they were from 0 to the size."""
    first = w.add("GreaterOrEqual", place, w.scalar(0, "float32"))
    both = w.add("And", first, w.add("Less", place, w.scalar(size, "float32")))
    return w.add("Min", place, w.scalar(size - 1, "float32")), w.cast(both, "float32")


TRANSLATIONS: Dict[str, Callable] = {
    "GridGenerator": grid_generator,
    "BilinearSampler": sampler,
    "SpatialTransformer": transformer,
    "_contrib_DeformableConvolution": deformable_convolution,
    "_contrib_ModulatedDeformableConvolution": deformable_convolution,
}
