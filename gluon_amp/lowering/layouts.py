"""Keeps bfloat16 BatchNorms fast on a CPU: see `native/layouts.cc`."""

from typing import Dict

from gluon_amp.graph import edge_dtypes, from_json, to_json
from gluon_amp.lowering import native

import mxnet as mx

NORM_LAYOUT = "_gluon_amp_norm_layout"


def settle_norms(symbol: mx.sym.Symbol, dtypes: Dict[str, object]) -> mx.sym.Symbol:
    """Return a symbol of the same values, in which bfloat16 BatchNorms get gradients they can use.

    Parameters
    ----------
    symbol : Symbol
        A cast graph.
    dtypes : dict of str to dtype
        Dtypes of all variables.

    Returns
    -------
    Symbol
        `symbol` itself where it has no such BatchNorm, or our operators are not to be had.
    """
    graph = to_json(symbol)
    if not any(node["op"] == "BatchNorm" for node in graph["nodes"]):
        return symbol
    edges = edge_dtypes(graph, dtypes, symbol)
    if "bfloat16" not in edges.values() or not native.available():
        return symbol
    nodes, moved = [], {}
    for i, node in enumerate(graph["nodes"]):
        inputs = [[*moved[source, k], *version] for source, k, *version in node["inputs"]]
        nodes.append({**node, "inputs": inputs})
        new = len(nodes) - 1
        moved.update({edge: (new, edge[1]) for edge in edges if edge[0] == i})
        if node["op"] == "BatchNorm" and edges.get((i, 0)) == "bfloat16":
            name = f"{node['name']}_layout"
            pair = [[new, 0, 0], inputs[0]]
            nodes.append({"op": NORM_LAYOUT, "name": name, "attrs": {}, "inputs": pair})
            moved[i, 0] = (new + 1, 0)
    heads = [[*moved[source, k], *version] for source, k, *version in graph["heads"]]
    return from_json({**graph, "nodes": nodes, "heads": heads}, like=symbol)
