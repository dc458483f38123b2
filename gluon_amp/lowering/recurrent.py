"""Recurrent layers (`RNN`) in low precision, computed by an operator of gluon_amp's C++ library.

MXNet's operator computes in float32 only, and reads all parameters from one array, which Gluon's
layers copy them to at each call. Ours multiplies in bfloat16, or in float32 in the emulation and
under `fused_float32` (`kernels/src/recurrent.cc`). It reads parameters as they are stored, or as
the emulation of bfloat16 rounds them. Between layers it applies dropout, by masks that it reads.
MXNet's operator drops nothing on a CPU (oneDNN issue 807).
"""

from typing import List, Tuple

from gluon_amp.base import bfloat16, hardware
from gluon_amp.base.registry import canonical
from gluon_amp.graph import FUSED_ATTR, Writer, flag
from gluon_amp.lowering import blocked
from gluon_amp.lowering.typed_graph import TypedGraph
from gluon_amp.policy.bfloat16_kernels import has_kernel

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
        wide = (ours and dtype == "float16") or (native and not ours)  # it reads float32
        changed = changed or ours or wide
        if wide:
            inputs = [
                out.emit("amp_cast", f"{node['name']}_input{k}", entry, dtype="float32")
                for k, entry in enumerate(inputs)
            ]
        if ours:
            node, inputs = _own(graph, out, node, inputs, emulated)
        number = out.copy(node, inputs)[0]
        out.numbers.append(number)
        for k in sorted(k for j, k in graph.edges if wide and j == i):
            name = f"{node['name']}_output{k}"
            out.replaced[i, k] = out.emit("amp_cast", name, [number, k, 0], dtype=dtype)
    return graph.written(out) if changed else graph


def _own(
    graph: TypedGraph, out: Writer, node: dict, inputs: List[list], emulated: bool
) -> Tuple[dict, List[list]]:
    """Return our operator in place of a layer, and what it reads, perhaps in emulated bfloat16."""
    nodes = graph.json["nodes"]
    stored = [graph.stored(tuple(node["inputs"][1][:2]))]
    source = nodes[stored[0][0]]
    if source["op"] == CONCAT:
        parts = [graph.stored(tuple(entry[:2])) for entry in source["inputs"]]
        flat = [nodes[i] for i, _ in parts]
        if all(part["op"] in FLATTENING for part in flat):
            stored = [graph.stored(tuple(part["inputs"][0][:2])) for part in flat]
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
    read = [inputs[0], *parameters, *inputs[2:]]
    rate = node["attrs"].get("p", "0")
    if float(rate) > 0 and int(attrs["num_layers"]) > 1:
        read.append(_masks(out, node, inputs[0], rate))
        attrs["masked"] = "True"
    return {**node, "op": blocked.RECURRENT, "attrs": attrs}, read


def _masks(out: Writer, node: dict, data: list, rate: str) -> list:
    """Return what the results of all layers but the last are multiplied by: Dropout of ones."""
    attrs, name = node["attrs"], node["name"]
    width = int(attrs["state_size"]) * (2 if flag(attrs, "bidirectional") else 1)
    wide = out.emit("amp_cast", f"{name}_wide", data, dtype="float32")
    one = out.emit("slice_axis", f"{name}_one", wide, axis="2", begin="0", end="1")
    ones = out.emit("ones_like", f"{name}_ones", one)
    reps = str((int(attrs["num_layers"]) - 1, 1, 1, width))
    ones = out.emit("tile", f"{name}_all", ones, reps=reps)
    masks = out.emit("Dropout", f"{name}_dropout", ones, p=rate)
    return out.emit("BlockGrad", f"{name}_masks", masks)
