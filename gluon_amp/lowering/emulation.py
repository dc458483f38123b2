"""Emulates low precision on a CPU: float32 tensors hold its values, rounded after each operator.

MXNet's CPU build has no float16 matrix product ("FP16 gemm on cpu not implemented!"), and oneDNN
has fast bfloat16 kernels for CPUs with AMX or AMD's AVX512_BF16 only. In the emulation, each
operator that the cast graph runs in float16 reads float16 values, computes in float32 and has its
outputs rounded to float16: to nearest even, with subnormals, with overflow to infinity. A Tensor
Core also multiplies float16, but its sums are not IEEE float32 sums: they have 23 or 24 fractional
bits, and are truncated (arXiv 2511.10909). A policy can accumulate in float16 instead
(`study`). Gradients are rounded at the same places in the backward pass, so they underflow
and overflow as float16 does. bfloat16 is emulated in the same way.

Operators that only move or select values (reshape, relu, max-pooling) need no rounding, since they
return values of the format already.

Values are rounded in place by an operator of gluon_amp's C++ library (`kernels`), if there is one.
Otherwise they are rounded to float16 by two of MXNet's `Cast`, to float16 and back. Both give the
same bits, except in the payload of NaNs. MXNet has no operator that rounds to bfloat16 without
AVX512, and operators in Python fail among oneDNN's, so the emulation of bfloat16 needs the library.
"""

import math
import os
from typing import Dict, List

from gluon_amp import kernels
from gluon_amp.base import bfloat16
from gluon_amp.base.formats import FORMATS, FloatFormat
from gluon_amp.graph import (
    CASTS,
    MX_DTYPE_CODES,
    ROUNDED_ATTR,
    Edge,
    Entry,
    Json,
    Writer,
    edge_of,
    op_table,
    readers_of,
)
from gluon_amp.graph import own_operators as own
from gluon_amp.lowering.deconvolution import deconvolve
from gluon_amp.lowering.typed_graph import TypedGraph

CONVERSIONS = {"float16": own.NARROW, "float32": own.WIDEN}  # to each from the other


def is_emulated(dtype: str, device_type: str = "cpu") -> bool:
    """Return whether a dtype has the values of its format on a device, but not its speed."""
    if device_type == "gpu":
        return False
    return dtype == "float16" or (
        dtype == "bfloat16" and not bfloat16.is_native(kernels.available())
    )


def emulate(graph: TypedGraph) -> TypedGraph:
    """Return a graph that runs on a CPU and returns what `graph` returns with the dtypes' kernels.

    Float16 variables and outputs stay float16. It is `graph` itself if nothing in it is emulated.
    """
    if not any(map(is_emulated, set(graph.edges.values()))):
        return graph
    out = _EmulatedGraph(graph)
    out.rewrite(graph.json, lambda _, i, node, inputs: out.emulated(i, node, inputs))
    emulated = out.graph(graph.json)
    for k, (source, output, *_) in enumerate(graph.json["heads"]):
        if graph.edges[source, output] == "float16":  # a float16 output stays float16
            emulated["heads"][k] = out.converted(emulated["heads"][k], "float16")
    emulated = _fuse_relu(emulated) if out.native else emulated
    return graph.rewritten(emulated, out.dtypes())


def rounding_attrs(format_: FloatFormat, saturates: bool = False) -> Dict[str, str]:
    """Return the attributes of the C++ operators that round to a format."""
    overflow = math.inf if format_.infinities else math.nan
    attrs = {
        "significand_bits": format_.significand_bits,
        "bias": format_.bias,
        "largest": format_.largest,
        "overflow": format_.largest if saturates else overflow,
        "subnormals": format_.subnormals,
    }
    return {name: str(value) for name, value in attrs.items()}


