"""The chain rule of each operator, for `derivative`.

A rule is a function of the tape, to which it appends operators, of the call of its operator, and of
the gradient of the call's output. It returns the gradients of the inputs: of all, of the first
ones, or of none where the operator's attributes are not supported.
"""

import math
from typing import Callable

from gluon_amp.graph.attribute_values import integers


def _slope(slope: Callable) -> Callable:
    """Return the rule of an operator that acts on each element, from the slope there."""
    return lambda t, call, g: [t.times(g, slope(t, call))]


def _positive(t, x):
    return t.emit("_greater_scalar", x, scalar=0)


def _one_minus(t, x):
    return t.emit("_rminus_scalar", x, scalar=1)


def _sigmoid_slope(t, call):
    return t.times(call.y, _one_minus(t, call.y))


def _tanh_slope(t, call):
    return _one_minus(t, t.emit("square", call.y))


def _softsign_slope(t, call):
    return t.emit("square", _one_minus(t, t.emit("abs", call.y)))


ACTIVATIONS = {
    "relu": lambda t, call: _positive(t, call.y),
    "sigmoid": _sigmoid_slope,
    "tanh": _tanh_slope,
    "softrelu": lambda t, call: t.emit("sigmoid", call.x),
    "softsign": _softsign_slope,
}


def _one_or(t, call, left):
    """Return 1 where x > 0, and elsewhere `left`."""
    return t.emit("where", _positive(t, call.x), t.emit("ones_like", call.x), left)


def _leaky_slope(t, call):
    ones = t.emit("ones_like", call.x)
    return _one_or(t, call, t.emit("_mul_scalar", ones, scalar=call.number("slope", 0.25)))


def _prelu_slope(t, call):
    shape = (1, -1, *[1] * (len(call.shapes[0]) - 2))
    slopes = t.emit("Reshape", call.inputs[1], shape=shape)
    return _one_or(t, call, t.emit("broadcast_mul", t.emit("ones_like", call.x), slopes))


def _elu_slope(t, call):
    return _one_or(t, call, t.emit("_plus_scalar", call.y, scalar=call.number("slope", 0.25)))


def _gelu_slope(t, call):
    scaled = t.emit("_mul_scalar", call.x, scalar=1 / math.sqrt(2))
    share = t.emit("_plus_scalar", t.emit("erf", scaled), scalar=1)
    share = t.emit("_mul_scalar", share, scalar=0.5)
    density = t.emit("exp", t.emit("negative", t.emit("square", scaled)))
    density = t.emit("_mul_scalar", density, scalar=1 / math.sqrt(2 * math.pi))
    return t.emit("elemwise_add", share, t.times(call.x, density))


LEAKY = {
    "elu": _elu_slope,
    "gelu": _gelu_slope,
    "leaky": _leaky_slope,
    "prelu": _prelu_slope,
}


def _activation(t, call, g):
    return [t.times(g, ACTIVATIONS[call.attrs["act_type"]](t, call))]


def _leaky_relu(t, call, g):
    act = call.attrs.get("act_type", "leaky")
    return [t.times(g, LEAKY[act](t, call))] if act in LEAKY else []


def _fully_connected(t, call, g):
    weight = t.emit("transpose", call.inputs[1])
    options = {"num_hidden": call.shapes[1][1], "no_bias": True}
    if not call.flag("flatten", True):
        options["flatten"] = False
    product = t.emit("FullyConnected", g, weight, **options)
    return [t.emit("Reshape", product, shape=call.shapes[0])]


