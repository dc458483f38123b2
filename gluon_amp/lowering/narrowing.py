"""Brings operators of images that bfloat16 left in float32 back to bfloat16.

MXNet has no bfloat16 kernels of scalar operators, `clip` and so on, so they run in float32, and
what reads their results follows: the pooling behind a hard-swish, a concatenation, a BatchNorm. The
blocked layout computes the elementwise operators in its programs, in float32, but it holds its
arrays in bfloat16. So those readers get casts around them, if everything that follows from them is
cast to bfloat16 again: then a chain's result is rounded once, where it is stored.
"""

from typing import Set, Tuple

from gluon_amp.base.registry import canonical
from gluon_amp.graph import CASTS, PINNED_ATTR, Writer, op_table
from gluon_amp.lowering.blockable import ADAPTIVE_POOLING, Analysis
from gluon_amp.lowering.pointwise import instructions_of
from gluon_amp.lowering.typed_graph import TypedGraph

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
        op, attrs = canonical(nodes[i]["op"]), nodes[i].get("attrs", {})
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
    nodes, edges, out, casts = graph.json["nodes"], graph.edges, Writer(), {}

    def cast(entry: list, dtype: str) -> list:
        key = (*entry[:2], dtype)
        if key not in casts:
            name = f"{out.nodes[entry[0]]['name']}_{entry[1]}_narrowed_{dtype}"
            casts[key] = out.emit("amp_cast", name, entry, dtype=dtype)
        return casts[key]

    def low(entry: list) -> list:
        source = nodes[entry[0]]
        if source["op"] in CASTS and edges.get(tuple(source["inputs"][0][:2])) == "bfloat16":
            return out.remap(source["inputs"][0])
        return out.remap(entry) if is_chosen(entry) else cast(out.remap(entry), "bfloat16")

    def wide(entry: list) -> list:
        return cast(out.remap(entry), "float32") if is_chosen(entry) else out.remap(entry)

    def is_chosen(entry: list) -> bool:
        return entry[0] in chosen and entry[1] == 0

    for i, node in enumerate(nodes):
        inputs = node["inputs"]
        if node["op"] in CASTS and is_chosen(inputs[0]) and edges.get((i, 0)) == "bfloat16":
            out.replaced[i, 0] = out.remap(inputs[0])
            out.numbers.append(out.replaced[i, 0][0])
            continue
        images = READ_IMAGES[canonical(node["op"])] if i in chosen else 0
        images = len(inputs) if images is None else images
        entries = [low(entry) for entry in inputs[:images]]
        entries += [wide(entry) for entry in inputs[images:]]
        out.numbers.append(out.copy(node, entries)[0])
    low_results = dict.fromkeys([(out.numbers[i], 0) for i in chosen], "bfloat16")
    return graph.rewritten(out.graph(graph.json), {**graph.kept(out), **low_results})