class _EmulatedGraph(Writer):
    """The emulated graph being written: float32 tensors of the same values replace others."""

    def __init__(self, old: TypedGraph) -> None:
        super().__init__()
        self.old, self.edges, self.outputs = old, old.edges, old.outputs()
        self.variables: Dict[int, Entry] = {}  # old float16 variable -> its entry, not widened
        self.low = set(filter(is_emulated, set(old.edges.values())))
        self.native = kernels.available()
        if "bfloat16" in self.low and not self.native:
            raise ValueError(
                "bfloat16 cannot run on this CPU: oneDNN has no kernels for it here, and emulating "
                "it takes gluon_amp's C++ kernels; install a C++ compiler or gluon_amp's manylinux "
                "wheel, or use policy 'float16'."
            )

    def dtypes(self) -> Dict[Edge, str]:
        """Return the dtypes of what stands for the old graph's tensors."""
        kept = {
            edge: "float32" if dtype in self.low else dtype
            for edge, dtype in self.old.kept(self).items()
        }
        return {**kept, **{(i, k): "float16" for i, k, *_ in self.variables.values()}}

    def emulated(self, i: int, node: Json, inputs: List[Entry]) -> Entry:
        """Append what a node is in the emulation; return its entry."""
        if node["op"] == "null":
            return self._variable(i, node)
        return (self._cast_of if node["op"] in CASTS else self._operator)(i, node, inputs)

    def _variable(self, i: int, node: Json) -> Entry:
        """Append a variable; a float16 variable stays float16 and is widened for its readers."""
        if self.edges.get((i, 0)) != "float16":
            return self.copy(node, [])
        attrs = {**node["attrs"], "__dtype__": MX_DTYPE_CODES["float16"]}
        self.variables[i] = self.copy({**node, "attrs": attrs}, [])
        return self.converted(self.variables[i], "float32")

    def _cast_of(self, i: int, node: Json, inputs: List[Entry]) -> Entry:
        """Append what a cast is in the emulation: rounding, nothing, or a cast."""
        (entry,) = inputs
        before, after = self.edges[edge_of(node["inputs"][0])], self.edges.get((i, 0))
        if after == before or (before in self.low and after == "float32"):
            return entry
        if after not in self.low:
            return self.copy(node, [entry])
        if before not in ("float32", *self.low):
            entry = self._cast(entry, "float32")
        return self._round(entry, after, ROUNDED_ATTR in node["attrs"])

    def _operator(self, i: int, node: Json, inputs: List[Entry]) -> Entry:
        """Append an operator, which then computes in float32, and round its emulated outputs."""
        attrs = {
            key: "float32" if key in ("dtype", "out_dtype") and value in self.low else value
            for key, value in node["attrs"].items()
        }
        if op_table.has("stored", node["op"]):
            sources = [entry[0] for entry in node["inputs"]]
            inputs = [list(self.variables.get(s, entry)) for s, entry in zip(sources, inputs)]
        if node["op"] == "Deconvolution" and self.edges.get((i, 0)) in self.low:
            wide = [self._cast(entry, "float64") for entry in inputs]
            result = deconvolve(self.emit, node["name"], attrs, wide)
            number = self._cast(result, "float32")[0]
        else:
            number = self.copy({**node, "attrs": attrs}, inputs)[0]
        exact = op_table.has("exact", node["op"], attrs)
        for k in self.outputs.get(i, ()):
            entry, dtype = [number, k, 0], self.edges[i, k]
            must_round = dtype in self.low and not exact
            self.replaced[i, k] = self._round(entry, dtype) if must_round else entry
        return [number, 0, 0]

    def _round(self, entry: Entry, dtype: str, rounded: bool = False) -> Entry:
        """Append the rounding of float32 values to the values of a dtype.

        If they are rounded already, only their gradient is.
        """
        name = self._name(entry, f"rounded_{dtype}")
        if self.native:
            attrs = {**rounding_attrs(FORMATS[dtype]), "rounded": str(rounded)}
            return self.emit(own.ROUND, name, entry, **attrs)
        return self.converted(self.converted(entry, "float16"), "float32")

    def converted(self, entry: Entry, dtype: str) -> Entry:
        """Append the conversion of a float16 tensor to float32, or back."""
        if self.native:
            return self.emit(CONVERSIONS[dtype], self._name(entry, dtype), entry)
        return self._cast(entry, dtype)

    def _cast(self, entry: Entry, dtype: str) -> Entry:
        return self.emit("Cast", self._name(entry, dtype), entry, dtype=dtype)

    def _name(self, entry: Entry, suffix: str) -> str:
        return f"{self.nodes[entry[0]]['name']}_{entry[1]}_{suffix}"


def _fuse_relu(graph: Json) -> Json:
    """Replace a rounding and the relu that alone reads its result by one operator.

    The fused operator returns what oneDNN's relu returns. MXNet's own relu differs for NaN, so
    nothing is fused without oneDNN.
    """
    if os.environ.get("MXNET_MKLDNN_ENABLED", "1") == "0":
        return graph
    nodes, readers = graph["nodes"], readers_of(graph)
    fused = list(nodes)
    for i, node in enumerate(nodes):
        if node["op"] == "Activation" and node["attrs"]["act_type"] == "relu":
            source = node["inputs"][0][0]
            if nodes[source]["op"] == own.ROUND and len(readers[source]) == 1:
                fused[i] = {**nodes[source], "op": own.ROUND_RELU, "name": node["name"]}
    return {**graph, "nodes": fused}
