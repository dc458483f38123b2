"""Translations of operators that move values: shapes, slices, indices, order."""

import re
from typing import Callable, Dict, List

import numpy as np

from gluon_amp.handover.to_onnx.writer import NONLINEAR, Node, Tensor, UntranslatableError, Writer


def transpose(n: Node, w: Writer) -> str:
    """Permute the axes; without any given, reverse them; or exchange two of them."""
    order = n.integers("axes", tuple(reversed(range(n.data.rank))))
    if n.op == "SwapAxis":
        pair = [n.data.axis(n.integer(key)) for key in ("dim1", "dim2")]
        exchanged = dict(zip(pair, reversed(pair)))
        order = tuple(exchanged.get(axis, axis) for axis in range(n.data.rank))
    return w.add("Transpose", n.data, perm=[n.data.axis(axis) for axis in order])


def concat(n: Node, w: Writer) -> str:
    """Join tensors along an axis."""
    parts = [w.as_dtype(one, n.out.dtype) for one in n.inputs]
    axis = n.integer("axis") if n.op == "_npi_concatenate" else n.integer("dim", 1)
    return w.add("Concat", *parts, axis=n.out.axis(axis))


def stack(n: Node, w: Writer) -> str:
    """Join tensors along a new axis."""
    axis = n.out.axis(n.integer("axis"))
    parts = [w.add("Unsqueeze", one, w.integers([axis])) for one in n.inputs]
    return w.add("Concat", *parts, axis=axis)


def split(n: Node, w: Writer) -> List[str]:
    """Divide an axis into equal parts, which lose the axis with squeeze_axis."""
    axis = n.data.axis(n.integer("axis", 1))
    return _squeezed(w.several(n.integer("num_outputs"), "Split", n.data, axis=axis), axis, n, w)


def _squeezed(parts: List[str], axis: int, n: Node, w: Writer) -> List[str]:
    if not n.flag("squeeze_axis"):
        return parts
    return [w.add("Squeeze", one, w.integers([axis])) for one in parts]


