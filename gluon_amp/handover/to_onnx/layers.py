"""Translations of layers: convolutions, pooling, norms, activations, dense layers, attention."""

from typing import Callable, Dict, List, Tuple

import numpy as np

from gluon_amp.handover.to_onnx.writer import Node, Tensor, UntranslatableError, Writer

PLAIN_LAYOUTS = ("None", "NCW", "NCHW", "NCDHW")


def _window(n: Node, pad: str = "pad") -> dict:
    """Return the attributes of a kernel's window."""
    if n.text("layout") not in PLAIN_LAYOUTS:
        raise UntranslatableError(f"layout {n.text('layout')}; ONNX has channels first alone")
    rank = n.data.rank - 2
    ones, pads = (1,) * rank, n.integers(pad, (0,) * rank)
    return {
        "kernel_shape": n.integers("kernel", ones),
        "strides": n.integers("stride", ones),
        "dilations": n.integers("dilate", ones),
        "pads": (*pads, *pads),
    }


def convolution(n: Node, w: Writer) -> str:
    """A convolution, grouped or not, of one to three axes."""
    return w.add("Conv", *n.inputs, group=n.integer("num_group", 1), **_window(n))


def deconvolution(n: Node, w: Writer) -> str:
    """A transposed convolution; its padding follows from the output's size where that is given."""
    window = _window(n)
    rank = n.data.rank - 2
    extra = n.integers("adj", (0,) * rank)
    if n.integers("target_shape"):
        sizes = zip(n.out.shape[2:], n.data.shape[2:], *(window[k] for k in KERNEL))
        missing = [
            stride * (i - 1) + (kernel - 1) * dilate + 1 - o
            for o, i, kernel, stride, dilate in sizes
        ]
        extra = [one % 2 for one in missing]
        pads = [(one + more) // 2 for one, more in zip(missing, extra)]
        window["pads"] = (*pads, *pads)
    return w.add(
        "ConvTranspose",
        *n.inputs,
        group=n.integer("num_group", 1),
        output_padding=list(extra),
        **window,
    )


KERNEL = ("kernel_shape", "strides", "dilations")


def dense(n: Node, w: Writer) -> str:
    """A dense layer, on all axes but the first, or on the last axis."""
    data, weight, *bias = n.inputs
    bias = [] if n.flag("no_bias") else bias
    if n.flag("flatten", True):
        flat = data if data.rank == 2 else w.add("Flatten", data, axis=1)
        return w.add("Gemm", flat, weight, *bias, transB=1)
    product = w.add("MatMul", data, transposed_weight(weight, w))
    return w.add("Add", product, *bias) if bias else product


def transposed_weight(weight: Tensor, w: Writer) -> str:
    """Return a weight with its axes exchanged: a constant where the weight is one."""
    if weight.value is None:
        return w.transposed(weight, (1, 0))
    return w.constant(weight.value.T, f"{weight.name}_transposed")


def pooling(n: Node, w: Writer) -> str:
    """Pooling, global or by a window, whose last window may reach over the border."""
    kind = n.text("pool_type", "max")
    data = n.data if kind != "lp" else None
    if kind not in ("max", "avg", "sum", "lp"):
        raise UntranslatableError(f"pool_type {kind}")
    if data is None:
        raise UntranslatableError("pool_type lp, which has no padding in ONNX as in MXNet")
    if n.flag("global_pool"):
        axes = list(range(2, data.rank))
        if kind == "sum":
            return w.add("ReduceSum", data, w.integers(axes), keepdims=1)
        return w.add("GlobalMaxPool" if kind == "max" else "GlobalAveragePool", data)
    window = _window(n)
    del window["dilations"]
    rank, pads = data.rank - 2, window["pads"]
    # How far the last window reaches over the border; ONNX's ceil_mode drops windows, and counts
    # such places in an average, which MXNet does not.
    over = [0] * rank
    for k in range(rank):
        used = (n.out.shape[2 + k] - 1) * window["strides"][k] + window["kernel_shape"][k]
        over[k] = max(0, used - data.shape[2 + k] - pads[k])
    inside = n.flag("count_include_pad", True)
    if kind == "max":
        window["pads"] = (*pads[:rank], *over)
        return w.add("MaxPool", data, **window)
    # Zeros outside count, which an average corrects: the places of each window are known. A Pad
    # before it would be wrong: onnxruntime 1.19 fuses it, and then its zeros do not count.
    window["pads"] = (*pads[:rank], *over)
    found = w.add("AveragePool", data, count_include_pad=1, **window)
    total = float(np.prod(window["kernel_shape"]))
    if kind == "avg" and any(window["pads"]):
        counts = _counts(n, window, pads, inside)
        found = w.add("Mul", found, w.constant((total / counts).astype(n.out.dtype)))
    if kind == "sum":
        found = w.add("Mul", found, w.scalar(total, n.out.dtype))
    return found


def _counts(n: Node, window: dict, pads: Tuple[int, ...], inside: bool) -> np.ndarray:
    """Return how many places of each window an average of MXNet divides by."""
    counts = np.ones((1, 1, *[1] * (n.data.rank - 2)))
    for k in range(n.data.rank - 2):
        begin = np.arange(n.out.shape[2 + k]) * window["strides"][k] - pads[k]
        size, margin = n.data.shape[2 + k], pads[k] if inside else 0
        end = np.minimum(begin + window["kernel_shape"][k], size + margin)
        begin = np.maximum(begin, -margin)
        shape = [1] * n.data.rank
        shape[2 + k] = -1
        counts = counts * (end - begin).reshape(shape)
    return counts


def adaptive_pooling(n: Node, w: Writer) -> str:
    """An average over windows of different sizes: a product with a matrix for each axis."""
    value, data = n.data.name, n.data
    if n.out.shape[2:] == (1, 1):
        return w.add("GlobalAveragePool", data)
    for axis in (3, 2):
        size, into = data.shape[axis], n.out.shape[axis]
        matrix = np.zeros((size, into), np.float32)
        for k in range(into):
            begin, end = k * size // into, -(-(k + 1) * size // into)
            matrix[begin:end, k] = 1 / (end - begin)
        factor = w.constant(matrix.astype(data.dtype))
        if axis == 3:
            value = w.add("MatMul", value, factor)
        else:
            value = w.add("MatMul", w.constant(matrix.T.astype(data.dtype)), value)
    return value


def batch_norm(n: Node, w: Writer) -> str:
    """A BatchNorm in inference, in float32, as its statistics are."""
    data, gamma, beta, mean, variance = n.inputs
    axis = data.axis(n.integer("axis", 1))
    if n.flag("fix_gamma", True):
        gamma = w.constant(np.ones(gamma.shape, np.float32), "ones")
    value = w.in_float32(data)
    order = list(range(data.rank))
    order.insert(1, order.pop(axis))
    value = w.transposed(value, order)
    eps = n.number("eps", 1e-3)
    value = w.add("BatchNormalization", value, gamma, beta, mean, variance, epsilon=eps)
    if n.op.endswith("WithReLU"):
        value = w.add("Relu", value)
    value = w.transposed(value, np.argsort(order).tolist())
    return w.back(value, n.out.dtype)


def _normalized(value: str, axes: List[int], eps: float, w: Writer) -> str:
    """Return float32 values with mean 0 and variance 1 over some axes."""
    difference = w.add("Sub", value, w.add("ReduceMean", value, axes=axes, keepdims=1))
    square = w.add("Mul", difference, difference)
    variance = w.add("ReduceMean", square, axes=axes, keepdims=1)
    deviation = w.add("Sqrt", w.add("Add", variance, w.scalar(eps, "float32")))
    return w.add("Div", difference, deviation)


def _shifted(value: str, gamma: Tensor, beta: Tensor, axis: int, rank: int, w: Writer) -> str:
    """Return gamma · value + beta, where these belong to an axis."""
    shape = [1] * rank
    shape[axis] = -1
    parts = [w.in_float32(one) for one in (gamma, beta)]
    if axis != rank - 1:
        parts = [w.add("Reshape", one, w.integers(shape)) for one in parts]
    return w.add("Add", w.add("Mul", value, parts[0]), parts[1])


def layer_norm(n: Node, w: Writer) -> str:
    """A LayerNorm, from the operators that opset 13 has."""
    data, gamma, beta = n.inputs
    axis = data.axis(n.integer("axis", -1))
    value = _normalized(w.in_float32(data), [axis], n.number("eps", 1e-5), w)
    return w.back(_shifted(value, gamma, beta, axis, data.rank, w), n.out.dtype)


def instance_norm(n: Node, w: Writer) -> str:
    """An InstanceNorm, over all axes but the first two."""
    data, gamma, beta = n.inputs
    axes = list(range(2, data.rank))
    value = _normalized(w.in_float32(data), axes, n.number("eps", 1e-3), w)
    return w.back(_shifted(value, gamma, beta, 1, data.rank, w), n.out.dtype)


def group_norm(n: Node, w: Writer) -> str:
    """A GroupNorm; MXNet's gamma and beta have a value for each group, or for each channel."""
    data, gamma, beta = n.inputs
    groups = n.integer("num_groups", 1)
    value = w.add("Reshape", w.in_float32(data), w.integers([0, groups, -1]))
    value = _normalized(value, [2], n.number("eps", 1e-5), w)
    if gamma.shape[0] == groups != data.shape[1]:
        return w.back(w.reshaped(_shifted(value, gamma, beta, 1, 3, w), n.out), n.out.dtype)
    value = w.reshaped(value, n.out)
    return w.back(_shifted(value, gamma, beta, 1, data.rank, w), n.out.dtype)


def l2_normalization(n: Node, w: Writer) -> str:
    """x / sqrt(sum of x² + eps), over all axes but the first, over channels, or over places."""
    first = {"instance": 1, "channel": 1, "spatial": 2}[n.text("mode", "instance")]
    axes = [1] if n.text("mode") == "channel" else list(range(first, n.data.rank))
    value = w.in_float32(n.data)
    total = w.add("ReduceSum", w.add("Mul", value, value), w.integers(axes), keepdims=1)
    eps = w.scalar(n.number("eps", 1e-10), "float32")
    return w.back(w.add("Div", value, w.add("Sqrt", w.add("Add", total, eps))), n.out.dtype)


def lrn(n: Node, w: Writer) -> str:
    """A local response norm."""
    value = w.add(
        "LRN",
        w.in_float32(n.data),
        alpha=n.number("alpha", 1e-4),
        beta=n.number("beta", 0.75),
        bias=n.number("knorm", 2),
        size=n.integer("nsize"),
    )
    return w.back(value, n.out.dtype)


def _softplus(n: Node, w: Writer) -> str:
    return w.add("Softplus", n.data)


ACTIVATIONS: Dict[str, Callable[[Node, Writer], str]] = {
    "relu": lambda n, w: w.add("Relu", n.data),
    "sigmoid": lambda n, w: w.add("Sigmoid", n.data),
    "tanh": lambda n, w: w.add("Tanh", n.data),
    "softrelu": _softplus,
    "softsign": lambda n, w: w.add("Softsign", n.data),
    "log_sigmoid": lambda n, w: w.add("Log", w.add("Sigmoid", n.data)),
    "mish": lambda n, w: w.add("Mul", n.data, w.add("Tanh", _softplus(n, w))),
}


def activation(n: Node, w: Writer) -> str:
    """An activation without parameters."""
    kind = n.text("act_type")
    if kind not in ACTIVATIONS:
        raise UntranslatableError(f"act_type {kind}")
    return ACTIVATIONS[kind](n, w)


def leaky_relu(n: Node, w: Writer) -> str:
    """A LeakyReLU of any of MXNet's kinds."""
    kind, slope = n.text("act_type", "leaky"), n.number("slope", 0.25)
    data = n.data
    if kind == "leaky":
        return w.add("LeakyRelu", data, alpha=slope)
    if kind == "elu":
        return w.add("Elu", data, alpha=slope)
    if kind == "selu":
        return w.add("Selu", data)
    if kind == "rrelu":  # in inference the mean of the slopes
        mean = (n.number("lower_bound", 0.125) + n.number("upper_bound", 0.334)) / 2
        return w.add("LeakyRelu", data, alpha=mean)
    if kind == "prelu":
        gamma = n.inputs[1]
        slope = gamma if gamma.dtype == data.dtype else w.cast(gamma, data.dtype)
        if data.rank > 2 and gamma.rank == 1:
            slope = w.add("Reshape", slope, w.integers([-1] + [1] * (data.rank - 2)))
        return w.add("PRelu", data, slope)
    if kind != "gelu":
        raise UntranslatableError(f"act_type {kind}")
    value = w.in_float32(data)
    erf = w.add("Erf", w.add("Div", value, w.scalar(np.sqrt(2), "float32")))
    sum_ = w.add("Add", erf, w.scalar(1, "float32"))
    half = w.add("Mul", value, w.scalar(0.5, "float32"))
    return w.back(w.add("Mul", half, sum_), n.out.dtype)


def softmax(n: Node, w: Writer) -> str:
    """softmax, softmin and log_softmax, with a temperature and with lengths."""
    value, axis = w.in_float32(n.data), n.data.axis(n.integer("axis", -1))
    temperature = n.text("temperature", "None")
    if temperature not in ("None", "1.0", "1"):
        value = w.add("Div", value, w.scalar(float(temperature), "float32"))
    if n.op == "softmin":
        value = w.add("Neg", value)
    name = "LogSoftmax" if n.op == "log_softmax" else "Softmax"
    if not n.flag("use_length"):
        return w.back(w.add(name, value, axis=axis), n.out.dtype)
    inside = _within_length(n, axis, w)
    outside = w.scalar(-3e38, "float32")
    value = w.add(name, w.add("Where", inside, value, outside), axis=axis)
    return w.back(w.add("Where", inside, value, w.scalar(0, "float32")), n.out.dtype)


def _within_length(n: Node, axis: int, w: Writer) -> str:
    """Return which places of an axis are below the length, of which there is one for each row."""
    length = n.inputs[1]
    places = np.arange(n.data.shape[axis], dtype=np.int64).reshape(
        [-1 if k == axis else 1 for k in range(n.data.rank)]
    )
    if n.data.growth[axis]:
        raise UntranslatableError("lengths along the batch")
    limit = w.add("Unsqueeze", w.cast(length, "int64"), w.integers([axis]))
    return w.add("Less", w.constant(places), limit)


def softmax_output(n: Node, w: Writer) -> str:
    """The head of a Module: its label is not needed, and its softmax is over channels, or all."""
    data, flat = n.data, n.data
    if n.flag("multi_output") or n.text("mode") == "channel":
        return w.back(w.add("Softmax", w.in_float32(data), axis=1), n.out.dtype)
    if n.flag("preserve_shape") or data.rank == 2:
        return w.back(w.add("Softmax", w.in_float32(data), axis=data.rank - 1), n.out.dtype)
    flat = w.add("Flatten", w.in_float32(data), axis=1)
    return w.back(w.reshaped(w.add("Softmax", flat, axis=1), n.out), n.out.dtype)


def upsampling(n: Node, w: Writer) -> str:
    """Nearest neighbours repeated, or a transposed convolution whose weight is an input."""
    scale = n.integer("scale", 1)
    if n.text("sample_type") == "bilinear":
        channels, kernel = n.data.shape[1], 2 * scale - scale % 2
        pad = (scale - 1 + 1) // 2 if scale > 1 else 0
        return w.add(
            "ConvTranspose",
            *n.inputs,
            group=channels,
            kernel_shape=(kernel, kernel),
            strides=(scale, scale),
            pads=(pad,) * 4,
        )
    if len(n.inputs) > 1:
        raise UntranslatableError("several inputs: upsample and concatenate them one by one")
    return resized(n, w, "nearest", "asymmetric")


def resized(n: Node, w: Writer, mode: str, coordinates: str) -> str:
    """Resize the last two axes to those of the output."""
    factors = [a / b for a, b in zip(n.out.shape, n.data.shape)]
    scales = np.array([1, 1, *factors[2:]], np.float32)
    attributes = {"nearest_mode": "floor"} if mode == "nearest" else {}
    return w.add(
        "Resize",
        n.data,
        "",
        w.constant(scales),
        mode=mode,
        coordinate_transformation_mode=coordinates,
        **attributes,
    )


def bilinear_resize(n: Node, w: Writer) -> str:
    """A bilinear resize, by a matrix for each axis: runtimes differ in how they place corners."""
    if n.text("mode", "size") not in (
        "size",
        "odd_scale",
        "to_even_down",
        "to_even_up",
        "to_odd_down",
        "to_odd_up",
        "like",
    ):
        raise UntranslatableError(f"mode {n.text('mode')}")
    value = w.in_float32(n.data)
    for axis in (3, 2):
        size, into = n.data.shape[axis], n.out.shape[axis]
        matrix = _interpolation(size, into, n.flag("align_corners", True))
        if axis == 3:
            value = w.add("MatMul", value, w.constant(matrix))
        else:
            value = w.add("MatMul", w.constant(matrix.T), value)
    return w.back(value, n.out.dtype)


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
    return matrix.astype(np.float32)


def attention_scores(n: Node, w: Writer) -> str:
    """Interleaved queries and keys: (T, N, heads · 3 · C) to (N · heads, T, T), times 1/sqrt(C)."""
    (queries, keys), size = _interleaved(n, w, 0, 2)
    scaled = w.add("Mul", queries, w.scalar(1 / np.sqrt(size), n.out.dtype))
    return w.add("MatMul", scaled, w.add("Transpose", keys, perm=[0, 2, 1]))


def attention_values(n: Node, w: Writer) -> str:
    """Interleaved values by their weights: (T, N, heads · 3 · C) to (T, N, heads · C)."""
    encoder = "encdec" in n.op
    (values,), size = _interleaved(n, w, 1 if encoder else 2, 1)
    product = w.add("MatMul", n.inputs[1], values)
    heads = n.integer("heads")
    length = n.out.shape[0]
    split = w.add("Reshape", product, w.integers([-1, heads, length, size]))
    return w.reshaped(w.add("Transpose", split, perm=[2, 0, 1, 3]), n.out)


def _interleaved(n: Node, w: Writer, first: int, count: int) -> Tuple[List[str], int]:
    """Return parts of an interleaved projection as (N · heads, T, C), and C."""
    heads = n.integer("heads")
    if "encdec" in n.op and n.op.endswith("qk"):  # queries alone, keys interleaved with values
        one = _part(n.inputs[0], heads, 1, 0, w)
        return [one[0], _part(n.inputs[1], heads, 2, 0, w)[0]], one[1]
    parts = 2 if "encdec" in n.op else 3
    found = [_part(n.data, heads, parts, first + k, w) for k in range(count)]
    return [name for name, _ in found], found[0][1]


def _part(data: Tensor, heads: int, parts: int, which: int, w: Writer) -> Tuple[str, int]:
    length, _, width = data.shape
    size = width // heads // parts
    if data.growth[0]:
        raise UntranslatableError("a time that follows the batch")
    split = w.add("Reshape", data, w.integers([length, -1, heads, parts, size]))
    one = w.add("Gather", split, w.scalar(which, "int64"), axis=3)
    moved = w.add("Transpose", one, perm=[1, 2, 0, 3])
    return w.add("Reshape", moved, w.integers([-1, length, size])), size


GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn_tanh": (0,), "rnn_relu": (0,)}
RECURRENT = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}


