"""A network divided behind operators that decide, such as sorting and comparing.

Rounding may change what such an operator decides where values are nearly equal, and then everything
behind it. So each part between them is compared by itself, with the network's own values as inputs.
"""

from typing import Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

import numpy as np

from gluon_amp import graph
from gluon_amp.graph import Edge, classic, op_table
from gluon_amp.handover.network import Network
from gluon_amp.handover.rounding import LEAST, effect_of_rounding, largest
from gluon_amp.handover.to_onnx.model import Session, encode
from gluon_amp.handover.to_onnx.translate import Translated


class Part(NamedTuple):
    """What a part returns: the network's values, those of the ONNX file, and what is allowed."""

    number: int
    expected: List[np.ndarray]
    found: List[np.ndarray]
    allowed: List[float]


def levels_of(network: Network) -> List[int]:
    """Return how many decisions stand before each node, itself included."""
    levels: List[int] = []
    depends: Set[int] = set()
    for i, node in enumerate(network.nodes):
        sources = [entry[0] for entry in node["inputs"]]
        if node["name"] in network.inputs or not depends.isdisjoint(sources):
            depends.add(i)
        decides = i in depends and op_table.has("decides", node["op"])
        levels.append(max((levels[k] for k in sources), default=0) + decides)
    return levels


def compared(
    network: Network, translated: Translated, inputs: Dict[str, np.ndarray], dtype: str
) -> Iterator[Part]:
    """Yield each part of a network, run by onnxruntime on the values that the network computes."""
    levels, tensors = levels_of(network), translated.tensors
    for number in range(max(levels) + 1):
        results = [
            edge for edge in results_of(network, levels, number) if tensors[edge].is_computed
        ]
        if not results:  # the first decision is about the inputs
            continue
        part, given = _part(network, levels, number, results)
        # what stands behind a decision is moved by rounding, and what stands before it is not
        read = sorted(edge for edge in _read(network, levels, number) if tensors[edge].name)
        ranked = {e: network.inputs_of(e[0])[0] for e in results if _is_rank(network, e)}
        asked = sorted({*read, *given, *results, *ranked.values()})
        values = dict(zip(asked, network.run(inputs, asked)))
        feeds = dict(inputs)
        for edge in read:
            feeds[tensors[edge].name] = values[edge].astype(tensors[edge].dtype)
        moved = {**inputs, **{name: values[edge] for edge, name in given.items()}}
        found = Session(encode(translated, results, {}, read)).run(feeds)
        allowed = effect_of_rounding(part, moved, dtype=dtype)
        for k, edge in enumerate(results):
            if edge in given:  # decided from the same values
                allowed[k] = LEAST["float32"] * largest(values[edge])
            if edge in ranked:
                attrs = network.nodes[edge[0]]["attrs"]
                found[k] = _by_rank(attrs, values[ranked[edge]], values[edge], found[k])
        yield Part(number, [values[edge] for edge in results], found, allowed)


def _is_rank(network: Network, edge: Edge) -> bool:
    """Return whether an edge has the places of sorted values."""
    node = network.nodes[edge[0]]
    kinds = {"topk": node["attrs"].get("ret_typ", "indices"), "argsort": "indices"}
    return kinds.get(classic(node["op"])) == ("both" if edge[1] == 1 else "indices")


def _by_rank(
    attrs: Dict[str, str], data: np.ndarray, expected: np.ndarray, found: np.ndarray
) -> np.ndarray:
    """Return the places that were found, with the expected one for each of an equal value."""
    axis = attrs.get("axis", "-1")
    if axis == "None":
        data, axis = data.reshape(-1), "-1"
    if expected.shape != found.shape or data.ndim != expected.ndim or found.max() >= data.size:
        return found
    values = (np.take_along_axis(data, p.astype(np.int64), int(axis)) for p in (expected, found))
    return np.where(np.equal(*values), expected, found)


def results_of(network: Network, levels: List[int], number: int) -> List[Edge]:
    """Return the edges of a level that are outputs, or that later levels read."""
    found = {edge for edge in network.outputs if levels[edge[0]] == number}
    for i in range(len(network.nodes)):
        if levels[i] > number:
            found |= {edge for edge in network.inputs_of(i) if levels[edge[0]] == number}
    # Zeros that a recurrent layer begins with may have the size that this layer needs.
    return sorted(edge for edge in found if network.nodes[edge[0]]["inputs"])


def _read(network: Network, levels: List[int], number: int) -> Set[Edge]:
    """Return the edges of earlier levels that a level reads."""
    return {
        (k, output)
        for i in range(len(network.nodes))
        if levels[i] == number
        for k, output in network.inputs_of(i)
        if levels[k] < number and network.nodes[k]["inputs"]
    }


def _part(
    network: Network, levels: List[int], number: int, results: List[Edge]
) -> Tuple[Network, Dict[Edge, str]]:
    """Return the network behind the decisions of a level, and the names of what it is given."""
    given: Dict[Edge, str] = {}
    entering = {*graph.edges_of(network.json), *results}

    def in_part(
        out: graph.Writer, i: int, node: graph.Json, inputs: List[graph.Entry]
    ) -> Optional[graph.Entry]:
        decided = levels[i] == number and op_table.has("decides", node["op"])
        if not inputs or not (levels[i] < number or decided):
            return None  # nodes of later levels are pruned
        for edge in sorted(edge for edge in entering if edge[0] == i):
            given[edge] = f"given{edge[0]}_{edge[1]}"
            out.replaced[edge] = out.emit("null", given[edge])
        return out.replaced.get((i, 0), inputs[0])

    out = graph.Writer()
    out.rewrite(network.json, in_part)
    heads = [out.remap([*edge, 0]) for edge in results]
    json, _ = graph.pruned({**out.graph(network.json), "heads": heads})
    names = {*graph.variables(json)}
    return network._replace(json=json), {e: name for e, name in given.items() if name in names}
