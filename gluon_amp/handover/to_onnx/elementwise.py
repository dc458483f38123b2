"""Translations of operators that work element by element, and of those that reduce axes."""

from typing import Callable, Dict, Optional

import numpy as np

from gluon_amp.handover.to_onnx.writer import Node, UntranslatableError, Writer

# Operators that ONNX has by another name, of one input or of two that are broadcast
SAME = dict(
    pair.split(":")
    for pair in """
    abs:Abs ceil:Ceil floor:Floor exp:Exp log:Log sqrt:Sqrt erf:Erf sigmoid:Sigmoid relu:Relu
    tanh:Tanh sign:Sign negative:Neg sin:Sin cos:Cos tan:Tan arcsin:Asin arccos:Acos arctan:Atan
    sinh:Sinh cosh:Cosh arcsinh:Asinh arccosh:Acosh arctanh:Atanh softsign:Softsign
    reciprocal:Reciprocal add_n:Sum _power:Pow _maximum:Max _minimum:Min
    elemwise_add:Add elemwise_sub:Sub elemwise_mul:Mul elemwise_div:Div
    broadcast_add:Add broadcast_sub:Sub broadcast_mul:Mul broadcast_div:Div broadcast_power:Pow
    broadcast_maximum:Max broadcast_minimum:Min
    BlockGrad:Identity _copy:Identity make_loss:Identity MakeLoss:Identity Dropout:Identity
    _identity_with_attr_like_rhs:Identity IdentityAttachKLSparseReg:Identity
    LinearRegressionOutput:Identity MAERegressionOutput:Identity
    LogisticRegressionOutput:Sigmoid
    """.split()
)
# Of these, a second input is a label or a shape, which the result does not depend on
OF_ONE = {
    "_identity_with_attr_like_rhs",
    *"LinearRegressionOutput MAERegressionOutput LogisticRegressionOutput".split(),
}

# Operators with a number; `reverse` has it first
SCALARS = {
    "_plus_scalar": ("Add", False),
    "_minus_scalar": ("Sub", False),
    "_rminus_scalar": ("Sub", True),
    "_mul_scalar": ("Mul", False),
    "_div_scalar": ("Div", False),
    "_rdiv_scalar": ("Div", True),
    "_power_scalar": ("Pow", False),
    "_rpower_scalar": ("Pow", True),
    "_maximum_scalar": ("Max", False),
    "_minimum_scalar": ("Min", False),
}

COMPARISONS = {"equal": "Equal", "greater": "Greater", "lesser": "Less", "less": "Less"}
COMPARISONS.update(greater_equal="GreaterOrEqual", lesser_equal="LessOrEqual")
COMPARISONS.update(less_equal="LessOrEqual", not_equal="")
LOGICAL = {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}


def same(n: Node, w: Writer) -> str:
    """An operator that ONNX has, on the same inputs, which MXNet may have in several dtypes."""
    if n.op == "Dropout" and n.text("mode", "training") == "always":
        raise UntranslatableError("it draws random numbers in inference, too (mode='always')")
    inputs = n.inputs[:1] if n.op in OF_ONE else n.inputs
    if len(inputs) > 1:
        inputs = [one if one.dtype == n.out.dtype else w.cast(one, n.out.dtype) for one in inputs]
    return w.add(SAME[n.op], *inputs)


def batch_dot(n: Node, w: Writer) -> str:
    """Products of matrices, one for each member of the batch."""
    left, right = n.inputs
    a = w.transposed(left, (0, 2, 1) if n.flag("transpose_a") else (0, 1, 2))
    return w.add(
        "MatMul", a, w.transposed(right, (0, 2, 1) if n.flag("transpose_b") else (0, 1, 2))
    )


def scalar(n: Node, w: Writer) -> str:
    """An operator of a tensor and a number."""
    op, reverse = SCALARS[n.op]
    data = n.data.name if n.data.dtype == n.out.dtype else w.cast(n.data, n.out.dtype)
    number = w.scalar(n.number("scalar"), n.out.dtype)
    return w.add(op, *((number, data) if reverse else (data, number)))


def comparison(n: Node, w: Writer) -> str:
    """A comparison, which is 0 or 1 in MXNet, or a Boolean in mx.np."""
    kind = _kind(n.op)
    number = n.op.endswith("_scalar")
    right = w.scalar(n.number("scalar"), n.data.dtype) if number else n.inputs[1]
    if not number and right.dtype != n.data.dtype:
        right = w.cast(right, n.data.dtype)
    if COMPARISONS[kind]:
        found = w.add(COMPARISONS[kind], n.data, right)
    else:
        found = w.add("Not", w.add("Equal", n.data, right))
    return found if n.out.dtype == "bool" else w.cast(found, n.out.dtype)


