"""A symbol's JSON as a value: reading it, building a symbol from it, and questions about it.

In that JSON a graph is a list of nodes in topological order. A node refers to the tensors that it
reads by entries `[node, output, version]`, and so do the graph's outputs, its heads.
"""

import json
import operator
from typing import Any, Callable, Container, Dict, Iterator, List, Mapping, Optional, Tuple

from gluon_amp.base.dtypes import dtype_name
from gluon_amp.base.mxnet_internals import GRAPH_VERSION, NumpySymbol

import mxnet as mx

Json = Dict[str, Any]  # a graph, or one of its nodes
Entry = List[int]
Edge = Tuple[int, int]  # a tensor: the number of its node, and its number among the outputs

CASTS = ("Cast", "amp_cast")

MX_DTYPE_CODES = {"float32": "0", "float16": "2"}


def to_json(symbol: mx.sym.Symbol) -> Json:
    """Return a symbol's graph as a dict, casts included; every node has attributes, maybe none."""
    graph: Json = json.loads(symbol.tojson(remove_amp_cast=False))
    for node in every_node(graph):
        node.setdefault("attrs", {})
    return graph


def from_json(graph: Json, like: Optional[mx.sym.Symbol] = None) -> mx.sym.Symbol:
    """Build a symbol from a dict such as `to_json` returns; a `mx.np` symbol if `like` is one."""
    # The body of a loop has no version, and MXNet upgrades a graph without one as if it were old.
    # MXNet reads UTF-8, but no escape such as \u00e9.
    text = json.dumps(_indexed({"attrs": GRAPH_VERSION, **graph}), ensure_ascii=False)
    symbol = mx.sym.load_json(text)
    return symbol.as_np_ndarray() if isinstance(like, NumpySymbol) else symbol


def _indexed(graph: Json) -> Json:
    """Return a graph with the index of its variables recomputed, in its nodes' bodies too."""
    nodes = [with_bodies(node, _indexed) for node in graph["nodes"]]
    variables = [i for i, node in enumerate(nodes) if node["op"] == "null"]
    kept = {key: value for key, value in graph.items() if key != "node_row_ptr"}
    return {**kept, "nodes": nodes, "arg_nodes": variables}


def every_node(graph: Json) -> Iterator[Json]:
    """Yield the nodes of a graph, each before those in the bodies of a loop or branch."""
    for node in graph["nodes"]:
        yield node
        for body in node.get("subgraphs", ()):
            yield from every_node(body)


def with_bodies(node: Json, rewrite: Callable[[Json], Json]) -> Json:
    """Return a node whose bodies are rewritten, or the node itself if none of them changes."""
    old = node.get("subgraphs", ())
    new = [rewrite(body) for body in old]
    return node if all(map(operator.is_, new, old)) else {**node, "subgraphs": new}


def variables(graph: Json) -> List[str]:
    """Return the names of a graph's variables, in the order of its nodes."""
    return [node["name"] for node in graph["nodes"] if node["op"] == "null"]


def edge_of(entry: Entry) -> Edge:
    """Return the tensor of an entry, whatever its version."""
    return entry[0], entry[1]


def edges_of(graph: Json) -> List[Edge]:
    """Return every tensor that a graph's nodes read or return, in topological order."""
    read = [entry for node in graph["nodes"] for entry in node["inputs"]]
    return sorted({edge_of(entry) for entry in read + graph["heads"]})


def edge_dtypes(graph: Json, dtypes: Mapping[str, object]) -> Dict[Edge, str]:
    """Return the dtype of every tensor that a graph's nodes read or return, by node and output.

    `dtypes` are those of the variables; those left out are float32.
    """
    edges = edges_of(graph)
    all_edges = from_json({**graph, "heads": [[*edge, 0] for edge in edges]})
    variables = {name: dtypes.get(name, "float32") for name in all_edges.list_inputs()}
    _, inferred, _ = all_edges.infer_type(**variables)
    return {edge: dtype_name(dtype) for edge, dtype in zip(edges, inferred)}


def source_of(nodes: List[Json], i: int, through: Optional[Container[str]] = CASTS) -> int:
    """Return the node that the first output of node `i` originally comes from.

    This walks back through operators of one input: those in `through`, with None all of them.
    """
    while len(nodes[i]["inputs"]) == 1 and (through is None or nodes[i]["op"] in through):
        i = nodes[i]["inputs"][0][0]
    return i


def needed(graph: Json) -> List[int]:
    """Return the nodes that the outputs need, from each output back to its inputs in their order.

    MXNet lists the variables of a graph in this order.
    """
    nodes = graph["nodes"]
    found: Dict[int, bool] = {}
    pending = [entry[0] for entry in reversed(graph["heads"])]
    while pending:
        i = pending.pop()
        if i not in found:
            found[i] = True
            pending += [entry[0] for entry in reversed(nodes[i]["inputs"])]
    return list(found)


def readers_of(graph: Json) -> Dict[int, List[Tuple[Optional[int], int]]]:
    """Return the readers of each node, by node and input position; of an output also (None, 0)."""
    readers: Dict[int, List[Tuple[Optional[int], int]]]
    readers = {source: [(None, 0)] for source, *_ in graph["heads"]}
    for i, node in enumerate(graph["nodes"]):
        for position, (source, *_) in enumerate(node["inputs"]):
            readers.setdefault(source, []).append((i, position))
    return readers