def split_at(n: Node, w: Writer) -> List[str]:
    """Divide an axis at some places, or into sections."""
    axis, sections = n.data.axis(n.integer("axis")), n.integer("sections")
    size, begins = n.data.shape[axis], list(n.integers("indices"))
    if sections:
        if n.data.growth[axis]:
            raise UntranslatableError("sections of the batch")
        begins = [k * (size // sections) + min(k, size % sections) for k in range(sections)]
    ends = [*begins[1:], None]
    parts = [w.sliced(n.data, axis, begin, end) for begin, end in zip(begins, ends)]
    return _squeezed(parts, axis, n, w)


def slice_(n: Node, w: Writer) -> str:
    """A slice of the first axes."""
    value: str = n.data.name
    begins, ends, steps = n.places("begin"), n.places("end"), n.places("step")
    for axis, (begin, end) in enumerate(zip(begins, ends)):
        step = (steps[axis] if axis < len(steps) else None) or 1
        if (begin, end, step) not in ((None, None, 1), (0, None, 1)):
            if begin is None:
                begin = 0 if step > 0 else np.iinfo(np.int64).max
            value = w.sliced(value, axis, begin, end, step)
    return value if value != n.data.name else w.add("Identity", value)


def slice_axis(n: Node, w: Writer) -> str:
    """A slice of one axis."""
    (end,) = n.places("end") or [None]
    return w.sliced(n.data, n.data.axis(n.integer("axis")), n.integer("begin"), end)


def slice_like(n: Node, w: Writer) -> str:
    """The first places of some axes, as many as another tensor has."""
    value: str = n.data.name
    for axis in n.axes("axes") or range(n.data.rank):
        size = w.sliced(w.sizes(n.out), 0, axis, axis + 1)
        value = w.add("Slice", value, w.integers([0]), size, w.integers([axis]))
    return value


def crop(n: Node, w: Writer) -> str:
    """The last two axes cut to a size, from an offset or around the middle."""
    places = n.integers("offset", (0, 0))
    if n.flag("center_crop"):
        places = tuple((a - b) // 2 for a, b in zip(n.data.shape[2:], n.out.shape[2:]))
    value = n.data.name
    for axis, begin in zip((2, 3), places):
        value = w.sliced(value, axis, begin, begin + n.out.shape[axis])
    return value


def _with_axes_before(tensor: Tensor, rank: int, w: Writer) -> str:
    """Return a tensor with axes of size 1 before its own, so that it has at least so many."""
    more = range(rank - tensor.rank)
    return w.add("Unsqueeze", tensor, w.integers(more)) if more else tensor.name


def tile(n: Node, w: Writer) -> str:
    """Repeat the whole."""
    counts = n.integers("reps")
    value = _with_axes_before(n.data, len(counts), w)
    return w.add("Tile", value, w.integers([1] * (n.data.rank - len(counts)) + list(counts)))


def repeat(n: Node, w: Writer) -> str:
    """Repeat each value, along an axis or of the flattened tensor."""
    value, rank = n.data.name, n.data.rank
    if n.text("axis") == "None":
        value, rank = w.add("Reshape", value, w.integers([-1])), 1
    axis = n.integer("axis") % rank
    counts = [n.integer("repeats") if k == axis + 1 else 1 for k in range(rank + 1)]
    value = w.add("Tile", w.add("Unsqueeze", value, w.integers([axis + 1])), w.integers(counts))
    return w.reshaped(value, n.out)


def pad(n: Node, w: Writer) -> str:
    """Pad with a constant, with the border or with a reflection."""
    mode = n.text("mode", "constant")
    if mode not in ("constant", "edge", "reflect"):
        raise UntranslatableError(f"mode {mode}")
    widths = [int(one) for one in re.findall(r"\d+", n.text("pad_width"))]
    places = w.integers([*widths[::2], *widths[1::2]])
    number = n.number("constant_value", n.number("constant_values"))
    value = [w.scalar(number, n.out.dtype)] if mode == "constant" else []
    return w.add("Pad", n.data, places, *value, mode=mode)


def flip(n: Node, w: Writer) -> str:
    """Reverse axes."""
    value = n.data.name
    for axis in n.axes() or range(n.data.rank):
        value = w.sliced(value, axis, -1, None, -1)
    return value


def roll(n: Node, w: Writer) -> str:
    """Move values along axes, the last ones to the front; of the flattened tensor without axes."""
    shifts, axes = n.integers("shift"), n.integers("axis")
    value, data = n.data.name, n.data
    if not axes:
        value, data, axes = w.add("Reshape", value, w.integers([-1])), flattened(data), (0,)
    shifts = shifts * len(axes) if len(shifts) == 1 else shifts
    for axis, shift in zip(map(data.axis, axes), shifts):
        place = -shift if data.growth[axis] else -shift % data.shape[axis]
        parts = [w.sliced(value, axis, place, None), w.sliced(value, axis, 0, place)]
        value = w.add("Concat", *parts, axis=axis)
    return w.reshaped(value, n.out)


def diagonal(n: Node, w: Writer) -> str:
    """The diagonal of two axes, as the last axis."""
    first, second = (n.data.axis(n.integer(key, k)) for k, key in enumerate(("axis1", "axis2")))
    if n.data.rank == 1 or n.data.growth[first] or n.data.growth[second]:
        raise UntranslatableError("a matrix of a vector, or a diagonal of the batch")
    rest = [axis for axis in range(n.data.rank) if axis not in (first, second)]
    rows, columns = n.data.shape[first], n.data.shape[second]
    offset = n.integer("k", n.integer("offset"))
    value = w.transposed(n.data, [*rest, first, second])
    flat = w.add("Reshape", value, w.integers([0] * len(rest) + [rows * columns]))
    places = np.diagonal(np.arange(rows * columns).reshape(rows, columns), offset)
    return w.add("Gather", flat, w.integers(places.tolist()), axis=len(rest))


def triangle(n: Node, w: Writer) -> str:
    """The lower triangle of matrices, with zeros above."""
    ones = np.tril(np.ones(n.data.shape[-2:], n.out.dtype), n.integer("k"))
    return w.add("Mul", n.data, w.constant(ones))


def move_axes(n: Node, w: Writer) -> str:
    """`mx.np.moveaxis`."""
    sources, places = (
        [n.data.axis(axis) for axis in n.integers(key)] for key in ("source", "destination")
    )
    order = [axis for axis in range(n.data.rank) if axis not in sources]
    for place, source in sorted(zip(places, sources)):
        order.insert(place, source)
    return w.add("Transpose", n.data, perm=order)


def filled(n: Node, w: Writer) -> str:
    """One number at every place of a size that follows the batch."""
    number = n.number("fill_value", n.number("value", float("ones" in n.op)))
    return w.add("ConstantOfShape", w.sizes(n.out), value=np.array([number], n.out.dtype))


def flattened(tensor: Tensor) -> Tensor:
    """Return what is known of a tensor as one axis."""
    if sum(map(bool, tensor.growth)) > 1:
        raise UntranslatableError(NONLINEAR)
    rest = [size for size, growth in zip(tensor.shape, tensor.growth) if not growth]
    growth = sum(tensor.growth) * int(np.prod(rest))
    return Tensor((int(np.prod(tensor.shape)),), (growth,), tensor.dtype)


def size_of(tensor: Tensor, axis: int, w: Writer) -> str:
    """Return the size of an axis as a scalar."""
    if not tensor.growth[axis]:
        return w.scalar(tensor.shape[axis], "int64")
    return w.add("Gather", w.sizes(tensor), w.scalar(axis, "int64"), axis=0)


def positions(tensor: Tensor, axis: int, w: Writer) -> str:
    """Return 0, 1, 2 … along an axis of a tensor, as it is broadcast."""
    shape = [-1 if k == axis else 1 for k in range(tensor.rank)]
    if not tensor.growth[axis]:
        return w.constant(np.arange(tensor.shape[axis], dtype=np.int64).reshape(shape))
    zero, one = (w.scalar(k, "int64") for k in (0, 1))
    counted = w.add("Range", zero, size_of(tensor, axis, w), one)
    return w.add("Reshape", counted, w.integers(shape))


def arange_like(n: Node, w: Writer) -> str:
    """0, 1, 2 …, as many as an axis has, or as the tensor has values."""
    if n.integer("repeat", 1) != 1:
        raise UntranslatableError("repeated numbers")
    found = w.cast(w.reshaped(positions(flattened(n.out), 0, w), n.out), n.out.dtype)
    scaled = w.add("Mul", found, w.scalar(n.number("step", 1), n.out.dtype))
    return w.add("Add", scaled, w.scalar(n.number("start"), n.out.dtype))


def _within(indices: Tensor, data: Tensor, axis: int, mode: str, w: Writer) -> str:
    """Return indices that MXNet clips to the ends of an axis, or wraps around."""
    places, size, one = w.cast(indices, "int64"), size_of(data, axis, w), w.scalar(1, "int64")
    if mode == "wrap":
        return w.add("Mod", places, size)
    last = w.add("Sub", size, one) if data.growth[axis] else w.scalar(data.shape[axis] - 1, "int64")
    return w.add("Clip", places, w.scalar(0, "int64"), last)


def take(n: Node, w: Writer) -> str:
    """Places of an axis, as rows of an embedding; those outside are clipped or wrapped around."""
    data, indices = n.inputs[::-1] if n.op == "Embedding" else n.inputs
    axis = data.axis(n.integer("axis"))
    return w.add("Gather", data, _within(indices, data, axis, n.text("mode", "clip"), w), axis=axis)


def pick(n: Node, w: Writer) -> str:
    """One place of an axis for each row."""
    data, indices = n.inputs
    axis = 1 if n.op == "batch_take" else data.axis(n.integer("axis", -1))
    places = _within(indices, data, axis, n.text("mode", "clip"), w)
    if indices.rank < data.rank:
        places = w.add("Unsqueeze", places, w.integers([axis]))
    found = w.add("GatherElements", data, places, axis=axis)
    return found if n.flag("keepdims") else w.add("Squeeze", found, w.integers([axis]))


def gather_nd(n: Node, w: Writer) -> str:
    """Values at places whose coordinates MXNet has along the first axis."""
    data, indices = n.inputs
    order = [*range(1, indices.rank), 0]
    return w.add("GatherND", data, w.transposed(w.cast(indices, "int64"), order))


def one_hot(n: Node, w: Writer) -> str:
    """1 at a place, 0 elsewhere; a place outside has no 1."""
    dtype, depth = n.out.dtype, n.integer("depth")
    shape = [1] * n.data.rank + [depth]
    places = w.constant(np.arange(depth, dtype=np.int64).reshape(shape))
    chosen = w.add("Equal", w.add("Unsqueeze", w.cast(n.data, "int64"), w.integers([-1])), places)
    on, off = (w.scalar(n.number(key, k), dtype) for key, k in (("on_value", 1), ("off_value", 0)))
    return w.add("Where", chosen, on, off)


TRANSLATIONS: Dict[str, Callable] = {
    # Operators that only change the shape: the output's is known, whatever the batch.
    **dict.fromkeys(
        "Reshape reshape_like expand_dims squeeze".split(), lambda n, w: w.reshaped(n.data, n.out)
    ),
    "Flatten": lambda n, w: w.add("Flatten", n.data, axis=1),
    **dict.fromkeys(["transpose", "SwapAxis"], transpose),
    **dict.fromkeys(["Concat", "_npi_concatenate"], concat),
    "stack": stack,
    "SliceChannel": split,
    **dict.fromkeys(["_split_v2", "_npi_hsplit"], split_at),
    "slice": slice_,
    "slice_axis": slice_axis,
    "slice_like": slice_like,
    "Crop": crop,
    **dict.fromkeys(
        "broadcast_to broadcast_like broadcast_axis".split(),
        lambda n, w: w.add("Expand", _with_axes_before(n.data, n.out.rank, w), w.sizes(n.out)),
    ),
    "tile": tile,
    "repeat": repeat,
    **dict.fromkeys(["Pad", "_npi_pad"], pad),
    **dict.fromkeys(["reverse", "_npi_flip"], flip),
    "_np_roll": roll,
    **dict.fromkeys(["diag", "_np_diag", "_np_diagonal"], diagonal),
    "_npi_tril": triangle,
    "_np_moveaxis": move_axes,
    **dict.fromkeys("_zeros _ones _full zeros_like ones_like _npi_full_like".split(), filled),
    "_contrib_arange_like": arange_like,
    "shape_array": lambda n, w: w.sizes(n.data),
    "size_array": lambda n, w: w.add("ReduceProd", w.sizes(n.data), axes=[0], keepdims=1),
    **dict.fromkeys(["Embedding", "take"], take),
    **dict.fromkeys(["pick", "batch_take"], pick),
    "gather_nd": gather_nd,
    "one_hot": one_hot,
    "depth_to_space": lambda n, w: w.add(
        "DepthToSpace", n.data, blocksize=n.integer("block_size"), mode="DCR"
    ),
    "space_to_depth": lambda n, w: w.add("SpaceToDepth", n.data, blocksize=n.integer("block_size")),
}