def _kind(op: str) -> str:
    for prefix in ("broadcast_", "_npi_", "_"):
        if op.startswith(prefix):
            op = op[len(prefix) :]
            break
    return op[: -len("_scalar")] if op.endswith("_scalar") else op


def logical(n: Node, w: Writer) -> str:
    """A logical operator, whose inputs are true where they are not 0."""
    kind, inputs = _kind(n.op), [w.cast(one, "bool") for one in n.inputs]
    if n.op.endswith("_scalar"):
        inputs.append(w.scalar(bool(n.number("scalar")), "bool"))
    found = w.add("Not", *inputs) if kind == "logical_not" else w.add(LOGICAL[kind], *inputs)
    return found if n.out.dtype == "bool" else w.cast(found, n.out.dtype)


def cast(n: Node, w: Writer) -> str:
    """A cast; from floats to integers both cut off the fraction."""
    return w.cast(n.data, n.out.dtype)


def multicast(n: Node, w: Writer) -> list:
    """Casts of several tensors to one dtype."""
    return [w.cast(data, out.dtype) for data, out in zip(n.inputs, n.outputs)]


def clip(n: Node, w: Writer) -> str:
    """A clip, of integers too."""
    low, high = (n.text(key, "None") for key in ("a_min", "a_max"))
    bounds = ["" if one == "None" else w.scalar(float(one), n.out.dtype) for one in (low, high)]
    return w.add("Clip", n.data, *bounds)


def _with_numbers(*steps: tuple) -> Callable[[Node, Writer], str]:
    """Return a translation by steps such as `("Add", 1)`, each on the result of the one before."""

    def translate(n: Node, w: Writer) -> str:
        value = n.data.name
        for op, *numbers in steps:
            first = numbers[:1] == ["first"]
            operands = [w.scalar(one, n.out.dtype) for one in (numbers[1:] if first else numbers)]
            value = w.add(op, *operands, value) if first else w.add(op, value, *operands)
        return value

    return translate


def power_modulo(n: Node, w: Writer) -> str:
    """MXNet's modulo has the sign of the divisor, as Python's; ONNX's for floats that of C."""
    divisor = w.scalar(n.number("scalar"), n.out.dtype) if "_scalar" in n.op else n.inputs[1]
    data = n.data.name
    if n.op.startswith("_rmod"):
        data, divisor = divisor, data
    whole = w.add("Floor", w.add("Div", data, divisor))
    return w.add("Sub", data, w.add("Mul", whole, divisor))


def nearest(n: Node, w: Writer) -> str:
    """`round` goes away from 0 at halves, `rint` goes down, and ONNX's Round goes to even."""
    half = w.scalar(0.5, n.out.dtype)
    if n.op == "rint":
        return w.add("Ceil", w.add("Sub", n.data, half))
    return w.add(
        "Mul", w.add("Sign", n.data), w.add("Floor", w.add("Add", w.add("Abs", n.data), half))
    )


def towards_zero(n: Node, w: Writer) -> str:
    """Cut off the fraction."""
    return w.add("Mul", w.add("Sign", n.data), w.add("Floor", w.add("Abs", n.data)))


def where(n: Node, w: Writer) -> str:
    """A choice by a condition, which has a value for each row if it has one axis."""
    condition = w.cast(n.data, "bool")
    if n.data.rank == 1 < n.out.rank and n.op == "where":
        shape = [-1] + [1] * (n.out.rank - 1)
        condition = w.add("Reshape", condition, w.integers(shape))
    options = [
        one if one.dtype == n.out.dtype else w.cast(one, n.out.dtype) for one in n.inputs[1:]
    ]
    return w.add("Where", condition, *options)


def reduction(op: str) -> Callable[[Node, Writer], str]:
    """Return the translation of a reduction; axes are an input in opset 13 for sums alone."""

    def translate(n: Node, w: Writer) -> str:
        axes = reduced_axes(n)
        data = n.data if n.data.dtype == n.out.dtype else w.cast(n.data, n.out.dtype)
        if not n.data.rank:
            return w.add("Identity", data)
        keep = int(n.flag("keepdims"))
        if op == "ReduceSum":
            return w.add(op, data, w.integers(axes), keepdims=keep)
        return w.add(op, data, axes=list(axes), keepdims=keep)

    return translate


def reduced_axes(n: Node) -> tuple:
    """Return the axes that a reduction reduces."""
    axes = n.axes()
    if axes is None:
        return tuple(range(n.data.rank))
    return tuple(k for k in range(n.data.rank) if k not in axes) if n.flag("exclude") else axes


