"""The chain rule of each operator, for `derivative`.

A rule is a function of the call of its operator, which can append operators, and of the gradient of
the call's output. It returns the gradients of the inputs: of all, of the first ones, or of none
where the operator's attributes are not supported.
"""

import math
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from gluon_amp.graph.attribute_values import flag, integer, integers, number
from gluon_amp.graph.symbol_json import Entry

Shape = Tuple[int, ...]


class Call(NamedTuple):
    """One operator: its attributes, the tensors that it reads and returns, and their shapes."""

    emit: Callable[..., Entry]  # appends an operator, from its name, inputs and attributes
    attrs: Dict[str, str]
    inputs: List[Entry]
    y: Entry
    shapes: List[Shape]
    out_shape: Shape

    @property
    def x(self) -> Entry:
        """The first input."""
        return self.inputs[0]

    def times(self, *factors: Entry) -> Entry:
        """Append the product of tensors of one shape."""
        product, *others = factors
        for factor in others:
            product = self.emit("elemwise_mul", product, factor)
        return product

    def axes(self) -> List[int]:
        """Return the axes that a reduction reduces."""
        dims = range(len(self.shapes[0]))
        axes = integers(self.attrs, "axis")
        named = {k % len(dims) for k in axes or dims}
        return [k for k in dims if (k in named) != (bool(axes) and flag(self.attrs, "exclude"))]


Rule = Callable[[Call, Entry], List[Entry]]
Slope = Callable[[Call], Entry]


def _slope(slope: Slope) -> Rule:
    """Return the rule of an operator that acts on each element, from the slope there."""
    return lambda call, g: [call.times(g, slope(call))]


def _positive(call: Call, x: Entry) -> Entry:
    return call.emit("_greater_scalar", x, scalar=0)


def _one_minus(call: Call, x: Entry) -> Entry:
    return call.emit("_rminus_scalar", x, scalar=1)


def _sigmoid_slope(call: Call) -> Entry:
    return call.times(call.y, _one_minus(call, call.y))


def _tanh_slope(call: Call) -> Entry:
    return _one_minus(call, call.emit("square", call.y))


def _softsign_slope(call: Call) -> Entry:
    return call.emit("square", _one_minus(call, call.emit("abs", call.y)))


ACTIVATIONS: Dict[str, Slope] = {
    "relu": lambda call: _positive(call, call.y),
    "sigmoid": _sigmoid_slope,
    "tanh": _tanh_slope,
    "softrelu": lambda call: call.emit("sigmoid", call.x),
    "softsign": _softsign_slope,
}


def _one_or(call: Call, left: Entry) -> Entry:
    """Return 1 where x > 0, and elsewhere `left`."""
    return call.emit("where", _positive(call, call.x), call.emit("ones_like", call.x), left)


def _leaky_slope(call: Call) -> Entry:
    ones = call.emit("ones_like", call.x)
    return _one_or(call, call.emit("_mul_scalar", ones, scalar=number(call.attrs, "slope", 0.25)))


def _prelu_slope(call: Call) -> Entry:
    shape = (1, -1, *[1] * (len(call.shapes[0]) - 2))
    slopes = call.emit("Reshape", call.inputs[1], shape=shape)
    return _one_or(call, call.emit("broadcast_mul", call.emit("ones_like", call.x), slopes))


def _elu_slope(call: Call) -> Entry:
    return _one_or(
        call, call.emit("_plus_scalar", call.y, scalar=number(call.attrs, "slope", 0.25))
    )


def _gelu_slope(call: Call) -> Entry:
    scaled = call.emit("_mul_scalar", call.x, scalar=1 / math.sqrt(2))
    share = call.emit("_plus_scalar", call.emit("erf", scaled), scalar=1)
    share = call.emit("_mul_scalar", share, scalar=0.5)
    density = call.emit("exp", call.emit("negative", call.emit("square", scaled)))
    density = call.emit("_mul_scalar", density, scalar=1 / math.sqrt(2 * math.pi))
    return call.emit("elemwise_add", share, call.times(call.x, density))


LEAKY: Dict[str, Slope] = {
    "elu": _elu_slope,
    "gelu": _gelu_slope,
    "leaky": _leaky_slope,
    "prelu": _prelu_slope,
}


def _activation(call: Call, g: Entry) -> List[Entry]:
    return [call.times(g, ACTIVATIONS[call.attrs["act_type"]](call))]


def _leaky_relu(call: Call, g: Entry) -> List[Entry]:
    act = call.attrs.get("act_type", "leaky")
    return [call.times(g, LEAKY[act](call))] if act in LEAKY else []


def _fully_connected(call: Call, g: Entry) -> List[Entry]:
    weight = call.emit("transpose", call.inputs[1])
    options = {"num_hidden": call.shapes[1][1], "no_bias": True}
    if not flag(call.attrs, "flatten", True):
        options["flatten"] = False
    product = call.emit("FullyConnected", g, weight, **options)
    return [call.emit("Reshape", product, shape=call.shapes[0])]


