"""Translations of operators that work element by element, activations among them."""

import re
from typing import Callable, Dict

import numpy as np

from gluon_amp.handover.to_onnx.writer import Node, UntranslatableError, Writer


def _pairs(text: str) -> Dict[str, str]:
    return dict(pair.split(":") for pair in text.split())


# Operators that ONNX has by another name, of one input or of several that are broadcast
SAME = _pairs(
    """
    abs:Abs ceil:Ceil floor:Floor exp:Exp log:Log sqrt:Sqrt erf:Erf sigmoid:Sigmoid relu:Relu
    tanh:Tanh sign:Sign negative:Neg sin:Sin cos:Cos tan:Tan arcsin:Asin arccos:Acos arctan:Atan
    sinh:Sinh cosh:Cosh arcsinh:Asinh arccosh:Acosh arctanh:Atanh softsign:Softsign
    reciprocal:Reciprocal add_n:Sum _power:Pow _maximum:Max _minimum:Min
    elemwise_add:Add elemwise_sub:Sub elemwise_mul:Mul elemwise_div:Div
    broadcast_add:Add broadcast_sub:Sub broadcast_mul:Mul broadcast_div:Div broadcast_power:Pow
    broadcast_maximum:Max broadcast_minimum:Min
    BlockGrad:Identity _copy:Identity make_loss:Identity MakeLoss:Identity Dropout:Identity
    _contrib_gradientmultiplier:Identity _contrib_sign_ste:Sign
    """
)

# Those that ONNX has for integers, too; MXNet cuts off the fraction of the others' results
OF_INTEGERS = {*"Abs Sign Neg Sum Pow Max Min Add Sub Mul Div Identity".split()}

# Operators with a number, which comes first where the name begins with _r
SCALARS = _pairs(
    """
    _plus_scalar:Add _minus_scalar:Sub _rminus_scalar:Sub _mul_scalar:Mul _div_scalar:Div
    _rdiv_scalar:Div _power_scalar:Pow _rpower_scalar:Pow _maximum_scalar:Max _minimum_scalar:Min
    """
)

# Those with a true or false result; behind that of not_equal comes a Not
DECISIONS = _pairs(
    """
    equal:Equal not_equal:Equal greater:Greater greater_equal:GreaterOrEqual lesser:Less
    lesser_equal:LessOrEqual logical_and:And logical_or:Or logical_xor:Xor
    """
)


def same(n: Node, w: Writer) -> str:
    """An operator that ONNX has, on the same inputs, which mx.np may have in several dtypes."""
    if n.op == "Dropout" and n.text("mode", "training") == "always":
        raise UntranslatableError("it draws random numbers in inference, too (mode='always')")
    inputs = n.inputs[:1] if n.op.endswith("Output") else n.inputs  # without the label
    fits = "float" in n.out.dtype or SAME[n.op] in OF_INTEGERS
    found = w.add(SAME[n.op], *[w.as_dtype(one, n.out.dtype if fits else n.wide) for one in inputs])
    return found if fits else w.cast(found, n.out.dtype)


def decision(n: Node, w: Writer) -> str:
    """A comparison, or a logical operator, whose inputs are true where they are not 0.

    The result is 0 or 1 in MXNet, or a Boolean in mx.np.
    """
    kind = re.sub("^broadcast_|^_|_scalar$", "", n.op)
    logical = kind.startswith("logical")
    dtype = "bool" if logical else np.result_type(*{one.dtype for one in n.inputs}).name
    found = w.add({**DECISIONS, "logical_not": "Not"}[kind], *_operands(n, w, dtype))
    if kind == "not_equal":
        found = w.add("Not", found)
    return found if n.out.dtype == "bool" else w.cast(found, n.out.dtype)


def _operands(n: Node, w: Writer, dtype: str) -> list:
    """Return the inputs in one dtype, and the number on its side of them if there is one."""
    operands = [w.as_dtype(one, dtype) for one in n.inputs]
    if "scalar" in n.attrs:
        operands.append(w.scalar(n.number("scalar"), dtype))
    return operands[::-1] if n.op.startswith("_r") else operands


def is_kind(n: Node, w: Writer) -> str:
    """Whether a value is not a number, or infinite, or neither."""
    data = w.as_dtype(n.data, n.wide)
    if n.op == "_npi_isnan":
        return w.add("IsNaN", data)
    if n.op == "_npi_isfinite":
        return w.add("Not", w.add("Or", w.add("IsNaN", data), w.add("IsInf", data)))
    signs = {"_npi_isposinf": {"detect_negative": 0}, "_npi_isneginf": {"detect_positive": 0}}
    return w.add("IsInf", data, **signs.get(n.op, {}))


def clip(n: Node, w: Writer) -> str:
    """A clip, of integers too."""
    bounds = [n.text(key) for key in ("a_min", "a_max")]
    numbers = ["" if one == "None" else w.scalar(float(one), n.out.dtype) for one in bounds]
    return w.add("Clip", n.data, *numbers)


def _steps(*steps: tuple) -> Callable[[Node, Writer], str]:
    """Return a translation by steps such as `("Add", 1)`, each on the result of the one before."""

    def translate(n: Node, w: Writer) -> str:
        value = w.as_dtype(n.data, n.out.dtype)
        for op, *numbers in steps:
            value = w.add(op, value, *[w.scalar(one, n.out.dtype) for one in numbers])
        return value

    return translate


