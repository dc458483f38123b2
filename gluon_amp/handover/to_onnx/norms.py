"""Translations of norms and of softmax, computed in float32."""

from typing import Callable, Dict, List

import numpy as np

from gluon_amp.handover.to_onnx.shapes import positions
from gluon_amp.handover.to_onnx.writer import Node, Writer


def batch_norm(n: Node, w: Writer) -> str:
    """A BatchNorm in inference."""
    value, gamma, beta, mean, variance = (w.as_dtype(one, n.wide) for one in n.inputs)
    if n.flag("fix_gamma", True):
        gamma = w.constant(np.ones(n.inputs[1].shape, n.wide), "ones")
    order = list(range(n.data.rank))
    order.insert(1, order.pop(n.data.axis(n.integer("axis", 1))))
    value = w.transposed(value, order)
    eps = n.number("eps", 1e-3)
    value = w.add("BatchNormalization", value, gamma, beta, mean, variance, epsilon=eps)
    if n.op.endswith("WithReLU"):
        value = w.add("Relu", value)
    return w.back(w.transposed(value, np.argsort(order).tolist()), n)


def _normalized(value: str, axes: List[int], eps: float, n: Node, w: Writer) -> str:
    """Return values with mean 0 and variance 1 over some axes."""
    difference = w.add("Sub", value, w.add("ReduceMean", value, axes=axes, keepdims=1))
    square = w.add("Mul", difference, difference)
    variance = w.add("ReduceMean", square, axes=axes, keepdims=1)
    epsilon = w.scalar(n.number("eps", eps), n.wide)
    return w.add("Div", difference, w.add("Sqrt", w.add("Add", variance, epsilon)))


def _shifted(value: str, axis: int, rank: int, n: Node, w: Writer) -> str:
    """Return gamma · value + beta, where these belong to an axis."""
    gamma, beta = (w.as_dtype(one, n.wide) for one in n.inputs[1:])
    if axis != rank - 1:
        shape = w.integers([-1 if k == axis else 1 for k in range(rank)])
        gamma, beta = (w.add("Reshape", one, shape) for one in (gamma, beta))
    return w.add("Add", w.add("Mul", value, gamma), beta)


def layer_norm(n: Node, w: Writer) -> str:
    """A LayerNorm, from the operators that opset 13 has, or an InstanceNorm over all places."""
    axis, eps = n.data.axis(n.integer("axis", -1)), 1e-5
    axes = [axis]
    if n.op == "InstanceNorm":
        axis, eps, axes = 1, 1e-3, list(range(2, n.data.rank))
    value = _normalized(w.as_dtype(n.data, n.wide), axes, eps, n, w)
    return w.back(_shifted(value, axis, n.data.rank, n, w), n)


def group_norm(n: Node, w: Writer) -> str:
    """A GroupNorm; MXNet's gamma and beta have a value for each group, or for each channel."""
    groups = n.integer("num_groups", 1)
    value = w.add("Reshape", w.as_dtype(n.data, n.wide), w.integers([0, groups, -1]))
    value = _normalized(value, [2], 1e-5, n, w)
    if n.inputs[1].shape[0] == n.data.shape[1]:
        return w.back(_shifted(w.reshaped(value, n.out), 1, n.data.rank, n, w), n)
    return w.back(w.reshaped(_shifted(value, 1, 3, n, w), n.out), n)


def l2_normalization(n: Node, w: Writer) -> str:
    """x / sqrt(sum of x² + eps), over all axes but the first, over channels, or over places."""
    everything = list(range(1, n.data.rank))
    axes = {"instance": everything, "channel": [1], "spatial": everything[1:]}
    value = w.as_dtype(n.data, n.wide)
    over = w.integers(axes[n.text("mode", "instance")])
    total = w.add("ReduceSum", w.add("Mul", value, value), over, keepdims=1)
    eps = w.scalar(n.number("eps", 1e-10), n.wide)
    return w.back(w.add("Div", value, w.add("Sqrt", w.add("Add", total, eps))), n)


def lrn(n: Node, w: Writer) -> str:
    """A local response norm."""
    alpha, beta, bias = n.number("alpha", 1e-4), n.number("beta", 0.75), n.number("knorm", 2)
    value, size = w.as_dtype(n.data, n.wide), n.integer("nsize")
    return w.back(w.add("LRN", value, alpha=alpha, beta=beta, bias=bias, size=size), n)


def softmax(n: Node, w: Writer) -> str:
    """softmax, softmin and log_softmax, with a temperature and with lengths; SoftmaxActivation."""
    axis = 1 if n.text("mode") == "channel" else n.data.axis(n.integer("axis", -1))
    value = w.as_dtype(n.data, n.wide)
    if n.number("temperature", 1) != 1:
        value = w.add("Div", value, w.scalar(n.number("temperature"), n.wide))
    if n.op == "softmin":
        value = w.add("Neg", value)
    function = "LogSoftmax" if n.op == "log_softmax" else "Softmax"
    if not n.flag("use_length"):
        return w.back(w.add(function, value, axis=axis), n)
    limit = w.add("Unsqueeze", w.cast(n.inputs[1], "int64"), w.integers([axis]))
    inside = w.add("Less", positions(n.data, axis, w), limit)
    value = w.add("Where", inside, value, w.scalar(-1e38, n.wide))
    value = w.add(function, value, axis=axis)
    return w.back(w.add("Where", inside, value, w.scalar(0, n.wide)), n)


def softmax_cross_entropy(n: Node, w: Writer) -> str:
    """The sum of -log softmax at the labels."""
    logarithms = w.add("LogSoftmax", w.as_dtype(n.data, n.wide), axis=1)
    labels = w.add("Unsqueeze", w.cast(n.inputs[1], "int64"), w.integers([1]))
    chosen = w.add("GatherElements", logarithms, labels, axis=1)
    total = w.add("ReduceSum", chosen, w.integers([0, 1]), keepdims=0)
    return w.back(w.add("Reshape", w.add("Neg", total), w.integers([1])), n)


TRANSLATIONS: Dict[str, Callable] = {
    **dict.fromkeys(
        ["BatchNorm", "BatchNorm_v1", "_contrib_SyncBatchNorm", "_contrib_BatchNormWithReLU"],
        batch_norm,
    ),
    **dict.fromkeys(["LayerNorm", "InstanceNorm"], layer_norm),
    "GroupNorm": group_norm,
    "L2Normalization": l2_normalization,
    "LRN": lrn,
    **dict.fromkeys("softmax softmin log_softmax SoftmaxActivation".split(), softmax),
    "softmax_cross_entropy": softmax_cross_entropy,
}
