"""Biases of dense layers whose weight is frozen get a gradient on a CPU, too.

oneDNN computes the gradients of a dense layer's weight and bias together. Where the weight's is not
requested, MXNet 1.9.1 skips both and leaves the bias's gradient unwritten
(`MKLDNNFullyConnectedBackward` in src/operator/nn/mkldnn/mkldnn_fully_connected.cc). There the bias
is added by an operator of its own. Convolutions are not affected.
"""

from typing import Dict, FrozenSet, Optional

from gluon_amp.policy.graph import edge_dtypes, from_json, to_json

import mxnet as mx


def add_biases(
    symbol: mx.sym.Symbol, dtypes: Dict[str, object], frozen: FrozenSet[str]
) -> mx.sym.Symbol:
    """Return a symbol of the same values, in which such biases are added on their own.

    Parameters
    ----------
    symbol : Symbol
        A graph that runs on a CPU.
    dtypes : dict of str to dtype
        Dtypes of all variables.
    frozen : frozenset of str
        Names of the variables without a gradient.

    Returns
    -------
    Symbol
        `symbol` itself where no dense layer has a frozen weight and a bias with a gradient.
    """
    if not frozen:
        return symbol
    graph = to_json(symbol)
    old = graph["nodes"]
    chosen = {i for i, node in enumerate(old) if _is_chosen(old, node, frozen)}
    if not chosen:
        return symbol
    for i in chosen:  # the sum broadcasts, so it does not imply the shape of the bias
        bias = _variable(old, old[i]["inputs"][2][0])
        shape = {"__shape__": f"({old[i]['attrs']['num_hidden']},)"}
        if bias is not None:
            old[bias] = {**old[bias], "attrs": {**old[bias].get("attrs", {}), **shape}}
    edges = edge_dtypes(graph, dtypes, symbol)
    nodes, moved = [], {}

    def emit(op: str, name: str, *inputs: list, **attrs: str) -> list:
        nodes.append({"op": op, "name": name, "attrs": attrs, "inputs": [list(e) for e in inputs]})
        return [len(nodes) - 1, 0, 0]

    for i, node in enumerate(old):
        inputs = [[*moved.get((s, k), (moved[s, None], k)), *version]
                  for s, k, *version in node["inputs"]]  # fmt: skip
        moved[i, None] = len(nodes)
        if i not in chosen:
            nodes.append({**node, "inputs": inputs})
            continue
        name, low = node["name"], edges.get((i, 0)) == "bfloat16"
        attrs = {**node["attrs"], "no_bias": "True"}
        out = emit("FullyConnected", f"{name}_product", *inputs[:2], **attrs)
        bias = inputs[2]
        if low:  # there is no sum in bfloat16 that broadcasts
            out = emit("amp_cast", f"{name}_product_float32", out, dtype="float32")
            bias = emit("amp_cast", f"{name}_bias_float32", bias, dtype="float32")
        out = emit("_npi_add", f"{name}_sum" if low else name, out, bias)
        if low:
            out = emit("amp_cast", name, out, dtype="bfloat16")
        moved[i, 0] = tuple(out[:2])
    heads = [[*moved.get((s, k), (moved[s, None], k)), *version]
             for s, k, *version in graph["heads"]]  # fmt: skip
    return from_json({**graph, "nodes": nodes, "heads": heads}, like=symbol)


def _is_chosen(nodes: list, node: dict, frozen: FrozenSet[str]) -> bool:
    if node["op"] != "FullyConnected" or len(node["inputs"]) < 3:
        return False
    found = (_variable(nodes, node["inputs"][k][0]) for k in (1, 2))
    weight, bias = (None if i is None else nodes[i]["name"] for i in found)
    return weight in frozen and bias not in frozen


def _variable(nodes: list, i: int) -> Optional[int]:
    """Return the variable behind operators of one input, such as casts; None for anything else."""
    while len(nodes[i]["inputs"]) == 1:
        i = nodes[i]["inputs"][0][0]
    return i if nodes[i]["op"] == "null" else None
