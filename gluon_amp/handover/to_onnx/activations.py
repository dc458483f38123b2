"""Translations of activations: Activation and LeakyReLU, of any of their kinds."""

from typing import Callable, Dict

import numpy as np

from gluon_amp.handover.to_onnx.writer import Node, UntranslatableError, Writer


def softplus(n: Node, w: Writer) -> str:
    """log(1 + exp(x)), without an overflow."""
    return w.back(w.add("Softplus", w.as_dtype(n.data, n.wide)), n)


ACTIVATIONS: Dict[str, Callable[[Node, Writer], str]] = {
    "relu": lambda n, w: w.add("Relu", n.data),
    "sigmoid": lambda n, w: w.add("Sigmoid", n.data),
    "tanh": lambda n, w: w.add("Tanh", n.data),
    "softrelu": softplus,
    "softsign": lambda n, w: w.add("Softsign", n.data),
    "log_sigmoid": lambda n, w: w.add("Log", w.add("Sigmoid", n.data)),
    "mish": lambda n, w: w.add("Mul", n.data, w.add("Tanh", softplus(n, w))),
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
    if kind == "rrelu":  # in inference the mean of the slopes
        slope = (n.number("lower_bound", 0.125) + n.number("upper_bound", 0.334)) / 2
    if kind in ("leaky", "rrelu"):
        return w.add("LeakyRelu", n.data, alpha=slope)
    if kind == "elu":
        return w.add("Elu", n.data, alpha=slope)
    if kind == "selu":
        return w.add("Selu", n.data)
    if kind == "prelu":
        gamma = w.as_dtype(n.inputs[1], n.data.dtype)
        if n.data.rank > 2 and n.inputs[1].rank == 1:
            gamma = w.add("Reshape", gamma, w.integers([-1] + [1] * (n.data.rank - 2)))
        return w.add("PRelu", n.data, gamma)
    value = w.as_dtype(n.data, n.wide)  # gelu
    erf = w.add("Erf", w.add("Div", value, w.scalar(np.sqrt(2), n.wide)))
    half = w.add("Mul", value, w.scalar(0.5, n.wide))
    return w.back(w.add("Mul", half, w.add("Add", erf, w.scalar(1, n.wide))), n)


TRANSLATIONS: Dict[str, Callable] = {"Activation": activation, "LeakyReLU": leaky_relu}