def _convolution(t, call, g):
    """The transposed convolution, as a convolution of the gradient with zeros in between.

    oneDNN's Deconvolution fails where a convolution reads the same weight.
    """
    if call.attrs.get("layout", "None") not in ("None", "NCW", "NCHW", "NCDHW"):
        return []
    (channels, *sizes), (filters, inside, *kernel) = call.shapes[0][1:], call.shapes[1]
    stride, dilate, pad = (
        integers(call.attrs, name, (default,) * len(kernel))
        for name, default in {"stride": 1, "dilate": 1, "pad": 0}.items()
    )
    reach = [d * (k - 1) for d, k in zip(dilate, kernel)]
    if any(r < p for r, p in zip(reach, pad)):
        return []
    shape = list(call.out_shape)
    for axis, (size, s, r, p) in enumerate(zip(sizes, stride, reach, pad), 2):
        g = _spread(t, g, shape, axis, s, size - r + 2 * p)
    groups = int(call.number("num_group", 1))
    parts = (groups, filters // groups, inside, *kernel)
    weight = t.emit("Reshape", call.inputs[1], shape=parts)
    weight = t.emit("transpose", weight, axes=(0, 2, 1, *range(3, len(parts))))
    weight = t.emit("Reshape", weight, shape=(channels, filters // groups, *kernel))
    weight = t.emit("reverse", weight, axis=tuple(range(2, 2 + len(kernel))))
    options = {
        "kernel": tuple(kernel),
        "dilate": dilate,
        "pad": tuple(r - p for r, p in zip(reach, pad)),
        "num_filter": channels,
        "num_group": groups,
        "no_bias": True,
    }
    return [t.emit("Convolution", g, weight, **options)]


def _spread(t, x, shape, axis, stride, size):
    """Put stride - 1 zeros after each element along an axis; keep `size`, and update `shape`."""
    if stride > 1:
        before, after = math.prod(shape[: axis + 1]), math.prod(shape[axis + 1 :])
        x = t.emit("Reshape", x, shape=(before, 1, after))
        shape[axis] *= stride
        zeros = [t.emit("zeros_like", x)] * (stride - 1)
        x = t.emit("Concat", x, *zeros, dim=1, num_args=stride)
        x = t.emit("Reshape", x, shape=tuple(shape))
    if shape[axis] > size:
        x = t.emit("slice_axis", x, axis=axis, begin=0, end=size)
        shape[axis] = size
    return x


def _pooling(t, call, g):
    """The mean over an image, or over windows that do not overlap."""
    if call.attrs.get("pool_type") != "avg":
        return []
    shape, out = call.shapes[0], call.out_shape
    if not call.flag("global_pool"):
        kernel = integers(call.attrs, "kernel")
        whole = all(n == k * m for n, k, m in zip(shape[2:], kernel, out[2:]))
        if not whole or integers(call.attrs, "stride") != kernel:
            return []
    spread, windows = list(out[:2]), list(out[:2])
    for n, m in zip(shape[2:], out[2:]):
        spread += [m, 1]
        windows += [m, n // m]
    size = math.prod(shape[2:]) / math.prod(out[2:])
    g = t.emit("_mul_scalar", t.emit("Reshape", g, shape=tuple(spread)), scalar=1 / size)
    return [t.emit("Reshape", t.emit("broadcast_to", g, shape=tuple(windows)), shape=shape)]


def _summed_to(t, g, shape, out_shape):
    """Return the gradient of an operand that was broadcast from `shape` to `out_shape`."""
    if shape == out_shape:
        return g
    missing = len(out_shape) - len(shape)
    axes = [k for k in range(len(out_shape)) if k < missing or shape[k - missing] != out_shape[k]]
    return t.emit("Reshape", t.emit("sum", g, axis=tuple(axes)), shape=shape)


def _binary(left: Callable, right: Callable) -> Callable:
    """Return the rule of an operator of two tensors, from the gradients of both operands."""

    def rule(t, call, g):
        a, b = call.inputs
        grads = left(t, g, a, b), right(t, g, a, b)
        return [_summed_to(t, h, shape, call.out_shape) for h, shape in zip(grads, call.shapes)]

    return rule


def _divided_right(t, g, a, b):
    quotient = t.emit("broadcast_div", a, t.emit("square", b))
    return t.emit("negative", t.emit("broadcast_mul", g, quotient))


ADD = _binary(lambda t, g, a, b: g, lambda t, g, a, b: g)
SUBTRACT = _binary(lambda t, g, a, b: g, lambda t, g, a, b: t.emit("negative", g))
MULTIPLY = _binary(
    lambda t, g, a, b: t.emit("broadcast_mul", g, b),
    lambda t, g, a, b: t.emit("broadcast_mul", g, a),
)
DIVIDE = _binary(lambda t, g, a, b: t.emit("broadcast_div", g, b), _divided_right)


def _reshaped(t, call, g):
    return [t.emit("Reshape", g, shape=call.shapes[0])]


def _transposed(t, call, g):
    axes = integers(call.attrs, "axes", tuple(range(len(call.shapes[0])))[::-1])
    inverse = sorted(range(len(axes)), key=axes.__getitem__)
    return [t.emit("transpose", g, axes=tuple(inverse))]


def _summed(t, call, g):
    axes = call.axes()
    kept = tuple(1 if k in axes else n for k, n in enumerate(call.shapes[0]))
    return [t.emit("broadcast_to", t.emit("Reshape", g, shape=kept), shape=call.shapes[0])]


def _averaged(t, call, g):
    count = math.prod(call.shapes[0][k] for k in call.axes())
    return _summed(t, call, t.emit("_mul_scalar", g, scalar=1 / count))


def _concatenated(t, call, g):
    axis = int(call.number("dim", call.number("axis", 1))) % len(call.out_shape)
    parts, begin = [], 0
    for shape in call.shapes:
        end = begin + shape[axis]
        parts.append(t.emit("slice_axis", g, axis=axis, begin=begin, end=end))
        begin = end
    return parts


def _layer_norm(t, call, g):
    """With n for the normalized data: the gradient minus its mean and its part along n, over σ."""
    dims = len(call.shapes[0])
    axis = int(call.number("axis", -1)) % dims
    gamma = t.emit("Reshape", call.inputs[1], shape=[-1 if k == axis else 1 for k in range(dims)])

    def mean(x):
        return t.emit("mean", x, axis=axis, keepdims=True)

    centred = t.emit("broadcast_sub", call.x, mean(call.x))
    variance = mean(t.emit("square", centred))
    per_sigma = t.emit("rsqrt", t.emit("_plus_scalar", variance, scalar=call.number("eps", 1e-5)))
    n = t.emit("broadcast_mul", centred, per_sigma)
    g = t.emit("broadcast_mul", g, gamma)
    along = t.emit("broadcast_mul", n, mean(t.times(g, n)))
    rest = t.emit("elemwise_sub", t.emit("broadcast_sub", g, mean(g)), along)
    return [t.emit("broadcast_mul", rest, per_sigma)]


def _scaled(factor: Callable) -> Callable:
    return lambda t, call, g: [t.emit("_mul_scalar", g, scalar=factor(call.number("scalar")))]


def _power(t, call, g):
    power = call.number("scalar")
    slope = t.emit("_power_scalar", call.x, scalar=power - 1)
    return [t.times(g, t.emit("_mul_scalar", slope, scalar=power))]


def _dot(t, call, g):
    """The products of matrices."""
    if call.flag("transpose_a") or call.flag("transpose_b") or {*map(len, call.shapes)} != {2}:
        return []
    left, right = call.inputs
    return [t.emit("dot", g, right, transpose_b=True), t.emit("dot", left, g, transpose_a=True)]


def _reciprocal_slope(t, call):
    return t.emit("_mul_scalar", t.emit("square", call.y), scalar=-1 / call.number("scalar"))


def _maximum_slope(t, call):
    return t.emit("_greater_scalar", call.x, scalar=call.number("scalar"))


def _unchanged(t, call, g):
    return [g] * len(call.inputs)


RULES = {
    "Activation": _activation,
    "Concat": _concatenated,
    "Convolution": _convolution,
    "Flatten": _reshaped,
    "FullyConnected": _fully_connected,
    "LayerNorm": _layer_norm,
    "LeakyReLU": _leaky_relu,
    "Pooling": _pooling,
    "Reshape": _reshaped,
    "_copy": _unchanged,
    "_div_scalar": _scaled(lambda scalar: 1 / scalar),
    "_maximum_scalar": _slope(_maximum_slope),
    "_minus_scalar": _unchanged,
    "_mul_scalar": _scaled(lambda scalar: scalar),
    "_plus_scalar": _unchanged,
    "_power_scalar": _power,
    "_rdiv_scalar": _slope(_reciprocal_slope),
    "_rminus_scalar": _scaled(lambda scalar: -1),
    "abs": _slope(lambda t, call: t.emit("sign", call.x)),
    "add_n": _unchanged,
    "broadcast_add": ADD,
    "broadcast_div": DIVIDE,
    "broadcast_mul": MULTIPLY,
    "broadcast_sub": SUBTRACT,
    "dot": _dot,
    "elemwise_add": ADD,
    "elemwise_div": DIVIDE,
    "elemwise_mul": MULTIPLY,
    "elemwise_sub": SUBTRACT,
    "exp": _slope(lambda t, call: call.y),
    "expand_dims": _reshaped,
    "log": _slope(lambda t, call: t.emit("reciprocal", call.x)),
    "mean": _averaged,
    "negative": _scaled(lambda scalar: -1),
    "relu": _slope(lambda t, call: _positive(t, call.y)),
    "sigmoid": _slope(_sigmoid_slope),
    "softsign": _slope(_softsign_slope),
    "sqrt": _slope(lambda t, call: t.emit("_rdiv_scalar", call.y, scalar=0.5)),
    "square": _slope(lambda t, call: t.emit("_mul_scalar", call.x, scalar=2)),
    "squeeze": _reshaped,
    "sum": _summed,
    "tanh": _slope(_tanh_slope),
    "transpose": _transposed,
}

# Operators whose gradient is zero
STOPS = frozenset(
    """
    BlockGrad _equal_scalar _greater_equal_scalar _greater_scalar _lesser_equal_scalar
    _lesser_scalar ones_like sign zeros_like
    """.split()
)
