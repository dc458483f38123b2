"""Ways around three kernels of oneDNN 2.4, which MXNet 1.9.1 has, in bfloat16 on a CPU.

BatchNorm is slow where its data and its gradient lie in two layouts, as they do between the AMX
kernels and those of depthwise convolutions; see `native/layouts.cc`.

1×1 convolutions have an AMX kernel that writes past the end of its result where the positions of an
image make three tiles: 27, 33, 36, 39, 42, 45 or 48 of them, 6×6 for example. A 1×1 kernel stays
what it is when it is dilated, but that one takes no dilation, so another one computes it.

The gradient of a convolution's weight is garbage where an image is narrower than the last stride,
such as a 1×1 image with a stride of 2. The shape is known when the operator runs. So an operator of
our own stands for a convolution with strides: it computes such gradients in float32, and calls
MXNet's kernels otherwise; see `native/convolutions.cc`. Without it they all run in float32.
"""

from typing import Dict

from gluon_amp.lowering import native
from gluon_amp.lowering.deconvolution import tuple_of
from gluon_amp.policy.graph import edge_dtypes, from_json, to_json
from gluon_amp.startup import cpu

import mxnet as mx

NORM_LAYOUT = "_gluon_amp_norm_layout"
CONVOLUTION = "_gluon_amp_convolution"


def settle(symbol: mx.sym.Symbol, dtypes: Dict[str, object]) -> mx.sym.Symbol:
    """Return a symbol of the same values that keeps clear of these kernels.

    Parameters
    ----------
    symbol : Symbol
        A cast graph.
    dtypes : dict of str to dtype
        Dtypes of all variables.

    Returns
    -------
    Symbol
        `symbol` itself where it has no bfloat16 BatchNorm, 1×1 convolution or strided convolution.
    """
    graph = to_json(symbol)
    settled = _settle(graph, dtypes, symbol)
    return symbol if settled is graph else from_json(settled, like=symbol)


def _settle(graph: dict, dtypes: Dict[str, object], like: mx.sym.Symbol) -> dict:
    if not any(node["op"] in ("BatchNorm", "Convolution") or "subgraphs" in node
               for node in graph["nodes"]):  # fmt: skip
        return graph
    edges = edge_dtypes(graph, dtypes, like)
    nodes, moved, changed = [], {}, False

    def emit(op: str, name: str, inputs: list, **attrs: str) -> list:
        nodes.append({"op": op, "name": name, "attrs": attrs, "inputs": inputs})
        return [len(nodes) - 1, 0, 0]

    for i, node in enumerate(graph["nodes"]):
        inputs = [[*moved[source, k], *version] for source, k, *version in node["inputs"]]
        name, low = node["name"], edges.get((i, 0)) == "bfloat16"
        in_float32 = False
        if "subgraphs" in node:
            bodies = [_settle(body, {}, like) for body in node["subgraphs"]]
            changed = changed or any(a is not b for a, b in zip(bodies, node["subgraphs"]))
            node = {**node, "subgraphs": bodies}
        if low and node["op"] == "Convolution":
            settled = _convolution(node)
            changed = changed or settled is not node
            node = settled
            in_float32 = _is_strided(node) and not native.available()
        if in_float32:
            inputs = [
                emit("amp_cast", f"{name}_input{k}", [entry], dtype="float32")
                for k, entry in enumerate(inputs)
            ]
        new = len(nodes)
        moved.update({edge: (new, edge[1]) for edge in edges if edge[0] == i})
        nodes.append({**node, "inputs": inputs})
        if in_float32:
            result = emit("amp_cast", f"{name}_bfloat16", [[new, 0, 0]], dtype="bfloat16")
            moved[i, 0] = tuple(result[:2])
            changed = True
        if low and node["op"] == "BatchNorm" and native.available():
            result = emit(NORM_LAYOUT, f"{name}_layout", [[new, 0, 0], inputs[0]])
            moved[i, 0] = tuple(result[:2])
            changed = True
    heads = [[*moved[source, k], *version] for source, k, *version in graph["heads"]]
    return {**graph, "nodes": nodes, "heads": heads} if changed else graph


def _convolution(node: dict) -> dict:
    """Return a bfloat16 convolution that keeps clear of both kernels."""
    attrs = node["attrs"]
    if cpu.has_amx() and set(tuple_of(attrs["kernel"])) == {1}:
        node = {**node, "attrs": {**attrs, "dilate": attrs["kernel"].replace("1", "2")}}
    if _is_strided(node) and native.available():
        node = {**node, "op": CONVOLUTION}
    return node


def _is_strided(node: dict) -> bool:
    return tuple_of(node["attrs"].get("stride", ""))[-1:] > (1,)
