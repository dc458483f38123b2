"""Ways around two kernels of oneDNN 2.4, which MXNet 1.9.1 has, in bfloat16 on a CPU.

BatchNorm is slow where its data and its gradient lie in two layouts, as they do between the AMX
kernels and those of depthwise convolutions; see `native/layouts.cc`.

1×1 convolutions have an AMX kernel that writes past the end of its result where the positions of an
image make three tiles: 27, 33, 36, 39, 42, 45 or 48 of them, 6×6 for example. A 1×1 kernel stays
what it is when it is dilated, but that one takes no dilation, so another one computes it.
"""

from typing import Dict

from gluon_amp import cpu
from gluon_amp.graph import edge_dtypes, from_json, to_json
from gluon_amp.lowering import native

import mxnet as mx

NORM_LAYOUT = "_gluon_amp_norm_layout"


def settle(symbol: mx.sym.Symbol, dtypes: Dict[str, object]) -> mx.sym.Symbol:
    """Return a symbol of the same values that keeps clear of both kernels.

    Parameters
    ----------
    symbol : Symbol
        A cast graph.
    dtypes : dict of str to dtype
        Dtypes of all variables.

    Returns
    -------
    Symbol
        `symbol` itself where it has no bfloat16 BatchNorm or 1×1 convolution.
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
    for i, node in enumerate(graph["nodes"]):
        inputs = [[*moved[source, k], *version] for source, k, *version in node["inputs"]]
        new = len(nodes)
        moved.update({edge: (new, edge[1]) for edge in edges if edge[0] == i})
        low = edges.get((i, 0)) == "bfloat16"
        if "subgraphs" in node:
            bodies = [_settle(body, {}, like) for body in node["subgraphs"]]
            changed = changed or any(a is not b for a, b in zip(bodies, node["subgraphs"]))
            node = {**node, "subgraphs": bodies}
        if low and node["op"] == "Convolution" and cpu.has_amx() and _is_pointwise(node["attrs"]):
            node = {**node, "attrs": {**node["attrs"], "dilate": _twos(node["attrs"]["kernel"])}}
            changed = True
        nodes.append({**node, "inputs": inputs})
        if low and node["op"] == "BatchNorm" and native.available():
            name = f"{node['name']}_layout"
            pair = [[new, 0, 0], inputs[0]]
            nodes.append({"op": NORM_LAYOUT, "name": name, "attrs": {}, "inputs": pair})
            moved[i, 0] = (new + 1, 0)
            changed = True
    heads = [[*moved[source, k], *version] for source, k, *version in graph["heads"]]
    return {**graph, "nodes": nodes, "heads": heads} if changed else graph


def _is_pointwise(attrs: Dict[str, str]) -> bool:
    return set(attrs["kernel"].strip("()[] ,").replace(" ", "").split(",")) == {"1"}


def _twos(kernel: str) -> str:
    return kernel.replace("1", "2")