def modulo(n: Node, w: Writer) -> str:
    """MXNet's modulo has the sign of the divisor, as Python's; ONNX's for floats that of C."""
    data, divisor = _operands(n, w, n.out.dtype)
    if "float" not in n.out.dtype:
        return w.add("Mod", data, divisor)
    whole = w.add("Floor", w.add("Div", data, divisor))
    return w.add("Sub", data, w.add("Mul", whole, divisor))


def hypotenuse(n: Node, w: Writer) -> str:
    """The root of the sum of two squares."""
    squares = [w.add("Mul", one, one) for one in _operands(n, w, n.out.dtype)]
    return w.add("Sqrt", w.add("Add", *squares))


def nearest(n: Node, w: Writer) -> str:
    """`round` goes away from 0 at halves, `rint` goes down, and ONNX's Round goes to even."""
    half, power = w.scalar(0.5, n.out.dtype), w.scalar(10.0 ** n.integer("decimals"), n.out.dtype)
    data = w.add("Mul", n.data, power) if n.integer("decimals") else n.data
    if n.op == "rint":
        return w.add("Ceil", w.add("Sub", data, half))
    size = w.add("Floor", w.add("Add", w.add("Abs", data), half))
    value = w.add("Mul", w.add("Sign", data), size)
    return w.add("Div", value, power) if n.integer("decimals") else value


def cube_root(n: Node, w: Writer) -> str:
    """The cube root, or one divided by it, of negative numbers too."""
    root = w.add("Pow", w.add("Abs", n.data), w.scalar(1 / 3, n.out.dtype))
    value = w.add("Mul", w.add("Sign", n.data), root)
    return value if n.op == "cbrt" else w.add("Reciprocal", value)


def smooth_l1(n: Node, w: Writer) -> str:
    """A parabola up to 1/s², and straight lines beyond."""
    square, size = n.number("scalar", 1) ** 2, w.add("Abs", n.data)
    half, edge, over = (w.scalar(k, n.out.dtype) for k in (square / 2, 1 / square, 0.5 / square))
    inside = w.add("Mul", w.add("Mul", n.data, n.data), half)
    return w.add("Where", w.add("Less", size, edge), inside, w.add("Sub", size, over))


def where(n: Node, w: Writer) -> str:
    """A choice by a condition, which has a value for each row if it has one axis."""
    condition = w.as_dtype(n.data, "bool")
    if n.data.rank == 1 < n.out.rank and n.op == "where":
        condition = w.add("Reshape", condition, w.integers([-1] + [1] * (n.out.rank - 1)))
    options = [w.as_dtype(one, n.out.dtype) for one in n.inputs[1:]]
    if n.op == "_npi_where_scalar2":
        options = [w.scalar(n.number(key), n.out.dtype) for key in "xy"]
    elif n.op != "where":
        options.append(w.scalar(n.number("scalar"), n.out.dtype))
    if n.op == "_npi_where_lscalar":
        options.reverse()
    return w.add("Where", condition, *options)


def activation(n: Node, w: Writer) -> str:
    """An activation without parameters; of softrelu, log(1 + exp(x)), without an overflow."""
    kind = n.text("act_type")
    if kind == "softrelu":
        return w.back(w.add("Softplus", w.as_dtype(n.data, n.wide)), n)
    return w.add(SAME[kind], n.data)


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


TRANSLATIONS: Dict[str, Callable] = {
    **dict.fromkeys(SAME, same),
    **dict.fromkeys(SCALARS, lambda n, w: w.add(SCALARS[n.op], *_operands(n, w, n.out.dtype))),
    # From floats to integers both cut off the fraction
    **dict.fromkeys(["Cast", "amp_cast"], lambda n, w: w.cast(n.data, n.out.dtype)),
    "amp_multicast": lambda n, w: [w.cast(a, b.dtype) for a, b in zip(n.inputs, n.outputs)],
    "clip": clip,
    "square": lambda n, w: w.add("Mul", n.data, n.data),
    "rsqrt": _steps(("Sqrt",), ("Reciprocal",)),
    **dict.fromkeys(["cbrt", "rcbrt"], cube_root),
    "log2": _steps(("Log",), ("Div", np.log(2))),
    "log10": _steps(("Log",), ("Div", np.log(10))),
    "log1p": _steps(("Add", 1), ("Log",)),
    "expm1": _steps(("Exp",), ("Sub", 1)),
    "degrees": _steps(("Mul", 180 / np.pi)),
    "radians": _steps(("Mul", np.pi / 180)),
    "hard_sigmoid": lambda n, w: w.add(
        "HardSigmoid", n.data, alpha=n.number("alpha", 0.2), beta=n.number("beta", 0.5)
    ),
    "smooth_l1": smooth_l1,
    **dict.fromkeys(["round", "rint", "_contrib_round_ste"], nearest),
    **dict.fromkeys(  # cut off the fraction
        ["trunc", "fix"],
        lambda n, w: w.add("Mul", w.add("Sign", n.data), w.add("Floor", w.add("Abs", n.data))),
    ),
    **dict.fromkeys(["_mod", "_mod_scalar", "_rmod_scalar", "broadcast_mod"], modulo),
    **dict.fromkeys(["_hypot", "_hypot_scalar", "broadcast_hypot"], hypotenuse),
    "where": where,
    "Activation": activation,
    "LeakyReLU": leaky_relu,
    **dict.fromkeys([f"_npi_where_{kind}" for kind in ("lscalar", "rscalar", "scalar2")], where),
    "logical_not": decision,
    **{f"_npi_is{kind}": is_kind for kind in "nan inf finite posinf neginf".split()},
}
for kind in DECISIONS:
    names = (f"broadcast_{kind}", f"_{kind}", f"_{kind}_scalar")
    TRANSLATIONS.update(dict.fromkeys(names, decision))
