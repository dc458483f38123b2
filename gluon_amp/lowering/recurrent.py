"""Recurrent layers (`RNN`) in low precision, computed by an operator of gluon_amp's C++ library.

MXNet's operator computes in float32 only, and reads all parameters from one array, which Gluon's
layers copy them to at each call. Ours multiplies in bfloat16, or in float32 in the emulation and
under `fused_float32` (`kernels/src/recurrent.cc`). It reads parameters as they are stored, or as
the emulation of bfloat16 rounds them. Layers with dropout between them are an operator each.
"""

from typing import Dict, List, Tuple

from gluon_amp.base import bfloat16, hardware
from gluon_amp.base.registry import canonical
from gluon_amp.graph import CASTS, FUSED_ATTR, Writer, tuple_of
from gluon_amp.lowering import blocked
from gluon_amp.lowering.typed_graph import Edge, TypedGraph
from gluon_amp.policy.bfloat16_kernels import has_kernel
from gluon_amp.policy.cast_pass import LOW_PRECISION

LAYER, CONCAT = "RNN", "_rnn_param_concat"
FLATTENING = ("Reshape", "_np_reshape", "_npx_reshape")

KEPT = ("mode", "state_size", "num_layers", "bidirectional", "state_outputs")


def replace_layers(graph: TypedGraph) -> TypedGraph:
    """Return a graph of the same values whose layers in low precision, or fused, are ours.

    MXNet's stay where there is no library, and where an attribute asks for what ours does not have.
    If bfloat16 is native, these read and return it through casts, also without AVX512_BF16:
    products in bfloat16 then take twice as long. It is `graph` itself if it has no such layers.
    """
    nodes, out, changed = graph.json["nodes"], Writer(), False
    for i, node in enumerate(nodes):
        inputs = [out.remap(entry) for entry in node["inputs"]]
        dtype = graph.edges.get((i, 0)) if canonical(node["op"]) == LAYER else None
        native = dtype == "bfloat16" and bfloat16.is_native()
        fused = dtype == "float32" and FUSED_ATTR in node["attrs"]
        emulated = dtype == "bfloat16" and not native
        fast = native and "avx512_bf16" in hardware.onednn_flags()
        ours = dtype == "float16" or fused or emulated or fast
        ours = ours and blocked.available() and has_kernel(LAYER, node["attrs"])
        stored = _parameters(graph, node) if ours else []
        drops = ours and float(node["attrs"].get("p", 0)) > 0 and node["attrs"]["num_layers"] != "1"
        ours = ours and not (drops and len(stored) == 1)
        wide = (ours and dtype == "float16") or (native and not ours)  # it reads float32
        changed = changed or ours or wide
        if wide:
            inputs = [
                out.emit("amp_cast", f"{node['name']}_input{k}", entry, dtype="float32")
                for k, entry in enumerate(inputs)
            ]
        read = sorted(k for j, k in graph.edges if j == i)
        if ours:
            rate = node["attrs"].get("p")
            node, inputs = _own(graph, out, node, inputs, stored, emulated)
        if ours and drops:
            layers = _Layers(out, node, rate, dtype if native else "float32")
            results = layers.stacked(inputs, len(stored), read)
        else:
            number = out.copy(node, inputs)[0]
            results = {k: [number, k, 0] for k in {0, *read}}
        out.numbers.append(results[0][0])
        for k in read:
            name = f"{node['name']}_output{k}"
            cast = wide and out.emit("amp_cast", name, results[k], dtype=dtype)
            out.replaced[i, k] = cast or results[k]
    return graph.written(out) if changed else graph


def _parameters(graph: TypedGraph, node: dict) -> List[Edge]:
    """Return the parameters of layers as they are stored: one array of all, or each weight."""
    nodes = graph.json["nodes"]
    stored = _stored(graph, tuple(node["inputs"][1][:2]))
    source = nodes[stored[0]]
    if source["op"] == CONCAT:
        parts = [_stored(graph, tuple(entry[:2])) for entry in source["inputs"]]
        flat = [nodes[i] for i, _ in parts]
        if all(part["op"] in FLATTENING for part in flat):
            return [_stored(graph, tuple(part["inputs"][0][:2])) for part in flat]
    return [stored]


