"""Translations of operators on pictures: pooling, resizes, normalization."""

from functools import partial
from typing import Callable, Dict

import numpy as np

from gluon_amp.handover.to_onnx.layers import window
from gluon_amp.handover.to_onnx.writer import Node, UntranslatableError, Writer


def pooling(n: Node, w: Writer) -> str:
    """Pooling, global or by a window, whose last window may reach over the border."""
    kind, rank, attributes = n.text("pool_type", "max"), n.data.rank - 2, window(n)
    if kind == "lp":
        raise UntranslatableError("pool_type lp")
    if n.flag("global_pool"):
        if kind == "sum":
            return w.add("ReduceSum", n.data, w.integers(range(2, rank + 2)), keepdims=1)
        return w.add("GlobalMaxPool" if kind == "max" else "GlobalAveragePool", n.data)
    del attributes["dilations"]
    kernel, strides, pads = (attributes[key] for key in ("kernel_shape", "strides", "pads"))
    # How far the last window reaches over the border; ONNX's ceil_mode drops windows, and counts
    # such places in an average, which MXNet does not.
    sizes = zip(n.out.shape[2:], n.data.shape[2:], kernel, strides, pads)
    over = [max(0, (o - 1) * stride + k - size - pad) for o, size, k, stride, pad in sizes]
    attributes["pads"] = (*pads[:rank], *over)
    if kind == "max":
        return w.add("MaxPool", n.data, **attributes)
    # Zeros outside count, which an average corrects: the places of each window are known. A Pad
    # before it would be wrong: onnxruntime 1.19 fuses it, and then its zeros do not count.
    found = w.add("AveragePool", n.data, count_include_pad=1, **attributes)
    factor = np.array(float(np.prod(kernel)))
    if kind == "avg":
        factor = factor / _counts(n, kernel, strides, pads)
    if (factor == 1).all():
        return found
    return w.add("Mul", found, w.constant(factor.astype(n.out.dtype)))


def _counts(n: Node, kernel: tuple, strides: tuple, pads: tuple) -> np.ndarray:
    """Return how many places of each window an average of MXNet divides by."""
    counts = np.ones(())
    for k, (size, places) in enumerate(zip(n.data.shape[2:], n.out.shape[2:])):
        margin = pads[k] if n.flag("count_include_pad", True) else 0
        begin = np.arange(places) * strides[k] - pads[k]
        end = np.minimum(begin + kernel[k], size + margin)
        counts = counts[..., None] * (end - np.maximum(begin, -margin))
    return counts


def resize(n: Node, w: Writer) -> str:
    """A bilinear resize, or an adaptive pooling: a product with a matrix for each of the last axes.

    Runtimes differ in how they place the corners of a resize.
    """
    matrix = _averages
    if n.op == "_contrib_BilinearResize2D":
        matrix = partial(_interpolation, align_corners=n.flag("align_corners", True))
    sizes = zip(n.data.shape[2:], n.out.shape[2:])
    rows, columns = (matrix(*pair).astype(n.wide) for pair in sizes)
    value = w.add("MatMul", w.as_dtype(n.data, n.wide), w.constant(columns))
    return w.back(w.add("MatMul", w.constant(rows.T), value), n)


def _averages(size: int, into: int) -> np.ndarray:
    """Return the matrix of an average over `into` windows of `size` places."""
    matrix = np.zeros((size, into))
    for k in range(into):
        begin, end = k * size // into, -(-(k + 1) * size // into)
        matrix[begin:end, k] = 1 / (end - begin)
    return matrix


def upsampling(n: Node, w: Writer) -> str:
    """Nearest neighbours repeated, or a transposed convolution whose weight is an input."""
    scale = n.integer("scale", 1)
    if n.text("sample_type") == "bilinear":
        kernel, pads = (2 * scale - scale % 2,) * 2, (scale // 2,) * 4
        options = {"kernel_shape": kernel, "strides": (scale,) * 2, "pads": pads}
        return w.add("ConvTranspose", *n.inputs, group=n.data.shape[1], **options)
    if len(n.inputs) > 1:
        raise UntranslatableError("several inputs: upsample and concatenate them one by one")
    scales = w.constant(np.array([1, 1, scale, scale], np.float32))
    places = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return w.add("Resize", n.data, "", scales, mode="nearest", **places)


def _interpolation(size: int, into: int, align_corners: bool) -> np.ndarray:
    """Return the matrix of a linear interpolation from `size` places to `into` places."""
    if align_corners:
        places = np.arange(into) * ((size - 1) / (into - 1) if into > 1 else 0)
    else:
        places = np.maximum((np.arange(into) + 0.5) * size / into - 0.5, 0)
    matrix = np.zeros((size, into))
    low = np.minimum(places.astype(int), size - 1)
    high = np.minimum(low + 1, size - 1)
    np.add.at(matrix, (low, np.arange(into)), 1 - (places - low))
    np.add.at(matrix, (high, np.arange(into)), places - low)
    return matrix


def to_tensor(n: Node, w: Writer) -> str:
    """Channels first, and bytes as fractions of 255."""
    rank = n.data.rank
    value = w.transposed(n.data, [*range(rank - 3), rank - 1, rank - 3, rank - 2])
    return w.add("Div", w.cast(value, n.out.dtype), w.scalar(255, n.out.dtype))


def normalize(n: Node, w: Writer) -> str:
    """Subtract each channel's mean, and divide by its deviation."""
    mean, deviation = (
        w.constant(np.array(n.numbers(key, (k,)), n.out.dtype).reshape(-1, 1, 1))
        for k, key in enumerate(("mean", "std"))
    )
    return w.add("Div", w.add("Sub", n.data, mean), deviation)


TRANSLATIONS: Dict[str, Callable] = {
    **dict.fromkeys(["Pooling", "Pooling_v1"], pooling),
    **dict.fromkeys(["_contrib_AdaptiveAvgPooling2D", "_contrib_BilinearResize2D"], resize),
    "UpSampling": upsampling,
    "_image_to_tensor": to_tensor,
    "_image_normalize": normalize,
}
