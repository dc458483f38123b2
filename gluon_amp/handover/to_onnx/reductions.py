"""Translations of operators that reduce axes, and of those that order or accumulate along one."""

from typing import Callable, Dict, List

import numpy as np

from gluon_amp.handover.to_onnx.shapes import flattened
from gluon_amp.handover.to_onnx.writer import Node, Tensor, UntranslatableError, Writer


def reduced_axes(n: Node) -> List[int]:
    """Return the axes that a reduction reduces."""
    axes = n.axes()
    if axes is None:
        return list(range(n.data.rank))
    return [k for k in range(n.data.rank) if k not in axes] if n.flag("exclude") else list(axes)


def _reduced(op: str, value: str, n: Node, w: Writer) -> str:
    """Reduce a value's axes, to one number of one axis where MXNet has no scalars."""
    axes = reduced_axes(n)
    if not axes:
        return w.add("Identity", value)
    keep = int(n.flag("keepdims"))
    if op == "ReduceSum":  # whose axes are an input in opset 13 already
        found = w.add(op, value, w.integers(axes), keepdims=keep)
    else:
        found = w.add(op, value, axes=axes, keepdims=keep)
    return with_axis(found, n.data.rank if keep else n.data.rank - len(axes), n.out, w)


def with_axis(value: str, rank: int, to: Tensor, w: Writer) -> str:
    """Return a scalar with one axis if MXNet's result has one."""
    return w.add("Reshape", value, w.integers([1])) if rank == 0 < to.rank else value


def reduction(n: Node, w: Writer) -> str:
    """A sum, a mean, a product or an extreme."""
    op = f"Reduce{n.op.title()}"
    if n.out.dtype == "bool":
        return w.cast(_reduced(op, w.cast(n.data, "int32"), n, w), "bool")
    return _reduced(op, w.as_dtype(n.data, n.out.dtype), n, w)


def norm(n: Node, w: Writer) -> str:
    """A norm of the first or the second order."""
    order = n.integer("ord", 2)
    if order not in (1, 2) or n.text("flag") in ("0", "2"):  # of which mx.np has matrices' norms
        raise UntranslatableError("a norm other than that of order 1, and the root of squares")
    data = w.as_dtype(n.data, n.wide)
    if order == 1:
        return w.back(_reduced("ReduceSum", w.add("Abs", data), n, w), n)
    return w.back(w.add("Sqrt", _reduced("ReduceSumSquare", data, n, w)), n)


def moments(n: Node, w: Writer) -> List[str]:
    """The mean and the variance."""
    n = n._replace(attrs={**n.attrs, "axis": n.text("axes")})
    data = w.as_dtype(n.data, n.wide)
    return [w.back(_reduced("ReduceMean", one, n, w), n) for one in (data, _squares(n, w))]


def _squares(n: Node, w: Writer) -> str:
    """Return the squares of the differences from the mean."""
    data = w.as_dtype(n.data, n.wide)
    mean = w.add("ReduceMean", data, axes=reduced_axes(n), keepdims=1)
    difference = w.add("Sub", data, mean)
    return w.add("Mul", difference, difference)


def variance(n: Node, w: Writer) -> str:
    """`mx.np.var` and `std`, whose divisor is smaller by ddof."""
    axes, less = reduced_axes(n), n.integer("ddof")
    if less and any(n.data.growth[axis] for axis in axes):
        raise UntranslatableError("ddof over the batch")
    value = _reduced("ReduceMean", _squares(n, w), n, w)
    if less:
        count = int(np.prod([n.data.shape[axis] for axis in axes]))
        value = w.add("Mul", value, w.scalar(count / (count - less), n.wide))
    return w.back(w.add("Sqrt", value) if n.op == "_npi_std" else value, n)


def extreme_place(n: Node, w: Writer) -> str:
    """The argmax or argmin, which MXNet has in floats."""
    op = "ArgMin" if n.op == "argmin" else "ArgMax"
    axes = (1,) if n.op == "argmax_channel" else n.axes()
    keep = int(n.flag("keepdims"))
    if axes is None:
        found = w.add(op, w.add("Reshape", n.data, w.integers([-1])), axis=0, keepdims=0)
        if n.out.rank:
            found = w.add("Reshape", found, w.integers([1] * n.out.rank))
    else:
        found = w.add(op, n.data, axis=axes[0], keepdims=keep)
        found = with_axis(found, n.data.rank - 1 + keep, n.out, w)
    return w.cast(found, n.out.dtype)


def _along(n: Node, w: Writer, default: str) -> tuple:
    """Return a tensor and the axis that an operator works along: flattened if that is None."""
    axis = n.attrs.get("axis", default)
    if axis != "None":
        return n.data.name, n.data.axis(int(axis)), n.data
    return w.add("Reshape", n.data, w.integers([-1])), 0, flattened(n.data)


def ordered(n: Node, w: Writer) -> List[str]:
    """The largest or smallest values of an axis, or all in order: they, their places, or both.

    A mask has ones at these places.
    """
    some = n.op == "topk"
    count, largest = n.integer("k", 1) if some else 0, int(not n.flag("is_ascend", not some))
    kind = "value" if n.op == "sort" else n.text("ret_typ", "indices")
    value, axis, data = _along(n, w, "-1")
    if data.growth[axis] and not count:
        raise UntranslatableError("an order of the whole batch")
    size = w.integers([count or data.shape[axis]])
    values, places = w.several(2, "TopK", value, size, axis=axis, largest=largest, sorted=1)
    if kind == "mask":
        zeros = w.add("ConstantOfShape", w.sizes(data), value=np.zeros(1, n.out.dtype))
        ones = w.add("Expand", w.scalar(1, n.out.dtype), w.add("Shape", places))
        return [w.reshaped(w.add("ScatterElements", zeros, places, ones, axis=axis), n.out)]
    cast = w.cast(places, n.outputs[-1].dtype) if kind != "value" else ""
    return {"value": [values], "indices": [cast], "both": [values, cast]}[kind]


def cumsum(n: Node, w: Writer) -> str:
    """Sums up to each place."""
    value, axis, data = _along(n, w, "None")
    if data.dtype != n.wide and n.out.dtype in ("float16", "float32", "float64"):
        value = w.cast(value, n.wide)
        return w.back(w.add("CumSum", value, w.scalar(axis, "int64")), n)
    return w.add("CumSum", w.cast(value, n.out.dtype), w.scalar(axis, "int64"))


TRANSLATIONS: Dict[str, Callable] = {
    **dict.fromkeys("sum mean max min prod".split(), reduction),
    "norm": norm,
    "moments": moments,
    **dict.fromkeys(["_npi_var", "_npi_std"], variance),
    **dict.fromkeys(["argmax", "argmax_channel", "argmin"], extreme_place),
    **dict.fromkeys(["topk", "sort", "argsort"], ordered),
    "_np_cumsum": cumsum,
}
