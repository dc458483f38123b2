"""Float16 on a CPU: float16 values carried in float32 tensors, rounded where an operator ends.

MXNet's CPU build has no float16 matrix product ("FP16 gemm on cpu not implemented!"). Here each
operator that the cast graph runs in float16 reads float16 values, computes in float32 and has its
outputs rounded to float16: to nearest even, with subnormals, with overflow to infinity. That is
what a Tensor Core does, which multiplies float16 and accumulates in float32 (a policy can ask for
float16 sums instead: `float16_sums`). Gradients are rounded
at the same places on the way back, so they underflow and overflow as they do on a GPU.

Operators that only move or select values (reshape, relu, max-pooling) need no rounding: what they
return is float16 already.

A value is rounded by one of our own operators where they are available (`native`), in place, else
by two of MXNet's `Cast`, to float16 and back. Both give the same bits, NaN payloads aside.
"""

import os
from collections import Counter
from typing import Dict

from gluon_amp.lowering import float16_sums, native
from gluon_amp.lowering.deconvolution import deconvolve
from gluon_amp.policy import op_table
from gluon_amp.policy.graph import ACCUMULATE_ATTR, MX_DTYPE_CODES, edge_dtypes, from_json, to_json

import mxnet as mx

CASTS = ("Cast", "amp_cast")

# operators that are exact for one value of an attribute (the operator's default given last)
EXACT_WITH = {"Pooling": ("pool_type", "max", "max"), "Activation": ("act_type", "relu", None)}

# our own operators; the last is a relu of what the first returns
ROUND, WIDEN, NARROW = "_gluon_amp_round", "_gluon_amp_widen", "_gluon_amp_narrow"
ROUND_RELU = "_gluon_amp_round_relu"


def emulate(symbol: mx.sym.Symbol, dtypes: Dict[str, object]) -> mx.sym.Symbol:
    """Return a graph that gives what `symbol` gives where float16 is real, and runs on a CPU.

    Parameters
    ----------
    symbol : Symbol
        A cast graph. Float16 variables stay float16, and so do float16 outputs.
    dtypes : dict of str to dtype
        Dtypes of all variables.

    Returns
    -------
    Symbol
        `symbol` itself where nothing in it is float16.

    Raises
    ------
    MXNetError
        The dtypes contradict each other.
    """
    graph = to_json(symbol)
    emulated = _emulate(graph, dtypes, symbol)
    return symbol if emulated is graph else from_json(emulated, like=symbol)


def _emulate(graph: dict, dtypes: Dict[str, object], like: mx.sym.Symbol) -> dict:
    edges = edge_dtypes(graph, dtypes, like)
    bodies = any("subgraphs" in node for node in graph["nodes"])
    if "float16" not in edges.values() and not bodies:
        return graph
    out = _Carrier(edges, native.available())
    for i, node in enumerate(graph["nodes"]):
        if node["op"] == "null":
            out.variable(i, node)
        elif node["op"] in CASTS:
            out.cast(i, node)
        else:
            if "subgraphs" in node:
                # the bodies of loops and branches: all their inputs are float32 or integers
                bodies = [_emulate(body, {}, like) for body in node["subgraphs"]]
                node = {**node, "subgraphs": bodies}
            out.operator(i, node)
    heads = [out.head(entry) for entry in graph["heads"]]
    emulated = {**graph, "nodes": out.nodes, "heads": heads}
    return _fuse_relu(emulated) if out.native else emulated


