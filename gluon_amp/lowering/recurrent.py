"""Recurrent layers (`RNN`) in low precision, computed by an operator of gluon_amp's C++ library.

MXNet's operator computes in float32 only, and reads all parameters from one array, which Gluon's
layers copy them to at each call. Ours multiplies in bfloat16, or in float32 in the emulation and
under `fused_float32` (`kernels/src/recurrent.cc`). It reads parameters as they are stored. Between
layers it applies dropout, by masks that it reads. MXNet's operator drops nothing on a CPU (oneDNN
issue 807).
"""

from typing import List, Optional, Tuple

from gluon_amp.base import bfloat16, hardware
from gluon_amp.graph import FUSED_ATTR, Entry, Json, Writer, classic, edge_of, flag, integer, number
from gluon_amp.graph import own_operators as own
from gluon_amp.lowering import blocked
from gluon_amp.lowering.typed_graph import TypedGraph
from gluon_amp.policy.bfloat16_kernels import has_kernel

LAYER, CONCAT = "RNN", "_rnn_param_concat"
KEPT = ("mode", "state_size", "num_layers", "bidirectional", "state_outputs")


def replace_layers(graph: TypedGraph) -> TypedGraph:
    """Return a graph of the same values whose layers in low precision, or fused, are ours.

    MXNet's stay where there is no library, and where an attribute asks for what ours does not have.
    If bfloat16 is native, these read and return it through casts, also without AVX512_BF16:
    products in bfloat16 then take twice as long. It is `graph` itself if it has no such layers.
    """

    def replaced(out: Writer, i: int, node: Json, inputs: List[Entry]) -> Optional[Entry]:
        dtype = graph.edges.get((i, 0))
        if node["op"] != LAYER or dtype is None:
            return None
        native = dtype == "bfloat16" and bfloat16.is_native()
        fused = dtype == "float32" and FUSED_ATTR in node["attrs"]
        emulated = dtype == "bfloat16" and not native
        fast = native and "avx512_bf16" in hardware.onednn_flags()
        ours = dtype == "float16" or fused or emulated or fast
        ours = ours and blocked.available() and has_kernel(LAYER, node["attrs"])
        wide = (ours and dtype == "float16") or (native and not ours)  # it reads float32
        if not ours and not wide:
            return None
        if wide:
            inputs = [
                out.emit("amp_cast", f"{node['name']}_input{k}", entry, dtype="float32")
                for k, entry in enumerate(inputs)
            ]
        if ours:
            node, inputs = _own(graph, out, node, inputs, emulated)
        entry = out.copy(node, inputs)
        for k in sorted(graph.outputs()[i]) if wide else ():
            name = f"{node['name']}_output{k}"
            out.replaced[i, k] = out.emit("amp_cast", name, [entry[0], k, 0], dtype=dtype)
        return entry

    return graph.by(replaced)


def _own(
    graph: TypedGraph, out: Writer, node: Json, inputs: List[Entry], emulated: bool
) -> Tuple[Json, List[Entry]]:
    """Return our operator in place of a layer, and what it reads, perhaps in emulated bfloat16."""
    nodes = graph.json["nodes"]
    stored = [graph.stored(edge_of(node["inputs"][1]))]
    source = nodes[stored[0][0]]
    if source["op"] == CONCAT:
        parts = [graph.stored(edge_of(entry)) for entry in source["inputs"]]
        flat = [nodes[i] for i, _ in parts]
        if all(classic(part["op"]) == "Reshape" for part in flat):
            stored = [graph.stored(edge_of(part["inputs"][0])) for part in flat]
    attrs = {key: node["attrs"][key] for key in KEPT if key in node["attrs"]}
    attrs["num_parameters"] = str(len(stored))
    attrs["variable_weight"] = str(all(nodes[i]["op"] == "null" for i, _ in stored))
    if emulated:
        attrs["bfloat_values"] = "True"
    elif FUSED_ATTR in node["attrs"]:
        attrs["in_float32"] = "True"
    parameters = []
    for i, k in stored:
        entry = out.remap([i, k, 0])
        if graph.edges[i, k] == "bfloat16":
            entry = out.emit("amp_cast", f"{nodes[i]['name']}_wide", entry, dtype="float32")
        parameters.append(entry)
    read = [inputs[0], *parameters, *inputs[2:]]
    if number(node["attrs"], "p") > 0 and integer(node["attrs"], "num_layers") > 1:
        read.append(_masks(out, node, inputs[0]))
        attrs["masked"] = "True"
    return {**node, "op": own.RNN, "attrs": attrs}, read


def _masks(out: Writer, node: Json, data: Entry) -> Entry:
    """Return what the results of all layers but the last are multiplied by: Dropout of ones."""
    attrs, name = node["attrs"], node["name"]
    width = integer(attrs, "state_size") * (2 if flag(attrs, "bidirectional") else 1)
    wide = out.emit("amp_cast", f"{name}_wide", data, dtype="float32")
    one = out.emit("slice_axis", f"{name}_one", wide, axis="2", begin="0", end="1")
    ones = out.emit("ones_like", f"{name}_ones", one)
    reps = str((integer(attrs, "num_layers") - 1, 1, 1, width))
    ones = out.emit("tile", f"{name}_all", ones, reps=reps)
    masks = out.emit("Dropout", f"{name}_dropout", ones, p=attrs["p"])
    return out.emit("BlockGrad", f"{name}_masks", masks)
