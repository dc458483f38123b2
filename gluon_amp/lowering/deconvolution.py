"""Deconvolutions by MXNet's own kernels, on a CPU.

They are for those that the blocked layout does not take: in emulated float16 1-D and 3-D ones,
those with a target shape, and all where there is no C++ library; in bfloat16 the latter, and those
in a loop or branch; in float32 those whose weight is not an array of the user.

oneDNN's gradient of a deconvolution fails ("could not execute a primitive", or a crash) unless the
gradient of the weight is written to an array of the user. The gradient of a rounded weight is not,
nor is that of a weight with several readers, or one in the body of a control flow operator. After
the failure, later operators of the process fail as well.
For float64 MXNet uses its own kernels instead of oneDNN's. They have two limits:

- They are wrong if both stride and dilation are above 1. The dilated kernel is replaced by the
  equivalent larger kernel with zeros in between.
- They are 1-D and 2-D. A 3-D deconvolution is computed as two 2-D ones. The first deconvolves
  height and width of every slice, once for each position of the kernel in depth. The second, over
  depth and all pixels, adds the contributions of the positions to each slice: its weight is an
  identity matrix for each filter.
"""

from typing import Callable, Dict, List, Optional, Tuple

from gluon_amp.graph import Entry, Json, Writer, integer, integers, readers_of
from gluon_amp.lowering.typed_graph import TypedGraph

BY_ONEDNN = ("float32", "bfloat16")

Emit = Callable[..., Entry]  # `Writer.emit`
Attributes = Dict[str, str]
Axes = Tuple[int, int]

# Attributes with one value per dimension, and their defaults
SPATIAL = {"stride": 1, "dilate": 1, "pad": 0, "adj": 0}


def avoid_onednn(graph: TypedGraph, is_body: bool = False) -> TypedGraph:
    """Return a graph of the same values without the deconvolutions whose gradient fails in oneDNN.

    It is `graph` itself if it has none. `is_body`: it is the body of a control flow operator.
    """
    nodes, readers = graph.json["nodes"], readers_of(graph.json)

    def by_mxnet(out: Writer, i: int, node: Json, inputs: List[Entry]) -> Optional[Entry]:
        name, dtype = node["name"], graph.edges.get((i, 0))
        if node["op"] != "Deconvolution" or dtype not in BY_ONEDNN:
            return None
        weight = node["inputs"][1][0]
        alone = sum(reader is not None for reader, _ in readers[weight]) == 1
        works = nodes[weight]["op"] == "null" and alone and not is_body
        if works and dtype == "float32":
            return None
        wide = []
        for k, entry in enumerate(inputs):
            if dtype == "bfloat16":  # `Cast` has no bfloat16
                entry = out.emit("amp_cast", f"{name}_input{k}_wide", entry, dtype="float32")
            wide.append(out.emit("Cast", f"{name}_input{k}_float64", entry, dtype="float64"))
        result = deconvolve(out.emit, name, node["attrs"], wide)
        entry = out.emit("Cast", f"{name}_float32", result, dtype="float32")
        if dtype == "bfloat16":
            entry = out.emit("amp_cast", f"{name}_bfloat16", entry, dtype=dtype)
        return entry

    return graph.by(by_mxnet)


def deconvolve(emit: Emit, name: str, attrs: Attributes, inputs: List[Entry]) -> Entry:
    """Append the nodes that compute a `Deconvolution`, by `Writer.emit`; return the result's entry.

    `name` is that of the last node, and `inputs` are entries in float64. A 3-D one with a target
    shape is refused, since its padding depends on the shape of the data.
    """
    if len(integers(attrs, "kernel")) < 3:
        return _with_dense_kernel(emit, name, attrs, inputs)
    if any(integers(attrs, "target_shape")):
        raise ValueError(
            f"{name} is a 3-D Deconvolution with target_shape, which cannot be emulated in float16 "
            "on a CPU: give it pad and adj instead, or pin it to float32."
        )
    return _in_two_dimensions(emit, name, attrs, inputs)


def _spatial(attrs: Attributes) -> Dict[str, Tuple[int, ...]]:
    dimensions = len(integers(attrs, "kernel"))
    return {key: integers(attrs, key, (default,) * dimensions) for key, default in SPATIAL.items()}