class _Carrier:
    """The emulated graph being written; `carried` maps old tensors to the new ones.

    `native` tells whether it may hold our own operators.
    """

    def __init__(self, edges: Dict, native: bool) -> None:
        self.edges = edges
        self.native = native
        self.nodes = []
        self.carried = {}

    def variable(self, i: int, node: dict) -> None:
        if self._is_float16(i):
            attrs = {**node.get("attrs", {}), "__dtype__": MX_DTYPE_CODES["float16"]}
            self.carried[i, 0] = self._widen(self._emit({**node, "attrs": attrs}, []))
        else:
            self.carried[i, 0] = self._emit(node, [])

    def cast(self, i: int, node: dict) -> None:
        source = tuple(node["inputs"][0][:2])
        entry = self.carried[source]
        before, after = self.edges[source], self.edges.get((i, 0))
        if after == before or (before == "float16" and after == "float32"):
            self.carried[i, 0] = entry
        elif after == "float16":
            if before != "float32":
                entry = self._cast_node(entry, "float32")
            self.carried[i, 0] = self._round(entry)
        else:
            self.carried[i, 0] = self._emit(node, [entry])

    def operator(self, i: int, node: dict) -> None:
        attrs = {
            key: "float32" if key in ("dtype", "out_dtype") and value == "float16" else value
            for key, value in node.get("attrs", {}).items()
        }
        inputs = [
            [*self.carried[source, k][:2], *version] for source, k, *version in node["inputs"]
        ]
        new = {**node, "attrs": attrs}
        if attrs.pop(ACCUMULATE_ATTR, None) == "float16":
            new.update(float16_sums.node(node["op"], attrs))
        if node["op"] == "Deconvolution" and self._is_float16(i):
            wide = [self._cast_node(entry, "float64") for entry in inputs]
            new = deconvolve(self._write, node["name"], attrs, wide)
            new = self._cast_node(new, "float32")[0]
        else:
            new = self._emit(new, inputs)[0]
        exact = is_exact(node["op"], attrs)
        for edge in (edge for edge in self.edges if edge[0] == i):
            entry = [new, edge[1], 0]
            rounded = self.edges[edge] == "float16" and not exact
            self.carried[edge] = self._round(entry) if rounded else entry

    def head(self, entry: list) -> list:
        carried = self.carried[tuple(entry[:2])]
        return self._narrow(carried) if self._is_float16(*entry[:2]) else carried

    def _round(self, entry: list) -> list:
        if self.native:
            return self._own_node(entry, ROUND, "rounded")
        return self._widen(self._narrow(entry))

    def _widen(self, entry: list) -> list:
        if self.native:
            return self._own_node(entry, WIDEN, "float32")
        return self._cast_node(entry, "float32")

    def _narrow(self, entry: list) -> list:
        if self.native:
            return self._own_node(entry, NARROW, "float16")
        return self._cast_node(entry, "float16")

    def _cast_node(self, entry: list, dtype: str) -> list:
        node = {"op": "Cast", "name": self._name(entry, dtype), "attrs": {"dtype": dtype}}
        return self._emit(node, [entry])

    def _own_node(self, entry: list, op: str, suffix: str) -> list:
        return self._emit({"op": op, "name": self._name(entry, suffix), "attrs": {}}, [entry])

    def _name(self, entry: list, suffix: str) -> str:
        return f"{self.nodes[entry[0]]['name']}_{entry[1]}_{suffix}"

    def _write(self, op: str, name: str, *inputs: list, **attrs: str) -> list:
        return self._emit({"op": op, "name": name, "attrs": attrs}, list(inputs))

    def _emit(self, node: dict, inputs: list) -> list:
        self.nodes.append({**node, "inputs": inputs})
        return [len(self.nodes) - 1, 0, 0]

    def _is_float16(self, i: int, k: int = 0) -> bool:
        return self.edges.get((i, k)) == "float16"


def _fuse_relu(graph: dict) -> dict:
    """Let one operator round and clip at zero where nothing else reads the rounded tensor.

    The fused operator gives what oneDNN's relu gives; MXNet's own differs in NaN, so without oneDNN
    nothing is fused.
    """
    if os.environ.get("MXNET_MKLDNN_ENABLED", "1") == "0":
        return graph
    nodes = graph["nodes"]
    read = Counter(entry[0] for node in nodes for entry in node["inputs"])
    read.update(entry[0] for entry in graph["heads"])
    fused = list(nodes)
    for i, node in enumerate(nodes):
        if node["op"] == "Activation" and node["attrs"]["act_type"] == "relu":
            source = node["inputs"][0][0]
            if nodes[source]["op"] == ROUND and read[source] == 1:
                inputs = nodes[source]["inputs"]
                fused[i] = {"op": ROUND_RELU, "name": node["name"], "attrs": {}, "inputs": inputs}
    return {**graph, "nodes": fused}


def is_exact(op: str, attrs: Dict[str, str]) -> bool:
    """Return whether an operator turns float16 values into float16 values without rounding."""
    if op in EXACT_WITH:
        attr, value, default = EXACT_WITH[op]
        return attrs.get(attr, default) == value
    return op in op_table.EXACT