def rnn(n: Node, w: Writer) -> List[str]:
    """A recurrent layer, or several, with all their weights in one vector.

    ONNX's gates are input, output, forget, cell (LSTM) and update, reset, hidden (GRU).
    """
    mode, layers, size = n.text("mode"), n.integer("num_layers"), n.integer("state_size")
    ways = 2 if n.flag("bidirectional") else 1
    if n.inputs[1].value is None:
        raise UntranslatableError("weights that are computed from the data")
    if n.flag("use_sequence_length") or n.text("projection_size") != "None":
        raise UntranslatableError("lengths or a projection inside the RNN layer")
    weights = _rnn_weights(n, layers, ways, size)
    value = w.in_float32(n.data)
    states = [w.in_float32(one) for one in n.inputs[2 : 4 if mode == "lstm" else 3]]
    lasts: List[List[str]] = []
    extra = {"linear_before_reset": 1} if mode == "gru" else {}
    if mode == "rnn_relu":
        extra = {"activations": ["Relu"] * ways}
    for layer in range(layers):
        inputs = [w.constant(one, "weights") for one in weights[layer]]
        firsts = states
        if layers > 1:
            firsts = [w.sliced(one, 0, layer * ways, (layer + 1) * ways) for one in states]
        out, *last = w.several(
            len(states) + 1,
            RECURRENT[mode],
            value,
            *inputs,
            "",
            *firsts,
            hidden_size=size,
            direction="bidirectional" if ways == 2 else "forward",
            **extra,
        )
        moved = w.add("Transpose", out, perm=[0, 2, 1, 3])  # (T, ways, N, C) to (T, N, ways, C)
        value = w.add("Reshape", moved, w.integers([0, 0, -1]))
        lasts.append(last)
    joined = [
        one[0] if layers == 1 else w.add("Concat", *one, axis=0) for one in map(list, zip(*lasts))
    ]
    return [w.back(one, n.out.dtype) for one in [value, *joined][: len(n.outputs)]]