def norm(n: Node, w: Writer) -> str:
    """A norm of the first or the second order, computed in float32."""
    order = n.integer("ord", 2)
    if order not in (1, 2):
        raise UntranslatableError(f"a norm of order {order}; ONNX has those of 1 and 2")
    data = w.in_float32(n.data)
    axes, keep = list(reduced_axes(n)), int(n.flag("keepdims"))
    return w.back(w.add(f"ReduceL{order}", data, axes=axes, keepdims=keep), n.out.dtype)


def arg(op: str) -> Callable[[Node, Writer], str]:
    """Return the translation of argmax or argmin, whose result MXNet has in floats."""

    def translate(n: Node, w: Writer) -> str:
        axis: Optional[tuple] = n.axes()
        data, keep = n.data.name, int(n.flag("keepdims"))
        if axis is None:
            if keep:
                raise UntranslatableError("all axes at once with keepdims: give it an axis")
            data, axis = w.add("Reshape", data, w.integers([-1])), (0,)
        return w.cast(w.add(op, data, axis=axis[0], keepdims=keep), n.out.dtype)

    return translate


def variance(n: Node, w: Writer) -> str:
    """`mx.np.var` and `std`, whose divisor is smaller by ddof."""
    axes = reduced_axes(n)
    data = w.in_float32(n.data)
    mean = w.add("ReduceMean", data, axes=list(axes), keepdims=1)
    difference = w.add("Sub", data, mean)
    square = w.add("Mul", difference, difference)
    if not all(not n.data.growth[axis] for axis in axes) and n.integer("ddof"):
        raise UntranslatableError("ddof over the batch: leave out ddof")
    value = w.add("ReduceMean", square, axes=list(axes), keepdims=int(n.flag("keepdims")))
    count = int(np.prod([n.data.shape[axis] for axis in axes]))
    if n.integer("ddof"):
        value = w.add("Mul", value, w.scalar(count / (count - n.integer("ddof")), "float32"))
    value = w.add("Sqrt", value) if n.op == "_npi_std" else value
    return w.back(value, n.out.dtype)


def translations() -> Dict[str, Callable]:
    """Return the translations of this file by the names of MXNet's operators."""
    log2, log10 = float(np.log(2)), float(np.log(10))
    table: Dict[str, Callable] = {
        **dict.fromkeys(SAME, same),
        **dict.fromkeys(SCALARS, scalar),
        "Cast": cast,
        "amp_cast": cast,
        "amp_multicast": multicast,
        "clip": clip,
        "square": lambda n, w: w.add("Mul", n.data, n.data),
        "rsqrt": _with_numbers(("Sqrt",), ("Reciprocal",)),
        "cbrt": lambda n, w: w.add(
            "Mul",
            w.add("Sign", n.data),
            w.add("Pow", w.add("Abs", n.data), w.scalar(1 / 3, n.out.dtype)),
        ),
        "log2": _with_numbers(("Log",), ("Div", log2)),
        "log10": _with_numbers(("Log",), ("Div", log10)),
        "log1p": _with_numbers(("Add", 1), ("Log",)),
        "expm1": _with_numbers(("Exp",), ("Sub", 1)),
        "degrees": _with_numbers(("Mul", 180 / np.pi)),
        "radians": _with_numbers(("Mul", np.pi / 180)),
        "hard_sigmoid": lambda n, w: w.add(
            "HardSigmoid", n.data, alpha=n.number("alpha", 0.2), beta=n.number("beta", 0.5)
        ),
        **dict.fromkeys(["round", "rint"], nearest),
        **dict.fromkeys(["trunc", "fix"], towards_zero),
        **dict.fromkeys(["_mod_scalar", "_rmod_scalar", "broadcast_mod"], power_modulo),
        "where": where,
        "sum": reduction("ReduceSum"),
        "mean": reduction("ReduceMean"),
        "max": reduction("ReduceMax"),
        "min": reduction("ReduceMin"),
        "prod": reduction("ReduceProd"),
        "argmax": arg("ArgMax"),
        "argmin": arg("ArgMin"),
        **dict.fromkeys(["_npi_var", "_npi_std"], variance),
        "norm": norm,
        "batch_dot": batch_dot,
    }
    for prefix in ("broadcast_", "_"):
        for kind in COMPARISONS:
            table[f"{prefix}{kind}"] = table[f"{prefix}{kind}_scalar"] = comparison
        for kind in (*LOGICAL, "logical_not"):
            table[f"{prefix}{kind}"] = table[f"{prefix}{kind}_scalar"] = logical
    table["logical_not"] = logical
    return table