def _with_dense_kernel(emit: Emit, name: str, attrs: Attributes, inputs: List[Entry]) -> Entry:
    """A deconvolution with stride or dilation; for both, with zeros written into its kernel."""
    kernel, spatial = integers(attrs, "kernel"), _spatial(attrs)
    if max(spatial["stride"]) == 1 or max(spatial["dilate"]) == 1:
        return emit("Deconvolution", name, *inputs, **attrs)
    data, weight, *bias = inputs
    zeros, ones = (0,) * len(kernel), (1,) * len(kernel)
    images = emit("Reshape", f"{name}_kernels", weight, shape=str((-3, *zeros)))
    images = emit("expand_dims", f"{name}_images", images, axis="1")
    one = emit("_ones", f"{name}_one", shape=str((1, 1, *ones)), dtype="float64")
    # Deconvolving with a 1×1 kernel of one and a stride puts zeros between the values.
    spreading = {"kernel": str(ones), "stride": str(spatial["dilate"])}
    spreading.update(num_filter="1", no_bias="True")
    spread = emit("Deconvolution", f"{name}_spread", images, one, **spreading)
    spread = _reshaped(emit, f"{name}_dense", spread, (0, 2), weight, (0, 2))
    larger = tuple(d * (k - 1) + 1 for k, d in zip(kernel, spatial["dilate"]))
    attrs = {key: value for key, value in attrs.items() if key != "dilate"}
    attrs["kernel"] = str(larger)
    return emit("Deconvolution", name, data, spread, *bias, **attrs)


def _in_two_dimensions(emit: Emit, name: str, attrs: Attributes, inputs: List[Entry]) -> Entry:
    """A 3-D deconvolution as two 2-D ones."""
    data, weight, *bias = inputs
    filters, (depth, *window) = integer(attrs, "num_filter"), integers(attrs, "kernel")
    spatial = _spatial(attrs)

    slices = emit("transpose", f"{name}_slices", data, axes="(0, 2, 1, 3, 4)")
    images = emit("Reshape", f"{name}_images", slices, shape="(-3, 0, 0, 0)")
    planes = emit("Reshape", f"{name}_planes", weight, shape="(0, -3, 0, 0)")
    of_planes = {
        "kernel": str(tuple(window)),
        "num_filter": str(filters * depth),
        "num_group": attrs.get("num_group", "1"),
        "no_bias": "True",
        **{key: str(values[1:]) for key, values in spatial.items()},
    }
    spread = _with_dense_kernel(emit, f"{name}_plane", of_planes, [images, planes])
    # (N D, filters × depth of the kernel, H', W') to (N, filters × depth of the kernel, D, H' W')
    spread = _reshaped(emit, f"{name}_parts", spread, (0, 1), slices, (0, 2))
    volume = emit("transpose", f"{name}_volume", spread, axes="(0, 2, 1, 3, 4)")
    pixels = emit("Reshape", f"{name}_pixels", volume, shape="(0, 0, 0, -3)")

    eye = emit("_eye", f"{name}_eye", N=str(depth), dtype="float64")
    eyes = emit("tile", f"{name}_eyes", eye, reps=str((filters, 1)))
    eyes = emit("Reshape", f"{name}_sums", eyes, shape=str((filters * depth, 1, depth, 1)))
    of_depth = {
        "kernel": str((depth, 1)),
        "num_filter": str(filters),
        "num_group": str(filters),
        "no_bias": str(not bias),
        **{key: str((spatial[key][0], default)) for key, default in SPATIAL.items()},
    }
    summed = _with_dense_kernel(emit, f"{name}_depth", of_depth, [pixels, eyes, *bias])
    return _reshaped(emit, name, summed, (3, 4), volume, (3, 5))


def _reshaped(
    emit: Emit, name: str, entry: Entry, axes: Axes, like: Entry, axes_like: Axes
) -> Entry:
    """Reshape some axes of a tensor to the sizes of some axes of another."""
    keys = ("lhs_begin", "lhs_end", "rhs_begin", "rhs_end")
    return emit("reshape_like", name, entry, like, **dict(zip(keys, map(str, axes + axes_like))))
