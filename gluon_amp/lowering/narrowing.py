"""Brings operators of images that bfloat16 left in float32 back to bfloat16.

MXNet has no bfloat16 kernels of scalar operators, `clip` and so on, so they run in float32, and
what reads their results follows: the pooling behind a hard-swish, a concatenation, a BatchNorm. The
blocked layout computes the elementwise operators in its programs, in float32, but it holds its
arrays in bfloat16. So those readers get casts around them, if everything that follows from them is
cast to bfloat16 again: then a chain's result is rounded once, where it is stored.
"""

from typing import Dict, List, Optional, Set, Tuple

from gluon_amp.graph import CASTS, PINNED_ATTR, Entry, Json, Writer, edge_of, op_table
from gluon_amp.lowering.blockable import ADAPTIVE_POOLING, Analysis
from gluon_amp.lowering.pointwise import instructions_of
from gluon_amp.lowering.typed_graph import Edge, TypedGraph

# Operator: how many of its inputs are images; None stands for all of them
READ_IMAGES = {"BatchNorm": 1, "Concat": None, "Pooling": 1, ADAPTIVE_POOLING: 1}

# Operators that stay in float32 themselves, as elementwise ones do
PASS_ON = op_table.named("moves") | {"add_n", "Dropout"}


def narrowed(graph: TypedGraph) -> Tuple[TypedGraph, Analysis]:
    """Return a graph with operators brought back to bfloat16, and its analysis."""
    chosen = _find(graph)
    while chosen:
        narrower = _narrow(graph, chosen).pruned()
        found = Analysis(narrower)
        names = {found.nodes[i]["name"] for i, _ in found.images}
        blocked = {i for i in chosen if graph.json["nodes"][i]["name"] in names}
        if blocked == chosen:
            return narrower, found
        chosen = blocked
    return graph, Analysis(graph)


def _find(graph: TypedGraph) -> Set[int]:
    """Return the nodes in float32 that may read and return bfloat16.

    These are operators in `READ_IMAGES` from which only values in bfloat16 follow, and which no pin
    keeps in float32.
    """
    nodes, edges = graph.json["nodes"], graph.edges
    # nodes whose results something reads in float32, which has to be exact
    exact = {entry[0] for entry in graph.json["heads"]}
    found = set()
    for i in reversed(range(len(nodes))):
        op, attrs = nodes[i]["op"], nodes[i]["attrs"]
        to_low = op in CASTS and edges.get((i, 0)) == "bfloat16"
        passes = op in READ_IMAGES or op in PASS_ON or instructions_of(op, attrs) is not None
        passes = passes and PINNED_ATTR not in attrs and i not in exact
        if passes and op in READ_IMAGES and edges.get((i, 0)) == "float32":
            found.add(i)
        if not (to_low or passes):
            exact.update(entry[0] for entry in nodes[i]["inputs"])
    return found


def _narrow(graph: TypedGraph, chosen: Set[int]) -> TypedGraph:
    """Return a graph in which these nodes read and return bfloat16.

    They are given as `_find` returns them. What reads a result in float32 reads a cast of it.
    """
    nodes, edges = graph.json["nodes"], graph.edges
    casts: Dict[Tuple[int, int, str], Entry] = {}
    results: Dict[Edge, str] = {}

    def narrow(out: Writer, i: int, node: Json, inputs: List[Entry]) -> Optional[Entry]:
        def cast(entry: Entry, dtype: str) -> Entry:
            key = (*edge_of(entry), dtype)
            if key not in casts:
                name = f"{out.nodes[entry[0]]['name']}_{entry[1]}_narrowed_{dtype}"
                casts[key] = out.emit("amp_cast", name, entry, dtype=dtype)
            return casts[key]

        def low(old: Entry, new: Entry) -> Entry:
            source = nodes[old[0]]
            if source["op"] in CASTS and edges.get(edge_of(source["inputs"][0])) == "bfloat16":
                return out.remap(source["inputs"][0])
            return new if is_chosen(old) else cast(new, "bfloat16")

        def wide(old: Entry, new: Entry) -> Entry:
            return cast(new, "float32") if is_chosen(old) else new

        def is_chosen(entry: Entry) -> bool:
            return entry[0] in chosen and entry[1] == 0

        read = node["inputs"]
        if node["op"] in CASTS and is_chosen(read[0]) and edges.get((i, 0)) == "bfloat16":
            return inputs[0]
        images = READ_IMAGES[node["op"]] if i in chosen else 0
        images = len(read) if images is None else images
        entries = [(low if k < images else wide)(*pair) for k, pair in enumerate(zip(read, inputs))]
        entry = out.copy(node, entries)
        if i in chosen:
            results[edge_of(entry)] = "bfloat16"
        return entry

    return graph.by(narrow, results)