def _convolution(call: Call, g: Entry) -> List[Entry]:
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
        g = _spread(call, g, shape, axis, s, size - r + 2 * p)
    groups = integer(call.attrs, "num_group", 1)
    parts = (groups, filters // groups, inside, *kernel)
    weight = call.emit("Reshape", call.inputs[1], shape=parts)
    weight = call.emit("transpose", weight, axes=(0, 2, 1, *range(3, len(parts))))
    weight = call.emit("Reshape", weight, shape=(channels, filters // groups, *kernel))
    weight = call.emit("reverse", weight, axis=tuple(range(2, 2 + len(kernel))))
    options = {
        "kernel": tuple(kernel),
        "dilate": dilate,
        "pad": tuple(r - p for r, p in zip(reach, pad)),
        "num_filter": channels,
        "num_group": groups,
        "no_bias": True,
    }
    return [call.emit("Convolution", g, weight, **options)]


def _spread(call: Call, x: Entry, shape: List[int], axis: int, stride: int, size: int) -> Entry:
    """Put stride - 1 zeros after each element along an axis; keep `size`, and update `shape`."""
    if stride > 1:
        before, after = math.prod(shape[: axis + 1]), math.prod(shape[axis + 1 :])
        x = call.emit("Reshape", x, shape=(before, 1, after))
        shape[axis] *= stride
        zeros = [call.emit("zeros_like", x)] * (stride - 1)
        x = call.emit("Concat", x, *zeros, dim=1, num_args=stride)
        x = call.emit("Reshape", x, shape=tuple(shape))
    if shape[axis] > size:
        x = call.emit("slice_axis", x, axis=axis, begin=0, end=size)
        shape[axis] = size
    return x


def _pooling(call: Call, g: Entry) -> List[Entry]:
    """The mean over an image, or over windows that do not overlap."""
    if call.attrs.get("pool_type") != "avg":
        return []
    shape, out = call.shapes[0], call.out_shape
    if not flag(call.attrs, "global_pool"):
        kernel = integers(call.attrs, "kernel")
        whole = all(n == k * m for n, k, m in zip(shape[2:], kernel, out[2:]))
        if not whole or integers(call.attrs, "stride") != kernel:
            return []
    spread, windows = list(out[:2]), list(out[:2])
    for n, m in zip(shape[2:], out[2:]):
        spread += [m, 1]
        windows += [m, n // m]
    size = math.prod(shape[2:]) / math.prod(out[2:])
    g = call.emit("_mul_scalar", call.emit("Reshape", g, shape=tuple(spread)), scalar=1 / size)
    return [call.emit("Reshape", call.emit("broadcast_to", g, shape=tuple(windows)), shape=shape)]


def _summed_to(call: Call, g: Entry, shape: Shape, out_shape: Shape) -> Entry:
    """Return the gradient of an operand that was broadcast from `shape` to `out_shape`."""
    if shape == out_shape:
        return g
    missing = len(out_shape) - len(shape)
    axes = [k for k in range(len(out_shape)) if k < missing or shape[k - missing] != out_shape[k]]
    return call.emit("Reshape", call.emit("sum", g, axis=tuple(axes)), shape=shape)


Operand = Callable[[Call, Entry, Entry, Entry], Entry]  # its gradient, from that of the result


def _binary(left: Operand, right: Operand) -> Rule:
    """Return the rule of an operator of two tensors, from the gradients of both operands."""

    def rule(call: Call, g: Entry) -> List[Entry]:
        a, b = call.inputs
        grads = left(call, g, a, b), right(call, g, a, b)
        return [_summed_to(call, h, shape, call.out_shape) for h, shape in zip(grads, call.shapes)]

    return rule


def _divided_right(call: Call, g: Entry, a: Entry, b: Entry) -> Entry:
    quotient = call.emit("broadcast_div", a, call.emit("square", b))
    return call.emit("negative", call.emit("broadcast_mul", g, quotient))


ADD = _binary(lambda call, g, a, b: g, lambda call, g, a, b: g)
SUBTRACT = _binary(lambda call, g, a, b: g, lambda call, g, a, b: call.emit("negative", g))
MULTIPLY = _binary(
    lambda call, g, a, b: call.emit("broadcast_mul", g, b),
    lambda call, g, a, b: call.emit("broadcast_mul", g, a),
)
DIVIDE = _binary(lambda call, g, a, b: call.emit("broadcast_div", g, b), _divided_right)


def _reshaped(call: Call, g: Entry) -> List[Entry]:
    return [call.emit("Reshape", g, shape=call.shapes[0])]


def _transposed(call: Call, g: Entry) -> List[Entry]:
    axes = integers(call.attrs, "axes", tuple(range(len(call.shapes[0])))[::-1])
    inverse = sorted(range(len(axes)), key=axes.__getitem__)
    return [call.emit("transpose", g, axes=tuple(inverse))]


def _summed(call: Call, g: Entry) -> List[Entry]:
    axes = call.axes()
    kept = tuple(1 if k in axes else n for k, n in enumerate(call.shapes[0]))
    return [call.emit("broadcast_to", call.emit("Reshape", g, shape=kept), shape=call.shapes[0])]


def _averaged(call: Call, g: Entry) -> List[Entry]:
    count = math.prod(call.shapes[0][k] for k in call.axes())
    return _summed(call, call.emit("_mul_scalar", g, scalar=1 / count))


def _concatenated(call: Call, g: Entry) -> List[Entry]:
    axis = integer(call.attrs, "dim", integer(call.attrs, "axis", 1)) % len(call.out_shape)
    parts, begin = [], 0
    for shape in call.shapes:
        end = begin + shape[axis]
        parts.append(call.emit("slice_axis", g, axis=axis, begin=begin, end=end))
        begin = end
    return parts


def _layer_norm(call: Call, g: Entry) -> List[Entry]:
    """With n for the normalized data: the gradient minus its mean and its part along n, over σ."""
    dims = len(call.shapes[0])
    axis = integer(call.attrs, "axis", -1) % dims
    gamma = call.emit(
        "Reshape", call.inputs[1], shape=[-1 if k == axis else 1 for k in range(dims)]
    )

    def mean(x: Entry) -> Entry:
        return call.emit("mean", x, axis=axis, keepdims=True)

    centred = call.emit("broadcast_sub", call.x, mean(call.x))
    variance = mean(call.emit("square", centred))
    per_sigma = call.emit(
        "rsqrt", call.emit("_plus_scalar", variance, scalar=number(call.attrs, "eps", 1e-5))
    )
    n = call.emit("broadcast_mul", centred, per_sigma)
    g = call.emit("broadcast_mul", g, gamma)
    along = call.emit("broadcast_mul", n, mean(call.times(g, n)))
    rest = call.emit("elemwise_sub", call.emit("broadcast_sub", g, mean(g)), along)
    return [call.emit("broadcast_mul", rest, per_sigma)]


def _scaled(factor: Callable[[float], float]) -> Rule:
    return lambda call, g: [
        call.emit("_mul_scalar", g, scalar=factor(number(call.attrs, "scalar")))
    ]


def _power(call: Call, g: Entry) -> List[Entry]:
    power = number(call.attrs, "scalar")
    slope = call.emit("_power_scalar", call.x, scalar=power - 1)
    return [call.times(g, call.emit("_mul_scalar", slope, scalar=power))]


def _dot(call: Call, g: Entry) -> List[Entry]:
    """The products of matrices."""
    transposed = flag(call.attrs, "transpose_a") or flag(call.attrs, "transpose_b")
    if transposed or {*map(len, call.shapes)} != {2}:
        return []
    left, right = call.inputs
    return [
        call.emit("dot", g, right, transpose_b=True),
        call.emit("dot", left, g, transpose_a=True),
    ]


def _reciprocal_slope(call: Call) -> Entry:
    return call.emit(
        "_mul_scalar", call.emit("square", call.y), scalar=-1 / number(call.attrs, "scalar")
    )


def _maximum_slope(call: Call) -> Entry:
    return call.emit("_greater_scalar", call.x, scalar=number(call.attrs, "scalar"))


def _unchanged(call: Call, g: Entry) -> List[Entry]:
    return [g] * len(call.inputs)


# By the names of `classic`
RULES: Dict[str, Optional[Rule]] = {
    # Their gradient is zero.
    **dict.fromkeys(("BlockGrad", "ones_like", "sign", "zeros_like")),
    **dict.fromkeys(f"_{name}_scalar" for name in ("equal", "greater", "lesser")),
    **dict.fromkeys(("_greater_equal_scalar", "_lesser_equal_scalar")),
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
    "abs": _slope(lambda call: call.emit("sign", call.x)),
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
    "exp": _slope(lambda call: call.y),
    "expand_dims": _reshaped,
    "log": _slope(lambda call: call.emit("reciprocal", call.x)),
    "mean": _averaged,
    "negative": _scaled(lambda scalar: -1),
    "relu": _slope(lambda call: _positive(call, call.y)),
    "sigmoid": _slope(_sigmoid_slope),
    "softsign": _slope(_softsign_slope),
    "sqrt": _slope(lambda call: call.emit("_rdiv_scalar", call.y, scalar=0.5)),
    "square": _slope(lambda call: call.emit("_mul_scalar", call.x, scalar=2)),
    "squeeze": _reshaped,
    "sum": _summed,
    "tanh": _slope(_tanh_slope),
    "transpose": _transposed,
}