def _rnn_weights(n: Node, layers: int, ways: int, size: int) -> List[List[np.ndarray]]:
    """Return W, R and B of ONNX for each layer from MXNet's vector, in float32."""
    packed, mode = n.inputs[1].value.astype(np.float32), n.text("mode")
    gates, at = len(GATES[mode]), 0

    def take(*shape: int) -> np.ndarray:
        nonlocal at
        count = int(np.prod(shape))
        at += count
        part = packed[at - count : at].reshape(gates, shape[0] // gates, *shape[1:])
        return part[list(GATES[mode])].reshape(shape)

    found = []
    for layer in range(layers):
        width = n.data.shape[2] if layer == 0 else size * ways
        pairs = [(take(gates * size, width), take(gates * size, size)) for _ in range(ways)]
        found.append([np.stack(one) for one in zip(*pairs)])
    for layer in range(layers):
        biases = [np.concatenate([take(gates * size), take(gates * size)]) for _ in range(ways)]
        found[layer].append(np.stack(biases))
    return found


def dot(n: Node, w: Writer) -> str:
    """MXNet's dot: the last axis of the first with the first axis of the second."""
    left, right = n.inputs
    a, b = left.name, right.name
    if n.flag("transpose_a"):
        a = w.transposed(a, (left.rank - 1, *range(left.rank - 1)) if left.rank > 2 else (1, 0))
    if n.flag("transpose_b"):
        b = w.transposed(b, (*range(1, right.rank), 0))
    if right.rank <= 2:
        return w.add("MatMul", a, b)
    raise UntranslatableError("a second factor of more than two axes: reshape it to a matrix")


def gemm2(n: Node, w: Writer) -> str:
    """linalg.gemm2: a batch of products, times alpha."""
    rank = n.data.rank
    if n.text("axis", "-2") not in ("-2", str(rank - 2)):
        raise UntranslatableError("an axis other than the last two")
    order = (*range(rank - 2), rank - 1, rank - 2)
    factors = [
        w.transposed(one, order) if n.flag(key) else one
        for one, key in zip(n.inputs, ("transpose_a", "transpose_b"))
    ]
    product = w.add("MatMul", *factors)
    alpha = n.number("alpha", 1)
    return product if alpha == 1 else w.add("Mul", product, w.scalar(alpha, n.out.dtype))


def einsum(n: Node, w: Writer) -> str:
    """An Einstein sum."""
    return w.add("Einsum", *n.inputs, equation=n.text("subscripts"))


TRANSLATIONS: Dict[str, Callable] = {
    **dict.fromkeys(["Convolution", "Convolution_v1"], convolution),
    "Deconvolution": deconvolution,
    "FullyConnected": dense,
    **dict.fromkeys(["Pooling", "Pooling_v1"], pooling),
    "_contrib_AdaptiveAvgPooling2D": adaptive_pooling,
    **dict.fromkeys(
        ["BatchNorm", "BatchNorm_v1", "_contrib_SyncBatchNorm", "_contrib_BatchNormWithReLU"],
        batch_norm,
    ),
    "LayerNorm": layer_norm,
    "InstanceNorm": instance_norm,
    "GroupNorm": group_norm,
    "L2Normalization": l2_normalization,
    "LRN": lrn,
    "Activation": activation,
    "LeakyReLU": leaky_relu,
    **dict.fromkeys(["softmax", "softmin", "log_softmax"], softmax),
    **dict.fromkeys(["SoftmaxOutput", "SoftmaxActivation"], softmax_output),
    "UpSampling": upsampling,
    "_contrib_BilinearResize2D": bilinear_resize,
    "_contrib_interleaved_matmul_selfatt_qk": attention_scores,
    "_contrib_interleaved_matmul_encdec_qk": attention_scores,
    "_contrib_interleaved_matmul_selfatt_valatt": attention_values,
    "_contrib_interleaved_matmul_encdec_valatt": attention_values,
    "_contrib_div_sqrt_dim": lambda n, w: w.add(
        "Mul", n.data, w.scalar(1 / np.sqrt(n.data.shape[-1]), n.out.dtype)
    ),
    "RNN": rnn,
    "dot": dot,
    "_npi_matmul": lambda n, w: w.add("MatMul", *n.inputs),
    "_linalg_gemm2": gemm2,
    "_npi_einsum": einsum,
}