def _own(
    graph: TypedGraph,
    out: Writer,
    node: dict,
    inputs: List[list],
    stored: List[Edge],
    emulated: bool,
) -> Tuple[dict, List[list]]:
    """Return our operator in place of a layer, and what it reads, perhaps in emulated bfloat16."""
    nodes = graph.json["nodes"]
    attrs = {key: node["attrs"][key] for key in KEPT if key in node["attrs"]}
    attrs["num_parameters"] = str(len(stored))
    attrs["variable_weight"] = str(all(nodes[i]["op"] == "null" for i, _ in stored))
    if emulated or FUSED_ATTR in node["attrs"]:
        attrs["in_float32"] = "True"
    parameters = []
    for i, k in stored:
        entry = out.remap([i, k, 0])
        if graph.edges[i, k] == "bfloat16":
            entry = out.emit("amp_cast", f"{nodes[i]['name']}_wide", entry, dtype="float32")
        elif emulated:
            entry = out.emit("amp_cast", f"{nodes[i]['name']}_rounded", entry, dtype="bfloat16")
        parameters.append(entry)
    new = {**node, "op": blocked.RECURRENT, "attrs": attrs}
    return new, [inputs[0], *parameters, *inputs[2:]]


class _Layers:
    """Layers of our operator, each with its own node, and MXNet's Dropout between them.

    MXNet computes Dropout and parts of states in float32: they are read through casts of `dtype`.
    """

    def __init__(self, out: Writer, node: dict, rate: str, dtype: str) -> None:
        self.out, self.node, self.rate, self.dtype = out, node, rate, dtype
        self.layers = int(node["attrs"]["num_layers"])

    def stacked(self, inputs: List[list], parameters: int, read: List[int]) -> Dict[int, list]:
        """Append the layers; return the entries of those results that are `read`, and the first."""
        data, (weights, states) = inputs[0], (inputs[1 : 1 + parameters], inputs[1 + parameters :])
        size = parameters // (2 * self.layers)  # of a layer's weights, and of its biases
        directions, numbers = size // 2, []
        attrs = {**self.node["attrs"], "num_layers": "1", "num_parameters": str(2 * size)}
        for layer in range(self.layers):
            is_last = layer == self.layers - 1
            name = self.node["name"] + ("" if is_last else f"_layer{layer}")
            if layer:
                data = self._in_float32("Dropout", f"{name}_dropped", [data], p=self.rate)
            starts = (layer * size, parameters // 2 + layer * size)
            own = [entry for start in starts for entry in weights[start : start + size]]
            first = [
                self._first(f"{name}_first{k}", state, layer * directions, directions)
                for k, state in enumerate(states)
            ]
            data = self.out.copy({**self.node, "name": name, "attrs": attrs}, [data, *own, *first])
            numbers.append(data[0])
        last = {
            k: self._in_float32(
                "Concat",
                f"{self.node['name']}_last{k}",
                [[number, k, 0] for number in numbers],
                dim="0",
                num_args=str(self.layers),
            )
            for k in read
            if k
        }
        return {0: data, **last}

    def _first(self, name: str, state: list, begin: int, count: int) -> list:
        """Return a layer's part of a state; zeros, whose batch may be unknown, are new ones."""
        source = self.out.nodes[state[0]]
        while source["op"] in CASTS:
            source = self.out.nodes[source["inputs"][0][0]]
        if source["op"] == "_zeros":
            shape = (count, *tuple_of(source["attrs"]["shape"])[1:])
            attrs = {**source["attrs"], "shape": str(shape), "dtype": "float32"}
            return self._cast(name, self.out.emit("_zeros", f"{name}_zeros", **attrs), self.dtype)
        ends = {"begin": str(begin), "end": str(begin + count)}
        return self._in_float32("slice_axis", name, [state], axis="0", **ends)

    def _in_float32(self, op: str, name: str, inputs: List[list], **attrs: str) -> list:
        wide = [self._cast(f"{name}_wide{k}", x, "float32") for k, x in enumerate(inputs)]
        return self._cast(name, self.out.emit(op, f"{name}_float32", *wide, **attrs), self.dtype)

    def _cast(self, name: str, entry: list, dtype: str) -> list:
        if self.dtype == "float32":
            return entry
        return self.out.emit("amp_cast", name, entry, dtype=dtype)


def _stored(graph: TypedGraph, edge: Edge) -> Edge:
    """Return the tensor that a parameter is rounded from."""
    node = graph.json["nodes"][edge[0]]
    while node["op"] in CASTS and graph.edges[edge] in LOW_PRECISION:
        below = tuple(node["inputs"][0][:2])
        if graph.edges[below] not in ("float32", "float16"):
            break
        edge, node = below, graph.json["nodes"][below[0]]
    return edge
