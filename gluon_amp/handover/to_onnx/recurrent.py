"""Translations of recurrent layers and of operators on sequences."""

from typing import Callable, Dict, List

import numpy as np

from gluon_amp.handover.to_onnx.shapes import positions
from gluon_amp.handover.to_onnx.writer import Node, UntranslatableError, Writer

# ONNX's operator, and where MXNet has ONNX's gates: input, output, forget, cell; update, reset,
# hidden
MODES = {
    "lstm": ("LSTM", (0, 3, 1, 2)),
    "gru": ("GRU", (1, 0, 2)),
    "rnn_tanh": ("RNN", (0,)),
    "rnn_relu": ("RNN", (0,)),
}


def rnn(n: Node, w: Writer) -> List[str]:
    """A recurrent layer, or several, with all their weights in one vector."""
    mode, layers = n.text("mode"), n.integer("num_layers")
    ways = 2 if n.flag("bidirectional") else 1
    packed = n.inputs[1].value
    if packed is None:
        raise UntranslatableError("weights that are computed from the data")
    if n.flag("use_sequence_length") or n.text("projection_size") != "None":
        raise UntranslatableError("lengths or a projection inside the RNN layer")
    value = w.as_dtype(n.data, n.wide)
    states = [w.as_dtype(one, n.wide) for one in n.inputs[2:]]
    attributes: Dict[str, object] = {"direction": "bidirectional" if ways == 2 else "forward"}
    attributes["hidden_size"] = n.integer("state_size")
    if mode == "gru":
        attributes["linear_before_reset"] = 1
    if mode == "rnn_relu":
        attributes["activations"] = ["Relu"] * ways
    narrow = packed.dtype != n.wide  # as those of a mixed file are stored
    lasts: List[List[str]] = []
    for layer, weights in enumerate(_weights(packed, n, layers, ways)):
        first = [w.sliced(one, 0, layer * ways, (layer + 1) * ways) for one in states]
        names = [w.constant(one, "weights") for one in weights]
        inputs = [value, *[w.cast(name, n.wide) if narrow else name for name in names], "", *first]
        out, *last = w.several(len(states) + 1, MODES[mode][0], *inputs, **attributes)
        moved = w.add("Transpose", out, perm=[0, 2, 1, 3])  # (T, ways, N, C) to (T, N, ways, C)
        value = w.add("Reshape", moved, w.integers([0, 0, -1]))
        lasts.append(last)
    joined = [w.add("Concat", *one, axis=0) for one in zip(*lasts)]
    return [w.back(one, n) for one in [value, *joined]]


def _weights(packed: np.ndarray, n: Node, layers: int, ways: int) -> List[List[np.ndarray]]:
    """Return W, R and B of ONNX for each layer from MXNet's vector."""
    order, size, at = MODES[n.text("mode")][1], n.integer("state_size"), 0

    def take(*shape: int) -> np.ndarray:
        nonlocal at
        begin, at = at, at + len(order) * int(np.prod(shape))
        part = packed[begin:at].reshape(len(order), *shape)
        return np.concatenate(part[list(order)])

    found = []
    for layer in range(layers):
        width = size * ways if layer else n.data.shape[2]
        pairs = [(take(size, width), take(size, size)) for _ in range(ways)]
        found.append([np.stack(one) for one in zip(*pairs)])
    for weights in found:
        weights.append(np.stack([np.concatenate([take(size), take(size)]) for _ in range(ways)]))
    return found


def sequence_mask(n: Node, w: Writer) -> str:
    """A constant behind the length of each sequence."""
    if not n.flag("use_sequence_length"):
        return w.add("Identity", n.data)
    axis = n.integer("axis")
    limits = w.integers([1 if k != 1 - axis else -1 for k in range(n.data.rank)])
    lengths = w.add("Reshape", w.cast(n.inputs[1], "int64"), limits)
    inside = w.add("Less", positions(n.data, axis, w), lengths)
    return w.add("Where", inside, n.data, w.scalar(n.number("value"), n.out.dtype))


def sequence_last(n: Node, w: Writer) -> str:
    """The last step, or that at the end of each sequence."""
    axis = n.integer("axis")
    if not n.flag("use_sequence_length"):
        return w.add("Gather", n.data, w.scalar(-1, "int64"), axis=axis)
    order = [1 - axis, axis, *range(2, n.data.rank)]  # (N, T, …)
    moved = w.transposed(n.data, order if axis == 0 else sorted(order))
    last = w.add("Sub", w.cast(n.inputs[1], "int64"), w.scalar(1, "int64"))
    return w.add("GatherND", moved, w.add("Unsqueeze", last, w.integers([1])), batch_dims=1)


def sequence_reverse(n: Node, w: Writer) -> str:
    """Reverse the time, of each sequence up to its length."""
    if not n.flag("use_sequence_length"):
        return w.sliced(n.data, 0, -1, None, -1)
    lengths = w.cast(n.inputs[1], "int64")
    return w.add("ReverseSequence", n.data, lengths, time_axis=0, batch_axis=1)


TRANSLATIONS: Dict[str, Callable] = {
    "RNN": rnn,
    "SequenceMask": sequence_mask,
    "SequenceLast": sequence_last,
    "SequenceReverse": sequence_reverse,
}
